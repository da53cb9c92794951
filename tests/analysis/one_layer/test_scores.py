"""Scores and classes on synthetic trajectories whose answers are known."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.stage_cases import CASES
from support.synthetic_runs import (
    INITIAL,
    STAGE1,
    STAGE2,
    STEP,
    TWO_STAGE,
    case,
    lag_for,
    line_entry,
    ramp,
    records,
    run_of,
    saturating,
    score,
    score_one,
    trial,
    write_run,
)

from topicjax.analysis.one_layer.scores import CLASSES, class_counts, classes_of, score_trials, write_stages
from topicjax.errors import UserError
from topicjax.stages import Records, monotone
from topicjax.store.reader import load
from topicjax.theory.progress import Cuts


@pytest.fixture(scope="module")
def classified() -> pd.DataFrame:
    """All cases scored together, so that none may depend on its neighbours."""
    scores = score(*(made for _, made in CASES.values()))
    return scores.assign(name=list(CASES)).set_index("name")


@pytest.mark.parametrize("name", CASES)
def test_classes(classified: pd.DataFrame, name: str):
    assert classified.loc[name, "class"] == CASES[name][0]


def test_every_class_has_a_case():
    assert {expected for expected, _ in CASES.values()} == set(CLASSES)


def test_scores_of_curves_that_never_cross_are_their_ends(classified: pd.DataFrame):
    found = classified.loc["V only, bare", ["theta_any", "theta_reversed_any"]].to_numpy(float)
    np.testing.assert_allclose(found, [0.81, 0.09])


def test_a_trial_scores_the_same_alone_as_among_others_of_any_length():
    short = np.array([0, 500, 1000])
    cases = [
        case(*TWO_STAGE),
        case(ramp(0, 100, short), ramp(400, 600, short), short),
        case(0, 0, STEP[:1]),
        CASES["Theta .71"][1],
        case(np.nan, 0, STEP[:2]),
    ]
    together = score(*cases).drop(columns="trial_id")
    for row, made in enumerate(cases):
        alone = score(made).drop(columns="trial_id")
        found = together.iloc[[row]].reset_index(drop=True)
        pd.testing.assert_frame_equal(found, alone, check_dtype=False, rtol=1e-9, atol=1e-9)


def test_a_huge_value_does_not_blur_the_trials_after_it():
    small = case(ramp(0, 100), 0.12 * ramp(400, 600), a_topic=0.0)
    wild = case(ramp(0, 100), np.where(STEP == 500, 1e25, 0.0), a_topic=0.0)
    assert score(wild, small).iloc[1]["class"] == score(small).iloc[0]["class"] == "stage 2 begun"
    assert score(wild, small).iloc[1]["sure_attention"] == score(small).iloc[0]["sure_attention"]


def test_a_trial_that_rises_within_one_record_is_led_by_what_gained_more():
    step = np.array([0, 10])
    lead = score_one(np.array([0, 1.0]), np.array([0, 0.6]), step, a_topic=1.0)
    assert np.isnan(lead["log_lag"]) and lead["class"] == "simultaneous"
    steps = np.array([0, 10, 20])
    lead = score_one(np.array([0, 0.85, 1.0]), np.array([0, 0.15, 1.0]), steps, a_topic=1.0)
    assert lead["class"] == "V leads"


def test_a_trial_with_one_record_learned_nothing():
    found = score_one(0, 0, STEP[:1])
    assert found["class"] == "no-learning" and np.isnan(found["log_lag"])


@pytest.mark.parametrize("end", ["", "_order", "_norm"])
def test_scores_of_a_clear_case_in_every_view(end: str):
    found = score_one(*TWO_STAGE)
    assert found["class" + end] == "two-stage"
    assert found["theta" + end] == pytest.approx(1)
    assert found["theta_reversed" + end] == pytest.approx(0)
    assert found["onset_v" + end] == pytest.approx(50)
    assert found["onset_attention" + end] == pytest.approx(500)
    fine = np.geomspace(10, 1000, 400_001)
    exact = np.trapezoid(ramp(0, 100, fine) - ramp(400, 600, fine), np.log(fine))
    assert found["log_lag" + end] == pytest.approx(exact, abs=0.01)
    assert found["flags" + end] == ""


def test_scores_do_not_depend_on_the_unit_of_time():
    cases = [made for expected, made in CASES.values() if expected != "diverged"]
    slower = [(row, frame.assign(step=frame["step"] * 37)) for row, frame in cases]
    once, again = score(*cases), score(*slower)
    for end in ("", "_order", "_norm"):
        assert once["class" + end].tolist() == again["class" + end].tolist()
        assert once["flags" + end].tolist() == again["flags" + end].tolist()
        for name in ("theta", "theta_reversed", "log_lag"):
            np.testing.assert_allclose(once[name + end], again[name + end], atol=1e-9)
        for name in ("onset_v", "onset_attention"):
            np.testing.assert_allclose(37 * once[name + end], again[name + end])


def test_noise_does_not_move_scores_and_a_running_maximum_would():
    rng = np.random.default_rng(2)
    P, Q = saturating(0, 60), saturating(60 * lag_for(0.8), 60) * 0.6  # attention gets that far
    noise = rng.normal(0, 0.04, (2, 200, len(STEP)))
    noise[:, :, 0] = 0
    clean = score(case(P, Q)).iloc[0]
    noisy = score(*(case(P + p, Q + q) for p, q in zip(*noise, strict=True)))
    assert set(noisy["class"]) == {clean["class"]}
    found = noisy["theta"].to_numpy()
    assert found.mean() == pytest.approx(clean["theta"], abs=0.01)
    assert found.std() < 0.03
    fit = monotone(Records.of(np.tile(STEP, 200)), (Q + noise[1]).ravel()).reshape(200, -1)
    middle = len(STEP) * 3 // 4
    assert fit[:, middle].mean() == pytest.approx(0.6, abs=0.01)
    running = np.maximum.accumulate(Q + noise[1], axis=1)
    assert running[:, middle].mean() > 0.67


# Adversaries: each must get the class that a person would give.


def noise(low: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-low, low, STEP.shape) * (STEP > 0)


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_zero_mean_is_no_stage_2(seed: int):
    found = score_one(ramp(0, 100), noise(0.15, seed), a_topic=0.0)
    assert found["class"] == "V-only"
    wild = score_one(ramp(0, 100), np.random.default_rng(seed).normal(0, 0.15, STEP.shape), a_topic=0.0)
    assert wild["class"] == "V-only"


@pytest.mark.parametrize("seed", range(10))
def test_a_stage_2_is_seen_through_noise(seed: int):
    found = score_one(ramp(0, 100), 0.25 * ramp(400, 600) + noise(0.15, seed), a_topic=0.0)
    assert found["class"] == "stage 2 begun"


ADVERSARIES = {
    "Q ends at .12": ("stage 2 begun", "", case(ramp(0, 100), 0.12 * ramp(400, 600), a_topic=0.0)),
    "only the last record": ("V-only", "", case(ramp(0, 100), 0.15 * (STEP == 1000), a_topic=0.0)),
    "few topics, no gain": ("stage 2 begun", "", case(ramp(0, 100), 0.05, a_topic=0.15 * ramp(500, 900))),
    "copying without topics": (
        *("two-stage, non-topical", "then copying"),
        case(ramp(0, 100), 9 * ramp(400, 600), a_topic=0.0, a_self=5 * ramp(400, 600)),
    ),
    "attention, nothing, V, attention": (
        *("attention leads", ""),
        case(ramp(300, 400), ramp(0, 50) - ramp(100, 150) + ramp(600, 700)),
    ),
    "two stages, then copying": (
        *("two-stage", "then copying"),
        case(ramp(0, 100), ramp(400, 600) + 5 * ramp(700, 900), a_self=4 * ramp(700, 800), a_topic=1.5),
    ),
    "two stages, then topics go": (
        *("two-stage", "then copying"),
        case(*TWO_STAGE, a_topic=ramp(400, 600) - ramp(700, 800), a_self=ramp(700, 800)),
    ),
    "two stages, then collapse": (
        *("two-stage", "then lost"),
        case(ramp(0, 100) - 2 * ramp(700, 800), ramp(400, 600) - 3 * ramp(700, 800)),
    ),
    "V only, then collapse": ("V-only", "then lost", case(ramp(0, 100) - 2 * ramp(700, 800), 0)),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries(name: str):
    expected, suffix, made = ADVERSARIES[name]
    found = score(made).iloc[0]
    assert (found["class"], found["suffix"]) == (expected, suffix)


@pytest.mark.parametrize("name", ["two stages, then copying", "two stages, then collapse"])
def test_what_comes_later_changes_no_score(name: str):
    found, short = score(ADVERSARIES[name][2]).iloc[0], score_one(*TWO_STAGE)
    assert found["t_end"] == short["t_end"] == 600
    for view in ("theta", "log_lag", "onset_v", "onset_attention", "p_end", "q_end"):
        assert found[view] == pytest.approx(short[view])


def test_theta_and_lag_are_blank_where_stage_2_did_not_happen(classified: pd.DataFrame):
    idle = classified.loc[["V only", "a little gain", "learns a little", "nothing moves"]]
    assert idle[["theta", "theta_reversed", "log_lag"]].isna().all(axis=None)
    assert idle["theta_any"].notna().all()


# Suffixes and what they rest on.


@pytest.mark.parametrize(
    ("suffix", "columns"),
    [
        ("then copying", dict(v_diag=5.1)),
        ("", dict(v_diag=4.9)),
        ("then copying", dict(a_self=1.6 * ramp(700, 800))),
        ("", dict(a_self=1.6 * ramp(400, 600) - 1.6 * ramp(700, 800))),  # no longer
        ("", dict(a_topic=0.0, a_self=0.09)),  # too small to be copying
        ("then copying", dict(a_topic=0.0, a_self=0.11)),
        ("", dict(v_block=0.0, v_diag=0.011)),  # a tenth of Theorem 2's block is .0116
        ("then copying", dict(v_block=0.0, v_diag=0.012)),
    ],
)
def test_suffixes(suffix: str, columns: dict[str, Any]):
    assert score_one(*TWO_STAGE, **columns)["suffix"] == suffix


@pytest.mark.parametrize(
    ("kind", "a_topic"),
    [
        ("two-stage", 0.51 * ramp(400, 600)),
        ("two-stage, non-topical", 0.49 * ramp(400, 600)),
        ("two-stage", 0.6 * ramp(400, 500) - 0.6 * ramp(700, 800)),  # on the way up
        ("two-stage, non-topical", 0.6 * ramp(700, 800)),  # after it
        ("two-stage, non-topical", np.where(STEP == 500, 3.0, 0.1)),  # an outlier
    ],
)
def test_topics_count_on_the_way_up(kind: str, a_topic: np.ndarray):
    assert score_one(*TWO_STAGE, a_topic=a_topic)["class"] == kind


@pytest.mark.parametrize("name", ["not finite", "nothing moves", "uniform attention"])
def test_no_suffix_where_there_is_nothing_to_say(classified: pd.DataFrame, name: str):
    assert classified.loc[name, "suffix"] == ""


# Edge cases.


def test_attention_that_is_not_uniform_at_first_is_subtracted_and_flagged():
    found = score_one(ramp(0, 100), 0.3 + 0.7 * ramp(400, 600))
    assert found["flags"] == "attention_at_start"
    assert found["class"] == "two-stage"
    assert found["theta"] == pytest.approx(1)  # .7 without the subtraction
    assert score_one(ramp(0, 100), 0.04 + 0.9 * ramp(400, 600))["flags"] == ""
    harmful = score_one(ramp(0, 100), ramp(400, 600) - 0.3 * (STEP < 50))
    assert harmful["flags"] == "attention_at_start"
    assert harmful["theta"] == pytest.approx(1 - 0.06 / 1.26)  # P(0) = .06 / (L(0) - L1*)


def test_an_onset_in_the_last_tenth_is_censored():
    assert score_one(ramp(0, 100), ramp(900, 980))["flags"] == "censored_attention"
    assert score_one(ramp(0, 100), ramp(800, 980))["flags"] == ""
    late = score_one(ramp(900, 980), ramp(0, 100))
    assert late["flags"] == "censored_v" and late["onset_v"] == pytest.approx(940)


def test_an_onset_never_reached_is_none():
    found = score_one(ramp(0, 100), 0.4 * ramp(400, 600))
    assert np.isnan(found["onset_attention"]) and found["flags"] == "attention_incomplete"


def test_a_negative_gain_counts_zero():
    hurt = score_one(ramp(0, 100), np.where(STEP < 300, -1.5 * ramp(0, 50), ramp(400, 600)))
    zero = score_one(*TWO_STAGE)
    for name in ("theta", "theta_reversed", "log_lag", "onset_attention"):
        assert hurt[name] == pytest.approx(zero[name])


def test_progress_that_recedes_is_flagged_because_the_fit_averages_it():
    found = score_one(ramp(0, 100) - 0.15 * ramp(200, 300), ramp(400, 500))
    assert found["flags"] == "v_recedes" and found["theta"] < 0.95
    bump = 0.9 * ramp(0, 100) - 0.9 * ramp(200, 300)
    found = score_one(ramp(0, 100), bump + ramp(600, 700) - 0.3 * ramp(800, 900))
    assert "attention_recedes" in found["flags_norm"].split(",")
    assert score_one(ramp(0, 100) - 0.08 * ramp(200, 300), ramp(400, 500))["flags"] == ""


@pytest.mark.parametrize(
    "lines",
    [
        dict(line_stage2=np.nan),
        dict(line_stage2=STAGE1),
        dict(line_stage2=STAGE1 + 0.1),
        dict(line_stage2=STAGE1 - 0.01, line_stage1_se=0.004, line_stage2_se=0.004),
    ],
)
def test_without_a_gap_between_the_lines_the_attained_gain_is_the_unit(lines: dict[str, float]):
    found = score_one(ramp(0, 100), 0.5 * ramp(400, 600), lines=lines)
    assert found["flags"] == "gain_attained"
    assert found["max_attention"] == pytest.approx(1)
    assert found["onset_attention"] == pytest.approx(500)
    assert found["class"] == "two-stage"


def test_a_gap_outside_its_error_is_a_unit():
    lines = dict(line_stage2=STAGE1 - 0.1, line_stage1_se=0.03, line_stage2_se=0.03)
    found = score_one(ramp(0, 100), 0.4 * ramp(400, 600), lines=lines)
    assert found["flags"] == "" and found["max_attention"] == pytest.approx(0.8)


def test_lines_of_the_held_out_documents_are_the_units_of_progress():
    lines = dict(line_stage1=3.5, line_stage2=3.25, held_out_stage1=STAGE1, held_out_stage2=STAGE2)
    found, plain = score_one(*TWO_STAGE, lines=lines), score_one(*TWO_STAGE)
    for name in ("max_v", "max_attention", "max_total", "theta", "log_lag"):
        assert found[name] == pytest.approx(plain[name], abs=1e-12), name
    unknown = lines | dict(held_out_stage1=np.nan, held_out_stage2=np.nan)
    by_population = score_one(*TWO_STAGE, lines=unknown)
    assert by_population["max_v"] == pytest.approx((INITIAL - STAGE1) / (INITIAL - 3.5))
    assert by_population["max_attention"] == pytest.approx((STAGE1 - STAGE2) / 0.25)


def test_a_gap_on_the_held_out_documents_by_chance_is_no_unit():
    no_gap = dict(line_stage1=STAGE1, line_stage2=STAGE1, held_out_stage1=STAGE1, held_out_stage2=3.0)
    found = score_one(ramp(0, 100), 0.5 * ramp(400, 600), lines=no_gap)
    assert found["flags"] == "gain_attained" and found["max_attention"] == pytest.approx(1)
    reversed_gap = dict(held_out_stage1=STAGE1, held_out_stage2=STAGE1 + 0.1)
    found = score_one(ramp(0, 100), 0.5 * ramp(400, 600), lines=reversed_gap)
    assert found["flags"] == "" and found["max_attention"] == pytest.approx(0.5)


def test_without_a_gap_a_trace_of_gain_is_no_stage():
    lines = dict(line_stage2=np.nan)
    Q = 0.0023 / (STAGE1 - STAGE2) * ramp(400, 600)  # below a tenth of 2 % of L(0) - L1* = .024
    found = score_one(ramp(0, 100), Q, lines=lines, a_topic=0.0)
    assert found["class"] == "V-only"
    assert found["max_attention"] == pytest.approx(0.0023 / 0.024)


def test_without_a_stage1_line_the_other_views_still_speak(classified: pd.DataFrame):
    found = classified.loc["no line"]
    assert found["flags"] == "no_stage1_drop,gain_attained"
    assert np.isnan(found["theta"]) and found["theta_norm"] == pytest.approx(1)
    assert (found["class_order"], found["class_norm"]) == ("two-stage", "two-stage")


def test_frozen_parts_have_no_order_but_keep_the_onset_of_the_other(classified: pd.DataFrame):
    for name in ("uniform attention", "frozen V"):
        assert classified.loc[name, ["theta", "theta_norm", "log_lag"]].isna().all()
        assert "frozen" in classified.loc[name, "flags"].split(",")
        assert classified.loc[name, "class_norm"] == CASES[name][0]
    assert classified.loc["uniform attention", "onset_v"] == pytest.approx(50)
    assert classified.loc["frozen V", "onset_attention"] == pytest.approx(50)


def test_diverged_trials_have_no_scores(classified: pd.DataFrame):
    lost = classified.loc[["not finite", "infinite", "engine says so"]]
    for end in ("", "_order", "_norm"):
        assert lost[["theta" + end, "log_lag" + end, "onset_v" + end]].isna().all(axis=None)
        assert (lost["class" + end] == "diverged").all() and (lost["flags" + end] == "").all()


# The other two views.


def test_norms_alone_mislead_where_attention_learns_no_topics():
    found = score_one(ramp(0, 100), 0, norm_k=ramp(400, 900), norm_q=ramp(400, 900))
    assert found["class_norm"] == "two-stage"
    assert (found["class"], found["class_order"]) == ("V-only", "V-only")
    assert (found["a_topic_end"], found["max_attention_order"]) == (0, 0)


def test_norms_are_the_mean_of_keys_and_queries_above_their_start():
    found = score_one(*TWO_STAGE, norm_k=3 + 2 * ramp(0, 200), norm_q=7 + 2 * ramp(600, 800))
    assert found["onset_attention_norm"] == pytest.approx(200)  # keys are half of the rise
    assert found["theta_norm"] == pytest.approx(0.8)  # t / 100 + t / 400 = 1


def test_norms_that_only_fall_leave_that_view_unscored():
    assert score_one(*TWO_STAGE, norm_v=5 - ramp(0, 100))["class_norm"] == "unscored"
    assert score_one(*TWO_STAGE, norm_k=5 - ramp(0, 100), norm_q=5.0)["class_norm"] == "unscored"
    stays = score_one(*TWO_STAGE, norm_k=1.0, norm_q=1.0)
    assert (stays["max_attention_norm"], stays["class_norm"]) == (0, "two-stage")


def test_trained_embeddings_stand_for_a_frozen_value():
    changed = dict(value="identity", embedding="trained", norm_v=10.0, norm_e=1 + ramp(0, 100))
    found = score_one(*TWO_STAGE, **changed)
    assert found["class_norm"] == "two-stage" and found["onset_v_norm"] == pytest.approx(50)


def test_order_parameters_too_small_to_matter_are_none():
    found = score_one(*TWO_STAGE, a_topic=0.09 * ramp(400, 600), v_block=0.011 * ramp(0, 100))
    assert (found["max_v_order"], found["max_attention_order"]) == (0, 0)
    found = score_one(*TWO_STAGE, a_topic=0.11 * ramp(400, 600), v_block=0.012 * ramp(0, 100))
    assert found["class_order"] == "stage 2 begun"


def test_order_parameters_without_meaning_leave_that_view_unscored():
    found = score_one(*TWO_STAGE, v_block=np.nan, v_diag=np.nan)
    assert (found["class"], found["class_order"]) == ("two-stage", "unscored")


# Cuts, files, many trials.


def test_cuts_are_settings_of_the_classes():
    run = run_of(case(*TWO_STAGE), case(0.6 * ramp(0, 100), 0))
    assert score_trials(run, Cuts(finished=0.5))["class"].tolist() == ["two-stage", "V-only"]
    assert score_trials(run, Cuts(topical=2.0))["class"].tolist()[0] == "two-stage, non-topical"


def test_from_folder_to_stages_file(tmp_path: Path):
    frame = case(*TWO_STAGE)[1].assign(trial_id="a")
    folder = write_run(
        tmp_path / "run",
        [trial("a"), trial("b", seed=1)],
        [
            frame.astype({"eval_loss": "float32"}),
            records("b", eval_loss=4.6, eval_loss_uniform=4.6),
        ],
        references=[line_entry(values=dict(stage1=STAGE1, stage2=STAGE2))],
    )
    scores = score_trials(load(folder))
    path = write_stages(scores, folder)
    assert path == folder / "stages.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(path), scores)
    assert scores["class"].tolist() == ["two-stage", "no-learning"]
    assert scores.columns[:2].tolist() == ["trial_id", "seed"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("journal.log", "manifest.json", "stages.parquet", "trajectories", "trials")
    ]
    pd.testing.assert_frame_equal(score_trials(load(folder)), scores)  # the file is no part of the run


def test_trajectories_of_other_trials_are_refused():
    run = run_of(case(0, 0), case(0, 0))
    with pytest.raises(UserError, match="the trajectories are not those of the trials"):
        score_trials(run.replace(trials=run.trials[::-1]))


@pytest.mark.slow
def test_ten_thousand_trials_take_seconds():
    small = run_of(*(made for _, made in CASES.values()))
    times = -(-10_000 // len(small.trials))
    names = np.arange(times * len(small.trials)).astype(str)
    trials = pd.concat([small.trials] * times, ignore_index=True).assign(trial_id=names)
    trajectories = pd.concat([small.trajectories] * times, ignore_index=True)
    trajectories["trial_id"] = np.repeat(names, len(STEP))
    begin = time.perf_counter()
    scores = score_trials(small.replace(trials=trials, trajectories=trajectories))
    assert time.perf_counter() - begin < 20
    assert scores["class"].tolist() == [expected for expected, _ in CASES.values()] * times


def test_classes_of_trials_that_were_not_scored_are_refused():
    scores = score(case(*TWO_STAGE), case(0, 0))
    assert classes_of(scores, ["001", "000", "001"]) == ["no-learning", "two-stage", "no-learning"]
    with pytest.raises(UserError, match="the scores have no trial '002'"):
        classes_of(scores, ["000", "002"])


def test_class_counts_has_every_class_in_order():
    frame = pd.DataFrame({"class": ["two-stage", "two-stage", "diverged"]})
    frame = frame.assign(class_order=frame["class"], class_norm=["two-stage", "V-only", "diverged"])
    table = class_counts(frame)
    assert table.index.tolist() == list(CLASSES)
    assert table.columns.tolist() == ["loss", "order", "norm"]
    assert table.loc["two-stage"].tolist() == [2, 2, 1]
    assert table.loc["V-only"].tolist() == [0, 0, 1]
    assert table.sum().tolist() == [3, 3, 3]
