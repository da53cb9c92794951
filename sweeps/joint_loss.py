"""Section 5.2: how much lower is the loss of W^K, W^Q and W^V trained together than that of W^V alone?

Command:  topicjax run joint_loss
Size:     150 trials, 8 programs, under 5 minutes on 2 cores
Expect:   not always "only slightly".  In units of what topical attention can gain (stage 1 - stage 2): with
          SGD and cross-entropy 0.9 with unmasked keys and 1.9 with all keys; with Adam and squared loss 2 and
          8 to 9, still falling, by copying; with SGD and squared loss next to nothing within these steps.
          With Adam and cross-entropy it depends on the rate.  At 0.002, where W^V alone has converged, joint
          training is lower by 0.6 with unmasked keys but ends above W^V alone, by 0.8, with all keys.  At
          0.001, where neither has converged, it is ahead by 0.9 to 1.1.  b^K, b^Q and b^V change little.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Section 5.2",)
BASE = dict(init_scale=1e-3, steps=4000, record_every=40)
ABSENT = product(attention_biases="absent", key_visibility=("unmasked", "all"))
TRAINED = product(attention_biases="trained", key_visibility="all")  # as in the paper's experiments
SWEEP = product(seed=range(5), attention=("trained", "uniform")) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=50.0) * chain(ABSENT, TRAINED),
    product(optimizer="adam", objective="cross_entropy", learning_rate=(1e-3, 2e-3)) * chain(ABSENT, TRAINED),
    product(optimizer="sgd", objective="squared", learning_rate=20.0) * ABSENT,
    product(optimizer="sgd", objective="squared", learning_rate=0.5) * TRAINED,
    product(optimizer="adam", objective="squared", learning_rate=1e-3) * chain(ABSENT, TRAINED),
)
