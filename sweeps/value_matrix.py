"""Figure 2: does W^V learn one block per topic?  One-hot embeddings, uniform attention, with and without L2.

Command:  topicjax run value_matrix
Size:     64 trials, 4 programs, about 2 minutes on 2 cores
Expect:   blocks in all four combinations; with squared loss Theorem 2's matrix on infinite documents, and on
          finite ones their optimum, which differs from it only in its diagonal (a kept word is evidence for
          itself).
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Figure 2", "Theorem 2")
BASE = dict(attention="uniform", init_scale=1e-3, batch_size=100, steps=12_000, record_every=100)
FINITE = product(seed=range(5), l2=(0.0, 1e-5)) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=100.0),
    product(optimizer="adam", objective="cross_entropy", learning_rate=3e-3),
    product(optimizer="sgd", objective="squared", learning_rate=5.0),
    product(optimizer="adam", objective="squared", learning_rate=1e-4),
)
INFINITE = (
    product(documents="tau", infinite_documents=True, topics_per_document=(2, 3), init_scale=1e-4)
    * product(seed=range(3), l2=(0.0, 1e-5), objective="squared", batch_size=20, steps=2000)
    * chain(product(optimizer="sgd", learning_rate=5.0), product(optimizer="adam", learning_rate=3e-4))
)
SWEEP = chain(FINITE, INFINITE)
