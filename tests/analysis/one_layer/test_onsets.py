"""Onsets of synthetic and of plainly computed trajectories, their slopes and the predicted ones."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import run_of, trial

from topicjax.analysis.one_layer import onsets
from topicjax.analysis.one_layer.onsets import LEVEL, onset_by_init_scale, onset_fit, onset_times
from topicjax.analysis.topic_model import LINE_COLUMNS
from topicjax.errors import UserError
from topicjax.store.reader import Run
from topicjax.theory.theorems import theorem2_matrix

STEP = np.arange(0, 1001, 20)
SCALES = (1e-5, 1e-4, 1e-3)
LAW = dict(  # all that theory.onset_rate assumes
    **dict(optimizer="sgd", objective="squared", documents="tau", infinite_documents=True, value="blocks"),
    **dict(topics=4, words_per_topic=3, p_keep=0.3, learning_rate=10.0),
)
# by hand: a = .895, s = .895/2 + .15 .1/4 = .45125; gamma = 2 .3/.895 .45125 (1 - 1/2)/(9 3 sqrt 13)
RATE = 0.6 / 0.895 * 0.45125 * 0.5 / (27 * 13**0.5)
Case = tuple[dict[str, Any], pd.DataFrame]


def case(a_topic: Any, step: np.ndarray = STEP, distance: float = 0.0, **settings: Any) -> Case:
    """Return a trial whose attention has this order parameter."""
    row = trial("", **LAW | settings) | {"status": settings.get("status", "ok")}
    row |= dict.fromkeys(LINE_COLUMNS, np.nan)
    return row, pd.DataFrame(dict(step=step, a_topic=a_topic, theorem2_distance=distance))


def grown(scale: float, rate: float, factor: float = 1.0, step: np.ndarray = STEP, **settings: Any) -> Case:
    """Return a trial that leaves the saddle at this rate per learning rate x step."""
    eta = settings.get("learning_rate", LAW["learning_rate"])
    a_topic = factor * scale**2 * np.exp(2 * rate * eta * step)
    return case(np.minimum(a_topic, 2.0), step, init_scale=scale, **settings)


def picture_of(run: Run):
    return onset_by_init_scale(run, pd.DataFrame())  # it needs no scores


def fit_one(*cases: Case) -> pd.Series:
    (_, row), *more = onset_fit(onset_times(run_of(*cases))).iterrows()
    assert not more
    return row


def test_theory_predicts_softmax_attention_only():
    times = onset_times(
        run_of(*(grown(1e-4, 2e-3, attention_weights=kind) for kind in ("softmax", "scores_only")))
    )
    assert np.isfinite(times["predicted"]).tolist() == [True, False]


def test_the_onset_of_an_exponential_is_exact_between_records():
    times = onset_times(run_of(grown(1e-4, 2e-3, factor=3.0), grown(1e-5, 2e-3)))
    expected = [np.log(LEVEL / 3e-8) / 0.04, np.log(LEVEL / 1e-10) / 0.04]
    np.testing.assert_allclose(times["onset_step"], expected, rtol=1e-12)
    np.testing.assert_allclose(times["onset_time"], 10 * np.array(expected), rtol=1e-12)
    np.testing.assert_allclose(times["log_scale"], np.log([1e4, 1e5]))
    assert not np.isin(times["onset_step"], STEP).any()


def test_an_onset_after_noise_around_zero_lies_between_its_records():
    noisy = np.where(STEP < 500, -0.01 * (-1.0) ** (STEP // 20), 0.5)
    (step,) = onset_times(run_of(case(noisy)))["onset_step"]
    assert 480 < step < 500


def test_the_slope_is_the_mean_over_seeds_and_its_error_their_spread():
    cases = [
        grown(scale, 1 / slope, factor=seed + 1.0, seed=seed, p_keep=0.2)
        for seed, slope in enumerate((380.0, 400.0, 420.0))
        for scale in SCALES
    ]
    row = fit_one(*cases)
    assert row["slope"] == pytest.approx(400, rel=1e-9)
    assert row["slope_se"] == pytest.approx(20 / 3**0.5, rel=1e-9)
    assert (row["trials"], row["onsets"], row["seeds"]) == (9, 9, 3)


def test_a_smaller_level_moves_every_onset_and_no_slope():
    run = run_of(*(grown(scale, 2.5e-3) for scale in SCALES))
    early, late = onset_times(run, 0.01), onset_times(run)
    shift = np.log(10) / 2 / 2.5e-3
    np.testing.assert_allclose(late["onset_time"] - early["onset_time"], shift, rtol=1e-9)
    assert onset_fit(early)["slope"][0] == pytest.approx(400) == onset_fit(late)["slope"][0]


def test_trials_without_an_onset_are_counted_and_left_out():
    cases = [grown(scale, 2.5e-3) for scale in SCALES]
    cases += [
        grown(1e-9, 1e-3),
        grown(1e-4, 9e-3, status="diverged"),
        grown(1.0, 2.5e-3),
        case(0.0, attention="uniform"),
        case(STEP / 1000, init_scale=0.0),
    ]
    outcomes = onset_times(run_of(*cases))["outcome"].tolist()
    assert outcomes == ["onset"] * 3 + ["censored", "diverged", "at_start", "frozen", "zero"]
    row = fit_one(*(made for made in cases if made[0]["attention"] == "trained"))
    assert row["slope"] == pytest.approx(400, rel=1e-9)
    assert row[["trials", "onsets", "censored", "diverged", "at_start", "zero"]].tolist() == [
        7,
        3,
        1,
        1,
        1,
        1,
    ]
    assert np.isnan(row["slope_se"]), "one seed has no spread"


def test_one_init_scale_has_no_slope():
    row = fit_one(*(grown(1e-4, 2.5e-3, seed=seed) for seed in range(3)))
    assert np.isnan(row["slope"]) and row["seeds"] == 0 and row["onsets"] == 3


def test_other_settings_that_vary_have_their_own_fit():
    cases = [grown(scale, 2.5e-3, p_keep=0.1) for scale in SCALES]
    cases += [grown(scale, 5e-3, p_keep=0.2, steps=2000) for scale in SCALES]
    fit = onset_fit(onset_times(run_of(*cases)))
    assert fit["p_keep"].tolist() == [0.1, 0.2] and "steps" not in fit and "init_scale" not in fit
    np.testing.assert_allclose(fit["slope"], [400, 200], rtol=1e-9)


def test_the_prediction_is_the_one_computed_by_hand():
    cases = [case(STEP / 1000), case(STEP / 1000, attention_dim=4), case(STEP / 1000, learning_rate=50.0)]
    times = onset_times(run_of(*cases))
    gamma = np.array([RATE, RATE * (13 / 4) ** 0.5, RATE])
    np.testing.assert_allclose(1 / RATE, 643.606, atol=1e-3)
    np.testing.assert_allclose(times["predicted"], 1 / gamma, rtol=1e-12)
    eta = np.array([10.0, 10.0, 50.0])
    np.testing.assert_allclose(times["predicted_steps"], eta / np.log(1 + eta * gamma), rtol=1e-12)


@pytest.mark.parametrize(
    "changed",
    [
        *(dict(optimizer="adam"), dict(objective="cross_entropy"), dict(documents="lda")),
        *(dict(infinite_documents=False), dict(key_visibility="unmasked"), dict(l2=1e-3)),
        *(dict(embedding="trained"), dict(output_bias="trained"), dict(attention_biases="trained")),
        *(dict(value="identity"), dict(value="trained", distance=0.3), dict(overlap=0.5)),
        *(dict(word_distribution="zipf"), dict(topics_per_document=4), dict(topics_per_document=1)),
        *(
            dict(p_keep=0.0),
            dict(value="trained", distance=np.nan),
            dict(value_own=0.5),
            dict(value_shift=1.0),
        ),
    ],
    ids=str,
)
def test_there_is_no_prediction_where_an_assumption_fails(changed):
    times = onset_times(run_of(case(STEP / 1000, **changed)))
    assert times["outcome"].tolist() == ["onset"]
    assert times[["predicted", "predicted_steps"]].isna().all(axis=None)


def test_a_trained_value_at_its_optimum_by_the_onset_has_the_prediction():
    distance: Any = np.where(STEP < 40, 0.8, np.where(STEP < 100, 0.01, 0.5))
    times = onset_times(run_of(case(STEP / 990, distance=distance, value="trained")))
    assert times["predicted"][0] == pytest.approx(1 / RATE)


def gradient_descent(scale: float, seed: int, eta: float, steps: int, data: tuple) -> np.ndarray:
    """a_topic of every step: plain gradient descent on all two-topic documents, W^V at Theorem 2."""
    T, v, p_m, p_c, p_r = data
    W, V = T * v, T * v + 1
    value, topic = theorem2_matrix(*data), np.arange(W) // v
    rng = np.random.default_rng(seed)
    W_K, W_Q = scale * rng.standard_normal((2, V, V))
    off_diagonal = ~np.eye(W, dtype=bool)
    same = topic[:, None] == topic[None, :]
    curve = []
    for _ in range(steps):
        score = W_K.T @ W_Q / V**0.5  # key, query
        words = score[1:, 1:]
        curve.append(words[same & off_diagonal].mean() - words[~same].mean())
        slope = np.zeros((V, V))
        pairs = list(combinations(range(T), 2))
        for pair in pairs:
            P = np.concatenate([[0], np.isin(topic, pair) / (2 * v)])
            shown = (1 - (1 - p_c) * p_m) * P + p_m * p_r / W
            shown[0] = p_m * (1 - p_c - p_r)
            joint = np.outer(P, np.full(V, p_r / W)) + p_c * np.diag(P)  # target, query
            joint[:, 0] = (1 - p_c - p_r) * P
            attention = shown[:, None] * np.exp(score)
            attention /= attention.sum(axis=0)
            residual = 2 * (value @ attention * joint.sum(axis=0) - joint)
            pull = value.T @ residual
            slope += attention * (pull - (attention * pull).sum(axis=0)) / len(pairs) / V**0.5
        W_K, W_Q = W_K - eta * W_Q @ slope.T, W_Q - eta * W_K @ slope
    return np.array(curve)


def test_plain_gradient_descent_has_the_predicted_slope():
    data, eta, steps = (3, 2, 0.15, 0.4, 0.1), 5.0, 321
    names = ("topics", "words_per_topic", "p_mask", "p_keep", "p_random")
    settings: dict[str, Any] = dict(zip(names, data, strict=True)) | dict(learning_rate=eta)
    cases = []
    for seed in range(2):
        for scale in (1e-6, 1e-4, 1e-2):
            curve = gradient_descent(scale, seed, eta, steps, data)[::10]
            step = np.arange(0, steps, 10)
            cases.append(case(curve, step, seed=seed, init_scale=scale, **settings))
    row = fit_one(*cases)
    assert row["onsets"] == 6
    assert row["slope"] == pytest.approx(row["predicted_steps"], rel=1e-3)
    assert row["slope"] > 1.02 * row["predicted"], "the steps are large enough to tell the two apart"


def sweep_cases() -> list[Case]:
    eta = LAW["learning_rate"]
    rate = np.log1p(eta * RATE) / eta
    sgd = [grown(scale, 1.01 * rate, seed=seed) for scale in SCALES for seed in (0, 1)]
    adam = [
        case((3 * 1e-3 * STEP) ** 2, init_scale=scale, seed=seed, optimizer="adam", learning_rate=1e-3)
        for scale in SCALES
        for seed in (0, 1)
    ]
    return [*adam, *sgd, grown(1e-9, 1e-4)]


def test_the_picture_draws_the_predicted_slope_and_a_flat_line():
    picture = picture_of(run_of(*sweep_cases()))
    sgd, adam, slopes = (ax for part in picture.figure.subfigs for ax in part.axes)
    assert (sgd.get_title(), adam.get_title()) == ("SGD", "Adam")
    points, line = sgd.get_lines()
    assert len(points.get_xdata()) == 6
    (x0, x1), (y0, y1) = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert (y1 - y0) / (x1 - x0) == pytest.approx(10 / np.log(1 + 10 * RATE))
    height = np.asarray(adam.get_lines()[1].get_ydata())
    np.testing.assert_allclose(height, 0.1**0.5 / 3, rtol=1e-2)
    measured = slopes.containers[0].lines[0].get_xdata()[0]
    assert measured == pytest.approx(10 * RATE / np.log(1 + 10 * RATE) / 1.01, rel=1e-9)
    assert "12 of 13 trials (2 seeds) have one." in picture.caption
    assert "For these it changes by 0.0 to 0.0 %" in picture.caption
    assert "Without an onset: 1 below the level at every step." in picture.caption
    assert "Dotted" not in picture.caption and "Not drawn" not in picture.caption


@pytest.mark.usefixtures("laid_out")
def test_legends_of_many_settings_stay_inside_the_figure():
    """They were cut off at the edge of the figure."""
    one = dict(key_visibility="all", objective="squared", init="normal", l2=0.1, p_mask=0.2, batch_size=50)
    two = dict(key_visibility="unmasked", objective="cross_entropy", init="uniform", l2=0.01, p_mask=0.3)
    cases = [
        grown(scale, 2e-3, **kind, attention_dim=size, optimizer=optimizer)
        for kind in (one, two)
        for size in (8, 16)
        for optimizer in ("sgd", "adam")
        for scale in SCALES
    ]
    figure = picture_of(run_of(*cases)).figure
    figure.draw_without_rendering()
    legends = [ax.get_legend() for part in figure.subfigs for ax in part.axes if ax.get_legend()]
    assert len(legends) >= 2
    for legend in legends:
        box = legend.get_window_extent()
        assert box.x0 > -1 and box.y0 > -1, box
        assert box.x1 < figure.bbox.width + 1 and box.y1 < figure.bbox.height + 1, box


def test_an_onset_of_adam_that_depends_on_the_init_scale_is_not_drawn_flat():
    picture = picture_of(run_of(*(grown(scale, 2e-3, optimizer="adam") for scale in SCALES)))
    (x0, x1), (y0, y1) = (np.asarray(each) for each in picture.figure.axes[0].get_lines()[1].get_data())
    assert (y1 - y0) / (x1 - x0) == pytest.approx(1 / 2e-3), "the measured slope"
    assert "Dashed" not in picture.caption and "with Adam, the onset does depend" in picture.caption


def test_a_run_without_prediction_or_with_many_settings_is_drawn_too():
    cases = [
        grown(scale, 2e-3, objective="cross_entropy", l2=l2)
        for l2 in np.linspace(0.1, 1.0, 10)
        for scale in SCALES[: 1 if l2 < 0.3 else 3]
    ]
    picture = picture_of(run_of(*cases))
    (only,) = picture.figure.subfigs[0].axes
    assert len(only.get_lines()) == 2 * 6 and len(picture.figure.subfigs) == 1
    assert "Not drawn: 4 combinations of settings with fewer onsets." in picture.caption
    assert "Dotted lines are least-squares fits" in picture.caption and "Solid" not in picture.caption
    alone = picture_of(run_of(grown(1e-4, 2e-3, l2=1.0)))
    assert len(alone.figure.subfigs[0].axes[0].get_lines()) == 1, "one init scale has no slope to draw"
    assert "Dotted" not in alone.caption and "1 of 1 trial (1 seed)" in alone.caption


def test_of_very_many_slopes_and_onsets_some_are_drawn():
    cases = [
        grown(scale, 2e-3, learning_rate=10.0 + rate)
        for rate in range(onsets.MOST_SLOPES + 5)
        for scale in SCALES[:2]
    ]
    picture = picture_of(run_of(*cases))
    assert len(picture.figure.axes[-1].get_yticks()) == onsets.MOST_SLOPES
    assert "Not drawn below: 5 more slopes; those drawn are evenly spaced." in picture.caption
    again = run_of(*(grown(1e-4, 2e-3, seed=seed, step=STEP[::10]) for seed in range(onsets.MOST_POINTS + 1)))
    picture = picture_of(again)
    assert "at most 1,000 onsets per combination" in picture.caption
    assert len(np.asarray(picture.figure.axes[0].lines[0].get_xdata())) == onsets.MOST_POINTS


def test_a_run_without_onsets_or_a_level_of_zero_is_refused():
    lost = run_of(grown(1e-9, 1e-4), grown(1e-4, 2e-3, status="diverged"))
    with pytest.raises(UserError, match=r"no trial has an onset, a_topic = 0.1 reached after step 0"):
        picture_of(lost)
    with pytest.raises(UserError, match="level is 0; allowed: above 0"):
        onset_times(lost, 0)
    assert onset_fit(onset_times(lost))["slope"].isna().all()
