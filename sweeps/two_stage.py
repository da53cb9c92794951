"""Where does the two-stage phenomenon hold?

Command:  make sweep SWEEP=two_stage
Size:     384 trials, 2 programs, about 3 minutes on 2 cores
Expect:   only in part of the map W^V grows first and W^K, W^Q later.  With SGD the class depends on the
          learning rate and on which positions are keys, with Adam on the loss and, for unmasked keys, on the
          init scale.  Look at a_topic beside the norms: W^K and W^Q also grow without topical attention.
"""

from topicjax.sweep import chain, logspace, product

BASE = dict(steps=1000, record_every=20)
PER_STREAM = chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=logspace(10, 300, 4)),
    product(optimizer="sgd", objective="squared", learning_rate=logspace(1, 30, 4)),
    product(optimizer="adam", objective="cross_entropy", learning_rate=logspace(1e-3, 3e-2, 4)),
    product(optimizer="adam", objective="squared", learning_rate=logspace(3e-4, 1e-2, 4)),
)
SWEEP = (
    product(seed=range(3), key_visibility=("all", "unmasked"))
    * PER_STREAM
    * product(init_scale=logspace(1e-4, 1e-1, 4))
)
