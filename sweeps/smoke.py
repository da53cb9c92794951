"""Does everything work?  A tiny vocabulary and a few steps.

Command:  topicjax run smoke
Size:     16 trials, 2 programs, under a minute on 2 cores (most of it compiling, once)
Expect:   every file of a real run; the numbers mean nothing.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
BASE = dict(
    topics=4,
    words_per_topic=3,
    length_min=20,
    length_max=30,
    batch_size=8,
    eval_documents=16,
    steps=100,
    record_every=10,
)
SWEEP = product(seed=range(2), objective=("cross_entropy", "squared")) * chain(
    product(optimizer="sgd", learning_rate=(0.3, 1.0)),
    product(optimizer="adam", learning_rate=(1e-3, 1e-2)),
)
