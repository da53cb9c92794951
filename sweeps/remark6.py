"""Remark 6: attention trained with W^V frozen at optima of stage 1 other than Theorem 2's.

Command:  topicjax run remark6
Size:     40 trials, 1 program, about 1 minute on 2 cores
Expect:   all are optimal under uniform attention, yet attention depends on which one it is.  Uniform blocks
          with another u: alpha' 7.9, 7.2, 6.5 for u = 0, Theorem 2's, and minus that.  As soon as the word
          itself has an extra share, words attend to themselves (beta 66 to 840) and less to other words
          of their topic than to other topics (alpha 0.45 to 0.81): a lower loss, by copying.  For the
          diagonal, alpha' is still 7.3 to 7.6.  Random members keep alpha above 1.  Batches as in theorem3.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Remark 6", "Lemma 1")
BASE = dict(
    value="blocks",
    documents="tau",
    topics_per_document=3,
    infinite_documents=True,
    objective="squared",
    learning_rate=3e-3,
    batch_size=10,
    eval_documents=20,
    steps=1500,
    record_every=50,
)
SWEEP = product(seed=range(5)) * chain(
    product(value_shift=(0.0, 1.0, 2.0)),
    product(value_own=(0.1, 1.0)),
    product(value_shift=1.0, value_own=1.0),
    product(value_random=(0.3, 1.0)),
)
