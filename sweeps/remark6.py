"""Remark 6: attention trained with W^V frozen to other optima of stage 1 than Theorem 2's.

Command:  make sweep SWEEP=remark6
Size:     40 trials, 1 program, about 2 minutes on 2 cores
Expect:   to be seen.
"""

from topicjax.sweep import chain, product

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
