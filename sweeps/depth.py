"""Do all layers of a deeper model learn in two stages, like the one?

Command:  make sweep SWEEP=depth
Size:     540 trials, 15 programs, about 12 minutes on 2 cores
Expect:   see the page: which layers have a first and a second stage, in which order they start, and which of
          residual connections, layer norms, MLP and W^O removes the stages.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "encoder"
BASE = dict(key_visibility="unmasked", width=32, eval_documents=24, steps=600, record_every=25)
STARTS = chain(product(init="normal", init_scale=1e-3), product(init="default", init_scale=1.0))
NORMS = product(layer_norm=("none", "pre"))
SGD, ADAM = product(optimizer="sgd", learning_rate=1.0), product(optimizer="adam", learning_rate=3e-3)
BARE = product(layers=(1, 2, 4), heads=(1, 4)) * chain(SGD, ADAM) * product(residual=(True, False))
PARTS = (
    product(layers=4, heads=4, residual=True) * ADAM * product(mlp=(0, 128), output_projection=(False, True))
)
SWEEP = product(seed=range(5)) * chain(BARE, PARTS) * NORMS * STARTS
