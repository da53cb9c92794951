"""Theorem 1: embeddings trained alone, W^V = I and uniform attention, compared with fully trained models.

Command:  topicjax run theorem1
Size:     120 trials, 5 programs, about 2 minutes on 2 cores
Expect:   on infinite documents W_E^T W_E satisfies the equations of Theorem 1 to a relative residual of 5e-6
          (1: as far as a matrix of zeros), with its bias or without any (then Lemma 1's), at the best loss of
          uniform attention.  From small embeddings topics are uniform blocks (e_block 0.115); from large
          ones most of a topic's sum stays on the diagonal (0.022).  On finite documents the residual is 0.09
          to 0.11.  Same-topic dot products are larger under both losses.  Embeddings alone reach
          96 % of the gain of models with all parts trained under cross-entropy; under the squared loss 96 %
          from small embeddings, but 61 % (keys all) and 76 % (unmasked) from large ones, where trained
          attention learns to copy words.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Theorem 1", "Lemma 1", "Section 4")
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
