"""Figures 1, 2 and 4 as the paper states them: learning rate 0.01 for both losses and optimizers, all biases.

Command:  topicjax run paper_rates
Size:     100 trials, 6 programs, about 3 minutes on 2 cores
Expect:   at this rate SGD never converges in 2,000 steps: with cross-entropy the loss stays at that of the
          uniform prediction; with squared loss it goes a quarter of the way to the stage-1 line from near
          zero, and less from the default init.  Embeddings hardly change, and blocks of W^V are faint.  Adam
          converges with cross-entropy, where only the embeddings have blocks (Figure 1).  With squared loss
          W^V alone stays a tenth of the way above the line, and joint training goes far below it, by
          copying.  By the norms no trial is two-stage, from near zero or from the default init (section 8.1
          says so of defaults).  By the loss Adam is in two of its six joint settings, then turns to copying.

The paper does not state the init and the number of steps of Figures 1 and 2, nor the rate of Figure 4.  Here
trained embeddings start from the default of linear layers, W^V of Figure 2 near zero, and Figure 4 both ways.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Rate 0.01", "Figure 1", "Figure 2", "Section 8.1, defaults")
BASE = dict(
    learning_rate=0.01, output_bias="trained", attention_biases="trained", steps=2000, record_every=20
)
FIGURE1 = product(embedding="trained", init="default", init_scale=1.0)
FIGURE2 = product(attention="uniform", init="normal", init_scale=1e-3, l2=(0.0, 1e-5))
FIGURE4 = chain(product(init="default", init_scale=1.0), product(init="normal", init_scale=1e-3))
SWEEP = (
    product(seed=range(5))
    * product(optimizer=("sgd", "adam"), objective=("cross_entropy", "squared"))
    * chain(FIGURE1, FIGURE2, FIGURE4)
)
