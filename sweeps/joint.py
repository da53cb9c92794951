"""Figure 10 and Table 3: W^K, W^Q and W^V trained together, without the biases of the paper's experiments.

Command:  topicjax run joint
Size:     40 trials, 2 programs, about 2 minutes on 2 cores
Expect:   blocks in W^V and, where attention becomes topical (a_topic above 0), more attention to the same
          topic than to others; with SGD and squared loss it does not within these steps.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Table 3", "Figure 10", "Figure 4")
BASE = dict(init_scale=1e-3, steps=4000, record_every=40)
SWEEP = product(key_visibility=("unmasked", "all"), seed=range(5)) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=30.0),
    product(optimizer="adam", objective="cross_entropy", learning_rate=3e-3),
    product(optimizer="sgd", objective="squared", learning_rate=20.0),
    product(optimizer="adam", objective="squared", learning_rate=3e-3),
)
