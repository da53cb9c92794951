"""Theorem 3's limit: does alpha' approach tau / ((1 - p_c) p_m) as the number of topics grows?

Command:  topicjax run theorem3_limit
Size:     11 trials, 4 programs, most of the work for 80 topics
Expect:   (predicted before any training) alpha' is about 7.5, 12, 21, 36 for 10, 20, 40, 80 topics and
          3, 4, 6, 9 of them per document: trained attention follows the optimum, 0.3 to 0.5 of the limit.
          Theory says why the limit is far: 1 / alpha' is about (1 - p_c) p_m / tau + 1 / T, so T must be much
          larger than 7.4 tau.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Theorem 3, limit",)
BASE = dict(
    words_per_topic=6,  # Assumption 3 asks for more than 5.6
    documents="tau",
    infinite_documents=True,
    objective="squared",
    value="blocks",
    learning_rate=3e-3,
    batch_size=5,
    eval_documents=5,
    steps=1000,
    record_every=50,
)
SWEEP = chain(
    product(seed=range(3), topics=10, topics_per_document=3),
    product(seed=range(3), topics=20, topics_per_document=4),
    product(seed=range(3), topics=40, topics_per_document=6),
    product(seed=range(2), topics=80, topics_per_document=9),
)
