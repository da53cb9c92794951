"""Do all layers of a deeper model learn in two stages, like the one-layer model?

Command:  make sweep SWEEP=depth
Size:     540 trials, 15 programs, 14 minutes on 2 cores
Expect:   with residual connections, without layer norm and with Adam the model as a whole is two-stage in
          every trial of 4 layers x 4 heads, with or without W^O.  An MLP delays the second stage (half of
          the trials get there), and with layer norms V mostly just leads (7 of 40 trials are two-stage).
          Layer by layer it rarely holds: V moves in all layers at once, then the attention of the first
          layers adds almost the whole gain, that of the last ones next to nothing within these steps.
          Attention leaves uniform in the last layer first without layer norms, in the first layer with them.
          Embeddings are closer within a topic everywhere.  Attention favours its own topic in one layer
          without residual connections (medians: Adam 2.0, SGD 1.5 to 1); in 4 layers with them it turns
          against it (medians from 0.66 in layers 1 and 2 to 0.91 in layer 4; uniform has 0.96).
"""

from topicjax.sweep import chain, product

EXPERIMENT = "encoder"
CLAIMS = ("Every layer", "Whole model", "Attention by layer")
BASE = dict(key_visibility="unmasked", width=32, batch_size=8, eval_documents=24, steps=600, record_every=25)
STARTS = chain(product(init="normal", init_scale=1e-3), product(init="default", init_scale=1.0))
NORMS = product(layer_norm=("none", "pre"))
SGD, ADAM = product(optimizer="sgd", learning_rate=1.0), product(optimizer="adam", learning_rate=3e-3)
BARE = product(layers=(1, 2, 4), heads=(1, 4)) * chain(SGD, ADAM) * product(residual=(True, False))
PARTS = (
    product(layers=4, heads=4, residual=True) * ADAM * product(mlp=(0, 128), output_projection=(False, True))
)
SWEEP = product(seed=range(5)) * chain(BARE, PARTS) * NORMS * STARTS
