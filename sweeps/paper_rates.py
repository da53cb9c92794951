"""The paper's own rates.

Command:  make sweep SWEEP=paper_rates
Size:     100 trials, 6 programs
Expect:   .
"""

from topicjax.sweep import chain, product

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
