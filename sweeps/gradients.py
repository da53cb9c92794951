"""Is the first gradient of W^V larger than those of W^K and W^Q?  (section 8.1)

Command:  topicjax run gradients
Size:     280 trials, 1 program, mostly its compilation; a trial takes ten tiny steps
Expect:   |dL/dW^V| / |dL/dW^K| = C / (init scale)^2 up to a scale of about 0.1: C is 0.6 to 1.3 for normal
          starts, and 7 (16 for W^Q) for uniform ones.  The paper's reason, W^Q near zero, accounts for one
          factor 1 / scale; W^V near zero is the other.  Above a scale of about 1 the order is reversed.
"""

from topicjax.sweep import logspace, product

EXPERIMENT = "one_layer"
CLAIMS = ("Section 8.1, gradients",)
BASE = dict(optimizer="sgd", learning_rate=1e-6, steps=10, record_every=10)
SWEEP = product(key_visibility=("all", "unmasked"), seed=range(5)) * product(
    objective=("cross_entropy", "squared"), init=("normal", "uniform"), init_scale=logspace(1e-5, 10, 7)
)
