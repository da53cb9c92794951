"""Where does the two-stage phenomenon hold?

Command:  topicjax run two_stage
Size:     480 trials, 2 programs, about 4 minutes on 2 cores; a trial ends once its class can no longer change
Expect:   W^V grows first in only part of the map, and W^K, W^Q later.  SGD gives the textbook case if only
          unmasked positions are keys and the learning rate is large enough for the steps; with Adam it
          depends on the loss and the init scale.  Compare a_topic with the norms: W^K and W^Q also grow
          without topical attention.
"""

from topicjax.sweep import chain, logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Figure 4", "Norms", "Section 8.1, rotation")
BASE = dict(until="decided", record_every=20)
SGD, ADAM = product(optimizer="sgd", steps=3000), product(optimizer="adam", steps=1500)
PER_STREAM = chain(
    SGD * product(objective="cross_entropy", learning_rate=logspace(25, 100, 4)),
    SGD * product(objective="squared", learning_rate=(10, 30)),
    ADAM * product(objective="cross_entropy", learning_rate=logspace(3e-3, 3e-2, 3)),
    ADAM * product(objective="squared", learning_rate=logspace(1e-3, 1e-2, 3)),
)
SWEEP = (
    product(key_visibility=("all", "unmasked"), seed=range(5))
    * PER_STREAM
    * product(init_scale=logspace(1e-4, 1e-1, 4))
)
