"""Does it matter which positions are keys?  All of them (eq. 5), or only unmasked ones (the released code).

Command:  topicjax run key_visibility
Size:     80 trials, 2 programs, about 2 minutes on 2 cores
Expect:   it does.  With SGD, cross-entropy and learning rate 100, training is two-stage with unmasked keys;
          with all keys attention moves together with W^V (simultaneous), away from the [MASK] key (a_mask),
          though it ends up topical as well.  At learning rate 30 neither becomes topical within these
          steps.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Keys", "Figure 4")
BASE = dict(init_scale=1e-3, steps=2000, record_every=20)
SWEEP = product(key_visibility=("all", "unmasked"), seed=range(5)) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=(30.0, 100.0)),
    product(optimizer="adam", objective="cross_entropy", learning_rate=(1e-3, 3e-3)),
    product(optimizer="sgd", objective="squared", learning_rate=(10.0, 30.0)),
    product(optimizer="adam", objective="squared", learning_rate=(1e-3, 3e-3)),
)
