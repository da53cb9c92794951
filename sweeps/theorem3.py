"""Theorem 3: attention trained, W^V frozen to Theorem 2's blocks, on infinite documents of 2, 3 and 4 topics.

Command:  make sweep SWEEP=theorem3
Size:     30 trials, 2 programs, about 2 minutes on 2 cores
Expect:   to be seen.
"""

from topicjax.sweep import product

BASE = dict(
    documents="tau",
    infinite_documents=True,
    objective="squared",
    learning_rate=3e-3,
    batch_size=10,
    eval_documents=20,
    steps=1500,
    record_every=50,
)
SWEEP = product(seed=range(5), topics_per_document=(2, 3, 4), value=("blocks", "trained"))
