"""Section 5.2: how much lower is the loss of W^K, W^Q and W^V trained together than that of W^V alone?

Command:  make sweep SWEEP=joint_loss
Size:     120 trials, 8 programs
Expect:   .
"""

from topicjax.sweep import chain, product

BASE = dict(init_scale=1e-3, steps=4000, record_every=40)
ABSENT = product(attention_biases="absent", key_visibility=("unmasked", "all"))
TRAINED = product(attention_biases="trained", key_visibility="all")  # as in the paper's experiments
SWEEP = product(seed=range(5), attention=("trained", "uniform")) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=50.0) * chain(ABSENT, TRAINED),
    product(optimizer="adam", objective="cross_entropy", learning_rate=2e-3) * chain(ABSENT, TRAINED),
    product(optimizer="sgd", objective="squared", learning_rate=20.0) * ABSENT,
    product(optimizer="sgd", objective="squared", learning_rate=0.5) * TRAINED,
    product(optimizer="adam", objective="squared", learning_rate=1e-3) * chain(ABSENT, TRAINED),
)
