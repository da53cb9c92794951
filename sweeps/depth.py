"""Do all layers of a deeper model learn in two stages, like the one-layer model?

Command:  topicjax run depth
Size:     270 trials, 9 programs, 8 minutes on 2 cores
Expect:   (written before the run, from an independent program on other seeds) as a whole, models that start
          near zero are two-stage whatever their layer norms: Θ near 0.99 without, 0.94 with them before,
          0.92 after each part; from the usual start it holds without layer norms, and less with post-norm.
          Single layers: V moves in all of them at once; the attention of the first layers adds most of the
          gain.
Seen:     as a whole two-stage in 15 of 39 cells of several layers, undecided in 14, V-only in 10.  Where the
          model without layer norms is two-stage (median Θ 0.99), so are 4 of 7 with them before each part
          (0.95, 3 undecided) and 1 of 7 with them after (0.92, 6 undecided), none surely not: norms blur the
          stages, they do not remove them.  Every layer is two-stage in 1 of 36 cells.  Attention turns away
          from a word's own topic, also that of [MASK]: it rises in 0 of 120 layers and falls in 60, and just
          so without kept and random words.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "encoder"
CLAIMS = ("Whole model", "Layer norm", "Every layer", "Attention by layer")
BASE = dict(
    **dict(key_visibility="unmasked", heads=4, width=32, batch_size=8, eval_documents=24),
    **dict(steps=1200, record_every=40),
)
NEAR_ZERO, USUAL = product(init="normal", init_scale=1e-3), product(init="default", init_scale=1.0)
SGD, ADAM = product(optimizer="sgd", learning_rate=1.0), product(optimizer="adam", learning_rate=3e-3)
NORMS = product(layer_norm=("none", "pre", "post"))
DEPTHS = product(layers=(1, 2, 4), residual=True) * chain(SGD, ADAM) * NORMS * chain(NEAR_ZERO, USUAL)
BARE = product(layers=(1, 2, 4), residual=False, layer_norm="none") * ADAM * chain(NEAR_ZERO, USUAL)
# One thing changed at a time in 4 layers: parts of a real encoder, no kept or random words, batch, width.
OTHERS = product(layers=4, residual=True) * ADAM * NORMS * NEAR_ZERO
CHANGED = chain(
    OTHERS * product(mlp=128, output_projection=True),
    OTHERS * product(p_keep=0.0, p_random=0.0),
    OTHERS * product(batch_size=32),
    OTHERS * product(width=64),
)
SWEEP = product(seed=range(5, 10)) * chain(DEPTHS, BARE, CHANGED)
