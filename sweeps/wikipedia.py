"""Does the paper's Figure 5, V first and then K and Q in every layer, appear on Wikipedia?

Command:  make corpus, then make sweep SWEEP=wikipedia
Size:     to be measured
Expect:   to be seen
"""

from topicjax.sweep import chain, product

EXPERIMENT = "text"
BASE = dict(
    corpus="wikipedia", vocabulary_size=4096, context=64, layers=4, heads=4, width=64, mlp=128,
    output_projection=True, output_bias="trained", layer_norm="pre", optimizer="adam",
    batch_size=16, eval_windows=48, steps=400, record_every=10,
)  # fmt: skip
NEAR_ZERO = product(init="normal", init_scale=1e-3)
USUAL = product(init="default", init_scale=1.0)
SWEEP = product(seed=range(3), learning_rate=(3e-4, 1e-3, 3e-3)) * chain(NEAR_ZERO, USUAL)
