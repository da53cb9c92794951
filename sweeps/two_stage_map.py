"""A dense two-stage map, for an accelerator or a night on many cores.

Command:  make sweep SWEEP=two_stage_map
Size:     12,480 trials, 2 programs, 50 million trial-steps; make plan SWEEP=two_stage_map says how long
Expect:   the borders of the regions that two_stage only suggests, with the spread over ten seeds.
"""

from topicjax.sweep import chain, logspace, product

BASE = dict(steps=4000, record_every=40)
PER_STREAM = chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=logspace(3, 300, 12)),
    product(optimizer="sgd", objective="squared", learning_rate=logspace(0.3, 30, 12)),
    product(
        optimizer="adam",
        objective=("cross_entropy", "squared"),
        learning_rate=logspace(1e-4, 3e-2, 12),
    ),
)
SWEEP = (
    product(seed=range(10), key_visibility=("all", "unmasked"))
    * PER_STREAM
    * product(init_scale=logspace(1e-5, 3e-1, 13))
)
