"""Section 5.2: how much lower is the loss of W^K, W^Q and W^V trained together than that of W^V alone?

Command:  make sweep SWEEP=joint_loss
Size:     80 trials, 8 programs
Expect:   .
"""

from topicjax.sweep import chain, product

BASE = dict(init_scale=1e-3, steps=4000, record_every=40)
SWEEP = product(key_visibility=("unmasked", "all"), seed=range(5), attention=("trained", "uniform")) * chain(
    product(optimizer="sgd", objective="cross_entropy", learning_rate=100.0)
    * product(attention_biases=("absent", "trained")),
    product(optimizer="adam", objective="cross_entropy", learning_rate=3e-3)
    * product(attention_biases=("absent", "trained")),
    product(optimizer="adam", objective="squared", learning_rate=1e-3)
    * product(attention_biases=("absent", "trained")),
    product(optimizer="sgd", objective="squared", learning_rate=20.0, attention_biases="absent"),
    product(optimizer="sgd", objective="squared", learning_rate=0.5, attention_biases="trained"),
)
