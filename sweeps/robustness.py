"""Does the two-stage phenomenon survive other documents?  One property at a time around the textbook case.

Command:  topicjax run robustness
Size:     130 trials, 5 programs, under 5 minutes on 2 cores; trials end once decided
Expect:   it survives more masking, shorter documents, fewer topics and words, and alpha 0.03, where a
          learning rate of 50 is too small for 3,000 steps.  With p_keep 0.03 attention does not get far in
          these steps at either rate.  If topics share words it is still two-stage, but attention first gains
          by turning away from the shared words, before it becomes topical.  With Zipf or Dirichlet words it
          is lost: attention moves together with W^V, by word and not by topic, and at a learning rate of 160
          training no longer settles.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Other documents",)
BASE = dict(
    optimizer="sgd",
    objective="cross_entropy",
    key_visibility="unmasked",
    init_scale=1e-3,
    steps=3000,
    until="decided",
    record_every=20,
)
ONE_AT_A_TIME = chain(
    product(overlap=(0.0, 0.2, 0.5)),
    product(alpha=0.03),
    product(length_min=25, length_max=38),
    product(p_mask=0.25),
    product(p_keep=(0.03, 0.25)),
    product(p_random=0.25),
    product(topics=5),
    product(words_per_topic=5),
    product(word_distribution=("zipf", "dirichlet")),
)
SWEEP = product(seed=range(5)) * ONE_AT_A_TIME * product(learning_rate=(50.0, 160.0))
