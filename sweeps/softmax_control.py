"""Is it the softmax that makes two stages?  Attention that is linear in its scores, on the same documents

Command:  topicjax run softmax_control
Size:     380 trials, 10 programs, 4 minutes on 2 cores
Expect:   (written before the first run of this sweep, from a prototype with other rates; rates and steps were
          chosen with trials of one seed)  A key among n weighs as in softmax, or S/n (S only), (1 + S)/n, or
          (1 + S - mean S)/n (1 + S centred).  By norms it is the conserved uniform mass of attention, not the
          softmax, that makes two stages: under SGD with cross-entropy Theta by norms is at least .92 for
          softmax and 1 + S centred alike, .43 to .50 for S only, where |W^V|^2 - |W^K|^2 is constant until
          the escape, and .55 to .60 for 1 + S, where a mode that changes the mass grows.  S only leaves its
          saddle after 250 / (scale x learning rate) steps, the others after a time like ln(1 / scale); it is
          topic-blind first and topical later.  By the loss the answer depends on the baseline: for S only and
          1 + S nothing is two-stage against attention forced uniform, and all is against the scores of [MASK]
          for every query, which do not change if a factor moves between scores and values; for softmax and
          1 + S centred both baselines say two-stage.  SGD with squared loss stays V-only, except for S only,
          which learns nothing before it escapes.  Under Adam small init scales do not matter, and (seen with
          one seed) norms are not two-stage for any kind.
          (added after the first run) init scale 1e-5 for the kinds that keep a uniform part, so that scales
          span four decades; S only would need 1.2 million steps of SGD there.
Seen:     Theta by norms, SGD with cross-entropy, scales 1e-5 to 0.01: as expected 0.95 to 0.98 for softmax
          and 0.96 to 0.99 for 1 + S centred; 0.46 to 0.64 for S only and 0.61 to 0.70 for 1 + S are a little
          above the prediction. At scale 0.1 it fails: softmax has 0.88.
          S only changes |W^V|^2 - |W^K|^2 by at most 0.09 % until it escapes, after 222 / (scale x learning
          rate) steps (96 with squared loss); the other kinds gain the same time in each decade of scale.
          SGD with squared loss: softmax and 1 + S centred stay V-only, as expected, S only is compensated; 1
          + S begins stage 2 in 10 of 25 trials, against the prediction.
          The two baselines of the loss view are apart for S only and 1 + S in every setting, as expected.
          That both say two-stage for softmax and 1 + S centred fails under Adam: they are apart in 5 of 29
          settings, all with Adam.
          Adam: norms are two-stage for no kind, as expected (0.10 to 0.86).
"""

from topicjax.sweep import chain, product

EXPERIMENT = "one_layer"
CLAIMS = ("Softmax control, norms", "Softmax control, losses", "Softmax control, escape")
BASE = dict(
    topics=6,
    words_per_topic=6,
    key_visibility="unmasked",
    mask_query_loss=True,
    record_every=5,
    records_per_decade=200,
)
KINDS = ("softmax", "one_plus_centred", "one_plus_scores", "scores_only")
SCALES = (1e-4, 1e-3, 1e-2, 1e-1)
SGD = chain(  # one rate for all kinds; at 100 softmax with cross-entropy does not settle
    product(optimizer="sgd", objective="cross_entropy", learning_rate=30.0),
    product(optimizer="sgd", objective="squared", learning_rate=12.0),
)
ADAM = product(optimizer="adam", objective=("cross_entropy", "squared"), learning_rate=3e-3)
UNTIL_ESCAPE = chain(  # of S only
    product(init_scale=1e-4, steps=120_000),
    product(init_scale=1e-3, steps=14_000),
    product(init_scale=(1e-2, 1e-1), steps=3000),
)
SMALLEST = product(attention_weights=KINDS[:3], init_scale=1e-5)
SWEEP = chain(
    product(seed=range(5))
    * chain(
        SGD * product(attention_weights=KINDS[:3], init_scale=SCALES, steps=3000),
        SGD * product(attention_weights="scores_only") * UNTIL_ESCAPE,
        ADAM * product(attention_weights=KINDS, init_scale=SCALES, steps=1500),
    ),
    product(seed=range(5)) * chain(SGD * product(steps=3000), ADAM * product(steps=1500)) * SMALLEST,
)
