"""Does the local learning coefficient step where the two stages do?

Command:  topicjax run learning_coefficient
          then: topicjax measure results/learning_coefficient learning_coefficient
Size:     6 trials, 2 programs, half a minute on 2 cores; measuring takes as long
Expect:   (written before the run) `llc` rises twice where attention is trained: with stage 1, as W^V
          becomes constrained (P goes to 1), and again with stage 2, as W^K and W^Q leave the saddle (Q goes
          to 1); in the plateau between, W^K and W^Q are free and add little.  In the control, whose attention
          is uniform, it rises once and stays at the height of the others' plateau, within errors.
Seen:     With stage 1: not known. Before step 55 most draws lie below the snapshot's own loss, and there is
          no coefficient; the cut, half of the draws, was chosen after a look.
          With stage 2: undecided. It rises from 9.6 on the plateau to 21.8 as stage 2 ends (step 620), in 3
          of 3 trials. But the plateau is a saddle: 27 % of the draws lie below its loss, so 9.6 is too low;
          and 21.8 is hardly above the control, whose 18.4 at that step it exceeds for sure in 1 trial only.
          That W^K and W^Q add little on the plateau cannot be told from a saddle.
          The control: its rise with stage 1 is not known for the same reason. It stays at 18 to 20, which is
          not the height of the others' plateau, against the prediction.
          Not predicted: 52 at the end of training with attention, as W^V goes on growing.
          All at n beta 1000 and gamma 1. At gamma 10 (docs/llc_scan.py) nothing rises with stage 2: 3.5 on
          the plateau, 2.2 as stage 2 ends, 6.7 at the end of training.
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
