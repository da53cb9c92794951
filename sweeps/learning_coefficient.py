"""Does the local learning coefficient step where the two stages do?

Command:  topicjax run learning_coefficient
          then: topicjax measure results/learning_coefficient learning_coefficient
Size:     6 trials, 2 programs, half a minute on 2 cores; measuring takes as long
Expect:   (written before the run) `llc` rises twice where attention is trained: with stage 1, as W^V
          becomes constrained (P goes to 1), and again with stage 2, as W^K and W^Q leave the saddle (Q goes
          to 1); in the plateau between, W^K and W^Q are free and add little.  In the control, whose attention
          is uniform, it rises once and stays at the height of the others' plateau, within errors.
Seen:     12 on the plateau (step 90), 20 as stage 2 ends (step 620), 52 at the end, as W^V goes on growing;
          it stays at 19 under uniform attention.  So it steps with stage 2 in 3 of 3 trials, but the plateau
          is lower than the control, against the prediction: it is a saddle, and a quarter of the draws lie
          below its loss.  Before step 55 no snapshot is near a minimum, and there is no coefficient.  Its
          height depends on gamma (1 here); the step is what to look at.
"""

from topicjax.sweep import product

EXPERIMENT = "one_layer"
CLAIMS = ("Learning coefficient",)
SNAPSHOTS = "log:12"
BASE = dict(
    topics=6,
    words_per_topic=6,
    optimizer="sgd",
    objective="cross_entropy",
    key_visibility="unmasked",
    learning_rate=97,
    init_scale=1e-3,
    steps=1000,
    record_every=5,
)
SWEEP = product(attention=("trained", "uniform"), seed=range(3))
