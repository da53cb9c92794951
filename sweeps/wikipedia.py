"""Do V, then K and Q rise in every layer on Wikipedia (the paper's Figure 5), and when is context used?

Command:  topicjax corpus, then topicjax run wikipedia
Size:     24 trials, 2 programs, 6 minutes on 2 cores
Expect:   (the last three written before the run, from an independent program) from near zero V is half way up
          by step 15 to 25 in layers 2 to 4, K and Q by step 30 to 95, so V leads at every rate, but K and Q
          have made a fifth to a quarter of their rise by then; in layer 1 V and K, Q rise together.  From the
          usual init norms hardly change.  After 400 steps the loss is 0.07 to 0.10 nats (standard error 0.02
          to 0.03) above the unigram line in every cell: all of this is over before context is used.  In 5,000
          steps the usual start passes the line by two standard errors at step 1,500 to 2,500, the start near
          zero later; at least 0.7 of what lies below the line is there with uniform attention; K and Q are
          half way up within a factor of two of that step in about half of the layers.
Seen:     (medians, and ranges over seeds) after 400 steps V is ahead in 10 of 12 layers that start near
          zero, but K and Q have begun by then (V first in none), and no cell is below the unigram line. The
          line is passed by two standard errors at step 2,156 (1,700 to 2,558) from the usual start and at
          2,266 (2,058 to 2,911) near zero; 0.82 (0.79 to 0.94) and 0.86 (0.83 to 0.91) of what lies below it
          in the end is there with uniform attention. K and Q are half way up within a factor of two of that
          step in 7 of 8 layers, more than expected (by single seeds in 17 of 24).
"""

from topicjax.sweep import chain, product

EXPERIMENT = "text"
CLAIMS = ("Figure 5", "Context", "Context stages")
BASE = dict(
    corpus="wikipedia", vocabulary_size=4096, context=64, layers=4, heads=4, width=64, mlp=128,
    output_projection=True, output_bias="trained", layer_norm="pre", optimizer="adam",
    batch_size=16, eval_windows=96, steps=400, record_every=10,
)  # fmt: skip
STARTS = chain(product(init="normal", init_scale=1e-3), product(init="default", init_scale=1.0))
FIGURE_5 = product(learning_rate=(3e-4, 1e-3, 3e-3))
# Until context is used: twice the held-out windows, measured half as often.
CONTEXT = product(steps=5000, learning_rate=2e-3, eval_windows=192, rare_every=16)
SWEEP = product(seed=range(3)) * STARTS * chain(FIGURE_5, CONTEXT)
