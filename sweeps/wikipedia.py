"""Does the paper's Figure 5, V first and then K and Q in every layer, appear on Wikipedia?

Command:  make corpus, then make sweep SWEEP=wikipedia
Size:     18 trials, 1 program, 8 minutes on 2 cores
Expect:   only in part.  From near zero V is half way up by step 15 to 25 in layers 2 to 4, K and Q by step 30
          to 95, so V leads at every rate, but K and Q have made a fifth to a quarter of their rise by then;
          in layer 1 V and K, Q rise together.  From the usual init norms hardly change.  All of this is
          over before context is used: after 400 steps the loss is 0.07 to 0.10 nats (standard error 0.02 to
          0.03) above the unigram line in every cell, and attention, trained or uniform, adds 0.00 to 0.07.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "text"
CLAIMS = ("Figure 5", "Context")
BASE = dict(
    corpus="wikipedia", vocabulary_size=4096, context=64, layers=4, heads=4, width=64, mlp=128,
    output_projection=True, output_bias="trained", layer_norm="pre", optimizer="adam",
    batch_size=16, eval_windows=96, steps=400, record_every=10,
)  # fmt: skip
NEAR_ZERO = product(init="normal", init_scale=1e-3)
USUAL = product(init="default", init_scale=1.0)
SWEEP = product(seed=range(3), learning_rate=(3e-4, 1e-3, 3e-3)) * chain(NEAR_ZERO, USUAL)
