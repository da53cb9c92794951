"""Scores of the layers of deeper models: every number by construction, and the adversaries of SCIENCE."""

import numpy as np
import pandas as pd
import pytest
from support.layer_runs import EARLY, LATE, model, run_of
from support.synthetic_runs import STEP, ramp

from topicjax.analysis.encoder.scores import LAYER_CLASSES, layer_cells, models, rank_order, score_layers
from topicjax.analysis.layers import LEAVES_UNIFORM, telling_settings
from topicjax.pace import Gap
from topicjax.store.files import StoreError

TWO_STAGE = (0.6 * EARLY, 0.1 * LATE)
NOISE = np.random.default_rng(0).normal(size=len(STEP))


def scores_of(*made, **options):
    return score_layers(run_of(*made, **options))


def classes(*made, **options):
    return scores_of(*made, **options)["class"].tolist()


def test_two_layers_that_learn_v_first_are_two_stage_each_and_together():
    scores = scores_of(model([TWO_STAGE, (0.6 * EARLY, 0.2 * ramp(500, 900))]))
    assert scores["part"].tolist() == ["all layers", "layer 1", "layer 2"]
    assert scores["layer"].tolist() == [0, 1, 2]
    assert scores["class"].tolist() == ["two-stage"] * 3
    assert scores["theta"].to_numpy() == pytest.approx(1.0)
    assert scores["onset_v"].to_numpy() == pytest.approx(50)
    assert scores["onset_attention"].tolist()[1:] == pytest.approx([500, 700])
    assert scores["max_p"].tolist() == pytest.approx([1.2, 0.6, 0.6])
    assert scores["max_q"].tolist() == pytest.approx([0.3, 0.1, 0.2])


def test_theta_is_where_the_two_rises_cross():
    """F_V = t / 500 and F_A = (t - 100) / 500 cross at F_V = 1 - F_A = 0.6."""
    P, Q = 1.2 * ramp(0, 500), 0.2 * ramp(100, 600)
    (whole, layer) = scores_of(model([(P, Q)])).to_dict("records")
    assert whole["theta"] == pytest.approx(0.6) and layer["theta"] == pytest.approx(0.6)
    assert whole["theta_reversed"] == pytest.approx(0.4) and whole["class"] == "simultaneous"
    shifted = scores_of(model([(P, 0.2 * ramp(300, 800))])).iloc[0]
    assert shifted["theta"] == pytest.approx(0.8) and shifted["class"] == "V leads"


def test_roles_may_be_swapped_between_layers():
    """One layer has values only, the other attention only: neither has two stages, the model has."""
    kinds = classes(model([(1.2 * EARLY, 0.0), (0.0, 0.2 * LATE)]))
    assert kinds == ["two-stage", "V-only", "attention-only"]


def test_attention_first_is_reversed_and_a_little_first_leads():
    late, early = 1.2 * ramp(500, 900), 0.2 * EARLY
    scores = scores_of(model([(late, early)]), model([(1.2 * ramp(100, 600), 0.2 * ramp(0, 300))]))
    assert scores["class"].tolist() == ["reversed"] * 2 + ["attention leads"] * 2
    assert scores["theta"].iloc[0] == pytest.approx(0.0) and scores["theta_reversed"].iloc[
        0
    ] == pytest.approx(1)


def test_noise_of_attention_is_no_second_stage():
    noisy = (0.6 * EARLY, 0.015 * NOISE)
    assert classes(model([TWO_STAGE, noisy])) == ["two-stage", "two-stage", "V-only"]
    late = np.where(STEP[-1] == STEP, 0.01, 0.0)  # twice the cut, in the last record alone
    assert classes(model([TWO_STAGE, (0.6 * EARLY, late)]))[2] == "V-only"


@pytest.mark.parametrize(("error", "kind"), [(0.03, "two-stage"), (0.035, "V-only")])
def test_a_gain_within_three_standard_errors_of_its_documents_is_none(error, kind):
    """Q of the whole is 0.1: 3 x 0.03 is less, 3 x 0.035 is more.  The errors are small while it rises."""
    half = (0.6 * EARLY, 0.05 * LATE)
    errors = error * LATE
    assert (
        classes(model([half, half], eval_gain_se=errors, attention_gain_se=[errors / 2, errors / 2]))
        == [kind] * 3
    )
    small = np.where(LATE < 1, 1e-6, error)  # an early record far beyond its own small error does not count
    assert (
        classes(model([half, half], eval_gain_se=small, attention_gain_se=[small / 2, small / 2]))
        == [kind] * 3
    )


@pytest.mark.parametrize(("share", "kind"), [(0.06, "two-stage"), (0.045, "V-only")])
def test_a_gain_of_less_than_a_twentieth_of_the_whole_is_none(share, kind):
    """Without any error: Q of the second layer is this share of that of the whole, 0.4."""
    layers = [(0.6 * EARLY, (1 - share) * 0.4 * LATE), (0.6 * EARLY, share * 0.4 * LATE)]
    assert classes(model(layers)) == ["two-stage", "two-stage", kind]
    values = [((1 - share) * 1.2 * EARLY, 0.1 * LATE), (share * 1.2 * EARLY, 0.1 * LATE)]
    kind_of_values = "two-stage" if kind == "two-stage" else "attention-only"
    assert classes(model(values)) == ["two-stage", "two-stage", kind_of_values]


def test_the_whole_may_gain_less_than_a_tenth_of_the_lines():
    """L1* - L2* is 0.1; without errors a gain of 0.004 is a second stage that has begun."""
    assert classes(model([(1.2 * EARLY, 0.004 * LATE)])) == ["stage 2 begun"] * 2


def test_each_layer_has_the_errors_of_its_own_gains():
    layer = (0.6 * EARLY, 0.05 * LATE)
    assert classes(model([layer, layer], attention_gain_se=[0.001, 0.03])) == [
        "two-stage",
        "two-stage",
        "V-only",
    ]
    unsure = model([layer, layer], value_gain_se=[0.001, 0.3])
    assert classes(unsure) == ["two-stage", "two-stage", "attention-only"]
    assert classes(model([layer, layer], eval_value_se=0.7, eval_gain_se=0.05))[0] == "silent"


def test_attention_that_follows_the_topics_has_not_moved_within_its_error():
    """The ratio same / different grows or falls by e^0.2; the gain of 0.05 is within three errors of 0.03."""
    half = (0.6 * EARLY, 0.05 * LATE)
    for shift in (0.2, -0.2, 0.05):
        own = 0.01 * np.exp(shift * LATE)
        scores = scores_of(model([half, half], attention_gain_se=[0.03, 0.03], attn_same_topic=[own, own]))
        assert scores["class"].tolist()[1:] == ["V-only"] * 2
        assert scores["theta"].isna().tolist()[1:] == [True] * 2
        assert scores["topic_shift"].tolist()[1:] == pytest.approx([shift] * 2)


@pytest.mark.parametrize(
    ("begins", "error", "kind"),
    [(460, 0.005, "two-stage"), (460, 0.02, "undecided"), (380, 0.001, "V leads"), (380, 0.02, "undecided")],
)
def test_a_range_of_theta_across_the_cut_is_undecided(begins, error, kind):
    """F_V = t / 500, and Q is 0.2 (t - b) / 500 from b on.  From step 50 on two errors are d = 0.2 e.

    Shifted up, F_A is a = e / (1 + e) until b and then a + (1 - a)(t - b) / 500: it adds up to 1 with F_V at
    F_V = 1 - a, or (1 - a)(1 + b / 500) / (2 - a) if that comes later.  Shifted down, it is
    ((t - b) / 500 - e) / (1 - e) as soon as that is positive: at F_V = (1 + b / 500) / (2 - e), or 1.
    """
    P, Q, errors = 1.2 * ramp(0, 500), 0.2 * ramp(begins, begins + 500), error * ramp(0, 50)
    scores = scores_of(model([(P, Q)], eval_gain_se=errors, attention_gain_se=[errors]))
    share = begins / 500
    e = 2 * error / 0.2
    a = e / (1 + e)
    assert scores["class"].tolist() == [kind] * 2
    assert scores["theta"].to_numpy() == pytest.approx((1 + share) / 2)
    low, high = min(1 - a, (1 - a) * (1 + share) / (2 - a)), min(1, (1 + share) / (2 - e))
    assert scores["theta_low"].to_numpy() == pytest.approx(low, abs=5e-3)
    assert scores["theta_high"].to_numpy() == pytest.approx(high, abs=5e-3)


def test_without_residual_connections_only_the_whole_has_a_class():
    scores = scores_of(
        model([TWO_STAGE, TWO_STAGE], residual=False), model([(1.2 * EARLY, 0.1 * LATE)], residual=False)
    )
    assert scores["class"].tolist() == ["two-stage", "whole only", "whole only", "two-stage", "two-stage"]
    blank = ["theta", "onset_v", "onset_attention", "max_p", "max_q", "theta_low"]
    assert scores[blank].iloc[1:3].isna().all(axis=None) and scores[blank].iloc[0].notna().all()
    assert scores["class_norm"].iloc[1] == "two-stage"  # each layer has norms of its own
    run = run_of(model([TWO_STAGE, TWO_STAGE], residual=False))
    (cell,) = models(run, score_layers(run)).to_dict("records")
    assert (cell["holds"], cell["two_stage_layers"], cell["order_v"]) == ("whole only", 0, "-")


def test_records_between_rare_measurements_do_not_count():
    """Gains of layers at every fifth record: the scores of layers are those of these records alone."""
    layers = [(0.6 * EARLY, 0.1 * LATE), (0.6 * EARLY, 0.0 * LATE)]
    row, records, details = model(layers, rare_every=5)
    rare = [name for name in details if "gain" in name]
    details.loc[details["step"] % 50 > 0, rare] = np.nan
    found = scores_of((row, records, details)).set_index("layer")
    fewer = [(P[::5], Q[::5]) for P, Q in layers]
    coarse = scores_of(model(fewer, step=STEP[::5], record_every=50)).set_index("layer")
    dense = scores_of(model(layers)).set_index("layer")
    assert found["class"].tolist() == ["two-stage", "two-stage", "V-only"]
    for name in ("theta", "log_lag", "max_p", "onset_v", "onset_attention"):
        np.testing.assert_allclose(found[name].iloc[1:], coarse[name].iloc[1:], err_msg=name)
        np.testing.assert_allclose(found[name].iloc[:1], dense[name].iloc[:1], err_msg=name)  # whole model
    np.testing.assert_allclose(found["theta_norm"], dense["theta_norm"])


def test_a_layer_that_never_acts_is_silent():
    scores = scores_of(model([(1.2 * EARLY, 0.1 * LATE), (0.0, 0.0), (0.004 * EARLY, 0.003 * LATE)]))
    assert scores["class"].tolist() == ["two-stage", "two-stage", "silent", "silent"]
    assert scores[["theta", "onset_v", "onset_attention"]].iloc[2:].isna().all(axis=None)


def test_what_others_take_over_later_is_no_lack_of_progress():
    """P of a layer falls to a quarter of what it was: V was first all the same, and a flag says so."""
    falls = 0.8 * EARLY - 0.6 * ramp(100, 500)
    layer = scores_of(model([(falls, 0.1 * LATE), (0.6 * EARLY, 0.0)], (1.2 * EARLY, 0.1 * LATE))).iloc[1]
    assert layer["class"] == "two-stage" and "v_recedes" in layer["flags"]


def test_a_stage_2_of_less_than_half_of_the_lines_is_begun_only():
    """L1* - L2* is 0.1: half of it is 0.05."""
    for gain, kind in ((0.048, "stage 2 begun"), (0.052, "two-stage")):
        assert classes(model([(1.2 * EARLY, gain * LATE)])) == [kind] * 2
    assert classes(model([(1.2 * EARLY, 0.048 * LATE)]), lines=False) == ["two-stage"] * 2


def test_models_that_do_not_learn_or_do_not_finish_have_no_layers_to_judge():
    kinds = [classes(model([(share * 1.2 * EARLY, 0.05 * LATE)])) for share in (0.02, 0.5)]
    assert kinds == [["no-learning"] * 2, ["unfinished"] * 2]
    flat = model([(0.0, 0.0)], eval_loss=4.6 + 0.001 * NOISE)
    assert classes(flat, lines=False) == ["no-learning"] * 2


def test_only_the_way_up_is_scored():
    """Both rise together to step 500; then the loss rises again while Q, of a broken model, grows tenfold."""
    rise = ramp(0, 500)
    late = 0.2 * rise + 2 * ramp(600, 900)
    loss = 4.6 - 1.4 * rise + ramp(600, 900)
    scores = scores_of(model([(1.2 * rise, late)], eval_loss=loss))
    assert scores["class"].tolist() == ["simultaneous"] * 2
    assert scores["theta"].to_numpy() == pytest.approx(0.5)
    assert scores["max_q"].to_numpy() == pytest.approx(0.2)


def test_one_record_is_no_learning_and_nan_is_diverged():
    short = model([(0.0, 0.0)] * 2, step=STEP[:1])
    row, records, details = model([TWO_STAGE])
    records.loc[records["step"] > 500, "eval_loss":"eval_gain_se"] = np.nan
    details.loc[details["step"] > 500, ["value_gain", "attention_gain", "norm_v"]] = np.nan
    scores = scores_of(short, (row | dict(status="diverged", diverged_step=510), records, details))
    assert scores["class"].tolist() == ["no-learning"] * 3 + ["diverged"] * 2
    assert scores[["theta", "theta_norm", "onset_entropy", "onset_v"]].isna().all(axis=None)
    unlabelled = scores_of((row, records, details))
    assert unlabelled["class"].tolist() == ["diverged"] * 2


def test_norms_are_scored_beside_the_loss():
    """Norms of K and Q rise with V while attention adds nothing until later; one norm of V falls."""
    together = [0.1 + EARLY, 0.1 + EARLY]
    made = model([TWO_STAGE, TWO_STAGE], norm_k=together, norm_v=[0.1 + EARLY, 5 - EARLY])
    scores = scores_of(made)
    assert scores["class"].tolist() == ["two-stage"] * 3
    assert scores["class_norm"].tolist()[1:] == ["simultaneous", "unscored"]
    assert scores["theta_norm"].iloc[1] == pytest.approx(0.5) and np.isnan(scores["theta_norm"].iloc[2])


def test_norms_of_all_layers_are_those_of_all_weights():
    """|V|^2 = 0.09 + 9 F_1 + 16 F_2 ... of one layer that rises at once and one that rises late."""
    made = model([TWO_STAGE, TWO_STAGE], norm_v=[3 * EARLY, 4 * LATE], norm_k=[0.1 + LATE, 0.1 + LATE])
    whole = scores_of(made).iloc[0]
    rise = np.sqrt((3 * EARLY) ** 2 + (4 * LATE) ** 2) / 5
    assert whole["onset_v_norm"] == pytest.approx(np.interp(0.5, rise[:11], STEP[:11]))


def test_attention_leaves_uniform_a_stated_amount_above_its_start():
    deficit = [0.3 + 0.1 * ramp(200, 300), 0.005 * LATE]
    scores = scores_of(model([TWO_STAGE, TWO_STAGE], entropy_deficit=deficit))
    assert LEAVES_UNIFORM == 0.01
    assert scores["onset_entropy"].iloc[1] == pytest.approx(210)
    assert np.isnan(scores["onset_entropy"].iloc[2])


def test_the_order_of_layers():
    def starting(*begin, seed=0):
        deficit = [0.1 * ramp(first, first + 100) if first else 0 * STEP for first in begin]
        return model([TWO_STAGE] * len(begin), entropy_deficit=deficit, seed=seed, init=INITS[len(begin)])

    INITS = {1: "uniform", 2: "default", 3: "normal"}
    made = [
        starting(600, 300, 100),
        starting(100, 600, 300),
        starting(300, 305),
        starting(0, 300),
        starting(400),
    ]
    run = run_of(*made)
    scores = score_layers(run)
    ranks = rank_order(scores, "onset_entropy", Gap(10)).tolist()
    assert ranks == pytest.approx([-1, 1 / 3, 0, -1, np.nan], nan_ok=True)
    table = models(run, scores)  # cells: 3 layers (2 trials), 2 layers (2 trials), one layer
    assert telling_settings(run) == ["layers"]
    assert table["depth"].tolist() == [1, 2, 3] and table["trials"].tolist() == [1, 2, 2]
    assert table["direction"].tolist() == ["", "last layer first", "mixed"]
    assert table["order"].tolist() == ["1", "1 ≈ 2", "3 < 1 < 2"]
    never = run_of(starting(0, 300))
    assert models(never, score_layers(never))["order"].tolist() == ["2; never 1"]


def test_cells_have_medians_and_the_majority_of_their_seeds():
    gains = (0.2, 0.1, 0.15)
    made = [model([(0.6 * EARLY, gain * LATE), (0.6 * EARLY, 0.0)], seed=n) for n, gain in enumerate(gains)]
    made[1] = model([(0.6 * ramp(0, 800), 0.1 * ramp(0, 800)), (0.6 * EARLY, 0.0)], seed=1)
    run = run_of(*made, model([TWO_STAGE, TWO_STAGE], output_projection=True))
    cells = layer_cells(run, score_layers(run))
    own = cells.loc[~cells["output_projection"]]
    assert own["class"].tolist() == ["two-stage", "two-stage", "V-only"]
    assert own["agreement"].tolist()[1:] == pytest.approx([2 / 3, 1])
    assert own["max_q"].tolist()[1] == pytest.approx(0.15) and own["trials"].tolist() == [3] * 3
    table = models(run, score_layers(run))
    assert table["holds"].tolist() == ["some layers", "every layer"]
    assert set(cells["class"]) <= set(LAYER_CLASSES)


def test_layers_without_step_0_or_without_columns_are_said():
    row, records, details = model([TWO_STAGE])
    with pytest.raises(StoreError, match="layer 1 has no record at step 0"):
        scores_of((row, records, details.loc[details["step"] > 0]))
    with pytest.raises(StoreError, match="has no column eval_loss_silent"):
        scores_of((row, records.drop(columns="eval_loss_silent"), details))


def test_a_run_without_details_has_its_whole_models():
    run = run_of(model([(1.2 * EARLY, 0.1 * LATE)]))
    scores = score_layers(run.replace(details=pd.DataFrame(columns=["trial_id", "step"])))
    assert scores["class"].tolist() == ["two-stage"] and scores["class_norm"].tolist() == ["unscored"]
