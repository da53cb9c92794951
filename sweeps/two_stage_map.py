"""The two-stage map with its boundaries: wider than two_stage, and refined where neighbouring cells disagree.

Command:  topicjax run two_stage_map
Size:     800 trials, 2 programs for the coarse grid; then, in rounds, more trials at its boundaries, at half
          and a quarter of the spacing
Expect:   the boundaries that two_stage only suggests, as fine as a grid of 17 x 17 per panel.
"""

from topicjax.sweep import chain, logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Figure 4", "Norms")
BASE = dict(until="decided", record_every=20)
REFINE = dict(axes=("learning_rate", "init_scale"), levels=2)
SGD, ADAM = product(optimizer="sgd", steps=4000), product(optimizer="adam", steps=2000)
PER_STREAM = chain(
    SGD * product(objective="cross_entropy", learning_rate=logspace(10, 160, 5)),
    SGD * product(objective="squared", learning_rate=logspace(3, 30, 3)),
    ADAM * product(objective="cross_entropy", learning_rate=logspace(2e-3, 3e-2, 4)),
    ADAM * product(objective="squared", learning_rate=logspace(5e-4, 1e-2, 4)),
)
SWEEP = (
    product(key_visibility=("all", "unmasked"), seed=range(5))
    * PER_STREAM
    * product(init_scale=logspace(1e-5, 0.3, 5))
)
