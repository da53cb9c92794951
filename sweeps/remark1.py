"""Remark 1: do the logits of cross-entropy grow without bound?  With and without L2.

Command:  topicjax run remark1
Size:     50 trials, 2 programs
Expect:   W^V under uniform attention, infinite documents of two topics: without L2 the norm of cross-entropy
          grows by the same amount with every doubling of the steps, at the rate of the largest margin; with
          L2 it settles at the norm that minimises eq. (2), and with squared loss it settles in any case.  The
          same holds for the norms of joint training on LDA documents, where the growth is slower: only
          [MASK] has probability 0 there.
Seen:     W^V alone as expected.  Joint norms do not show growth without end in this budget: at rate 20 they
          still rise, but by less with every doubling; at rate 50 the noise of the batches holds them, and
          that of W^K falls.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Remark 1",)
BASE = dict(topics=6, words_per_topic=6, optimizer="sgd", init_scale=1e-3)
STAGE1 = product(
    documents="tau", infinite_documents=True, attention="uniform", steps=25_600, record_every=100
)
JOINT = product(key_visibility="unmasked", steps=25_600, record_every=100, learning_rate=20.0)
SWEEP = product(seed=range(5)) * chain(
    STAGE1 * product(objective="cross_entropy", learning_rate=20.0, l2=(0.0, 1e-5, 1e-4, 1e-3)),
    STAGE1 * product(objective="squared", learning_rate=10.0, l2=(0.0, 1e-4, 1e-3)),
    JOINT * product(objective="cross_entropy", l2=(0.0, 1e-5, 1e-4)),
)
