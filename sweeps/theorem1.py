"""Theorem 1: embeddings trained alone, W^V = I and uniform attention, beside models in which all is trained.

Command:  make sweep SWEEP=theorem1
Size:     120 trials, 5 programs, about 2 minutes on 2 cores
Expect:   to be seen.
"""

from topicjax.sweep import chain, product

BASE = dict(embedding="trained", steps=1500, record_every=50)
SCALES = product(embedding_scale=(0.1, 1.0))
SQUARED, ENTROPY = product(objective="squared"), product(objective="cross_entropy")
EMBEDDINGS = product(value="identity", attention="uniform", optimizer="sgd", learning_rate=1.0) * SCALES
ALL = SCALES * product(
    output_bias="trained", attention_biases="trained", init_scale=0.02, optimizer="adam", learning_rate=1e-3
)
INFINITE = product(documents="tau", infinite_documents=True)
FINITE = product(key_visibility=("all", "unmasked"))
SWEEP = product(seed=range(5)) * chain(
    INFINITE * EMBEDDINGS * chain(SQUARED * product(output_bias=("zero", "theorem1")), ENTROPY),
    FINITE * chain(SQUARED, ENTROPY) * chain(EMBEDDINGS, ALL),
    EMBEDDINGS * SQUARED * product(output_bias="theorem1"),
)
