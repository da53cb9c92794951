"""Is the edge of Figure 4's map a matter of learning rate x steps?  SGD, with twice the steps of two_stage.

Command:  topicjax run budget
Size:     60 trials, 1 program; a trial ends once its class can no longer change
Expect:   learning rate x onset step is the same at all rates, and grows by a constant for each tenfold
          smaller init scale: which trials are V-only depends on the number of steps.  Of those that are
          V-only after 3,000 steps, nearly all are two-stage after 6,000, except at the lowest learning rates.
"""

from topicjax.sweep import logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Figure 4, its edge",)
BASE = dict(
    optimizer="sgd",
    objective="cross_entropy",
    key_visibility="unmasked",
    until="decided",
    steps=6000,
    record_every=40,
)
SWEEP = product(seed=range(5), learning_rate=logspace(12.5, 100, 4), init_scale=logspace(1e-4, 1e-2, 3))
