"""Does the initial distribution matter?  Normal, uniform on [0, s) (the released code), or a common default.

Command:  topicjax run init_law
Size:     100 trials, 2 programs, about 2 minutes on 2 cores
Expect:   hardly, even with the common default of linear layers.  SGD with cross-entropy is two-stage and
          topical under all three; SGD with squared loss stays V-only.  Two things change: under Adam with
          cross-entropy, how topical attention becomes; under Adam with squared loss from the default init,
          the class, on which the seeds disagree.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Initial distribution", "Section 8.1, defaults")
BASE = dict(key_visibility="unmasked", steps=1500, record_every=20)
SWEEP = (
    product(seed=range(5))
    * chain(
        product(optimizer="sgd", objective="cross_entropy", learning_rate=100.0),
        product(optimizer="adam", objective="cross_entropy", learning_rate=3e-3),
        product(optimizer="sgd", objective="squared", learning_rate=20.0),
        product(optimizer="adam", objective="squared", learning_rate=3e-3),
    )
    * chain(
        product(init=("normal", "uniform"), init_scale=(1e-3, 1e-2)),
        product(init="default", init_scale=1.0),
    )
)
