"""Theorem 3: attention trained on infinite documents of 2, 3, 4 topics; W^V at Theorem 2, or trained as well.

Command:  topicjax run theorem3
Size:     30 trials, 2 programs, about 1 minute on 2 cores
Expect:   with W^V frozen, alpha' is 5.86, 7.25, 8.11, within 0.2 % of the best attention, and far inside
          Theorem 3's interval, whose ends are 0.6 to 1.7 and 59,000.  The best of Assumption 2's kind has
          5.76, 7.01, 7.72 and a higher loss: words weigh [MASK] by 1.34, 1.42, 1.50, not by 1.  With W^V
          trained too, alpha' is 21 to 31, also inside, and the loss is lower than with Theorem 2's W^V.
          A batch is 10 sets of topics, drawn at random from all 45, 120 or 210; losses in the report are
          exact over all sets, for the final weights.
"""

from topicjax.sweep import product

EXPERIMENT = "one_layer"
CLAIMS = ("Theorem 3", "Theorem 3, W^V trained", "Assumption 2")
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
