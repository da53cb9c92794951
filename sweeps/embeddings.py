"""Figure 1: do trained embeddings encode the topics?  All parts are trained, with a tied head and all biases.

Command:  topicjax run embeddings
Size:     20 trials, 2 programs, about 1 minute on 2 cores
Expect:   W_E^T W_E is larger within a topic than between topics (e_block above 0) in all four combinations:
          clear blocks with cross-entropy, faint ones with squared loss, where words learn to copy under Adam.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Figure 1",)
BASE = dict(
    embedding="trained",
    output_bias="trained",
    attention_biases="trained",
    key_visibility="unmasked",
    init_scale=0.02,
    steps=2000,
    record_every=40,
)
SWEEP = product(seed=range(5)) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=1.0),
    product(optimizer="adam", objective="cross_entropy", learning_rate=3e-3),
    product(optimizer="sgd", objective="squared", learning_rate=0.3),
    product(optimizer="adam", objective="squared", learning_rate=3e-3),
)
