"""Does the two-stage phenomenon survive other documents?  One property at a time around the textbook case.

Command:  make sweep SWEEP=robustness
Size:     285 trials, 7 programs
Expect:   .
"""

from topicjax.sweep import chain, product, zipped

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
    product(alpha=(0.03, 0.5)),
    zipped(length_min=(25, 50), length_max=(38, 75)),
    product(p_mask=(0.05, 0.25)),
    product(p_keep=(0.03, 0.25)),
    product(p_random=(0.0, 0.25)),
    product(topics=(5, 15)),
    product(words_per_topic=(5, 15)),
    product(word_distribution=("zipf", "dirichlet")),
)
SWEEP = product(seed=range(5)) * ONE_AT_A_TIME * product(learning_rate=(50.0, 90.0, 160.0))
