"""Does context change the picture on content words only, where it can be learned within the steps?

Command:  topicjax corpus, then topicjax run wikipedia_content
Size:     18 trials, 1 program, 6 minutes on 2 cores
Expect:   context begins to be used: in 4 of 6 cells the loss passes the unigram line, at step 270 to 370, but
          only at rate 3e-3 from the usual init by more than its error (0.11 nats, standard error 0.03).
          Nine tenths of what attention adds there come from uniform attention.  Norms do not show when this
          happens: from near zero V leads in 6 of 12 layers (all of them at rate 3e-3, none at 1e-3), always
          with K and Q half way before the line is passed; from the usual init, where most is learned from
          context, norms grow by at most 25 %.
"""

from topicjax.sweep import chain, product

EXPERIMENT = "text"
CLAIMS = ("Context", "Figure 5")
BASE = dict(
    corpus="wikipedia_content", vocabulary_size=4096, unknown="left_out", context=64, positions=False,
    p_keep=0.0, p_random=0.0, layers=4, heads=4, width=64, mlp=128, output_projection=True,
    output_bias="trained", layer_norm="pre", optimizer="adam", batch_size=16, eval_windows=96,
    steps=400, record_every=10,
)  # fmt: skip
NEAR_ZERO = product(init="normal", init_scale=1e-3)
USUAL = product(init="default", init_scale=1.0)
SWEEP = product(seed=range(3), learning_rate=(3e-4, 1e-3, 3e-3)) * chain(NEAR_ZERO, USUAL)
