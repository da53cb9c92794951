"""Cycles of focus and dilution: curves with known humps, noise, and claims about them."""

from typing import Any

import numpy as np
import pytest
from support.synthetic_runs import TWO_STAGE, Case, case, scored

from topicjax.analysis.one_layer import dilution

X = np.linspace(0, 1, 200)
HUMP, TWO_HUMPS = np.sin(np.pi * X), np.sin(2 * np.pi * X) ** 2


def noisy(curve: Any, sd: float, seed: int = 0) -> np.ndarray:
    return curve + sd * np.random.default_rng(seed).normal(size=len(X))


@pytest.mark.parametrize(
    ("curve", "cycles", "rises"),
    {
        "one hump": (1.7 * HUMP, 1, 1),
        "two humps": (1.7 * TWO_HUMPS, 2, 2),
        "a hump and a rise": (np.where(X < 0.5, TWO_HUMPS, 2 * X - 1), 1, 2),
        "a fall and a hump": (-1.7 * TWO_HUMPS[::-1] + X, 1, 2),
        "monotone": (3 * X**2, 0, 1),
        "falling": (-3 * X, 0, 0),
        "flat": (0 * X, 0, 0),
        "a small second hump": (1.7 * np.where(X < 0.5, TWO_HUMPS, 0.05 * TWO_HUMPS), 1, 1),
        "too small to matter": (0.09 * TWO_HUMPS, 0, 0),
        "noise": (noisy(0 * X, 1.0), 0, 0),
        "monotone with noise": (noisy(3 * X, 0.1), 0, 1),
        "two humps with noise": (noisy(3 * TWO_HUMPS, 0.1), 2, 2),
    }.values(),
)
def test_cycles_of_a_curve(curve: np.ndarray, cycles: int, rises: int) -> None:
    course = dilution.course_of(curve)
    assert (course.cycles, course.rises) == (cycles, rises)
    flipped = dilution.course_of(-curve)
    assert flipped.sizes == tuple(-size for size in course.sizes)  # a turn is a turn upside down


def test_turning_points_are_the_extremes_between_which_the_curve_swings() -> None:
    curve = np.array([0.0, 0.05, 0.0, 1.0, 3.0, 2.8, 2.9, 1.0, 1.2, 0.9, 2.0, 2.5, 2.4])
    assert dilution.turning_points(curve, 0.3) == (0, 4, 9, 11)
    assert dilution.turning_points(curve, 1.9) == (0, 4, 9)
    assert dilution.turning_points(np.r_[0.0, 0.01, -np.arange(5)], 0.3) == (
        1,
        6,
    )  # the first swing is a fall
    assert dilution.turning_points(curve, 5.0) == (0,)
    assert dilution.turning_points(curve[4:], 0.3) == (0, 5, 7)


def test_noise_is_that_of_the_noisiest_quarter_and_not_the_trend() -> None:
    late = np.where(X > 0.75, noisy(0 * X, 0.2), 0)
    noise = dilution.noise_of(5 * X + late)
    assert noise[[0, 149]] == pytest.approx(0, abs=1e-9) and noise[150:] == pytest.approx(0.2, rel=0.3)
    rates = [dilution.course_of(noisy(0 * X, 1.0, seed)).cycles > 0 for seed in range(300)]
    assert np.mean(rates) < 0.05  # false alarms on pure noise


STEP = 10 * np.arange(len(X))


def curve_of(same: Any, exponent: float, seed: int, other: Any = 0.0, **changed: Any) -> Case:
    """Make a trial with these scores of frequent minus rare words."""
    known = dict(word_distribution="zipf", zipf_exponent=exponent, optimizer="sgd", steps=int(STEP[-1]))
    row, frame = case(
        *(np.interp(STEP, np.arange(0, 1001, 10), own) for own in TWO_STAGE), STEP, **known | changed
    )
    columns = dict(a_frequent=same, a_frequent_other=other, a_topic_weighted=0.5)
    return row | dict(seed=seed), frame.assign(**columns, rank_k=1 + 5 * HUMP, rank_q=2.0, rank_v=3.0)


def seeds(same: Any, exponent: float, **changed: Any) -> list[Case]:
    return [curve_of(same, exponent, seed, **changed) for seed in range(3)]


def test_one_cycle_in_every_seed_fails_the_claim() -> None:
    run, scores = scored(*seeds(1.7 * HUMP, 1.0), *seeds(0.0, 0.0))
    assert dilution.has_frequencies(run, scores)
    verdict = dilution.cycles_repeat(run, scores)
    assert (verdict.verdict, verdict.numbers) == ("fails", dict(settings=1, repeat=0, once=1))
    assert (
        "1, 1, 1 cycles, same topic up to 1.70 at" in verdict.sentence
        and "control swings by 0.00" in verdict.sentence
    )
    table = dilution.dilution_table(run, scores)
    row = table[table["cycles"] == "1 1 1"].iloc[0]
    assert row["peak"] == pytest.approx(1.7, rel=1e-3) and row["peak_step"] == pytest.approx(1000, abs=20)
    assert row["rank_k_most"] == pytest.approx(6, rel=1e-3)
    for picture in dilution.dilution_figure(run, scores):
        picture.close()


@pytest.mark.parametrize(
    ("groups", "verdict"),
    [
        ([(TWO_HUMPS, 1.0), (TWO_HUMPS, 0.5), (0 * X, 0.0)], "holds"),
        ([(TWO_HUMPS, 1.0), (HUMP, 0.5), (0 * X, 0.0)], "partly"),
        ([(TWO_HUMPS, 1.0), (TWO_HUMPS, 0.0)], "fails"),  # the control swings alike
        ([(0 * X, 0.0)], "undecided"),
    ],
)
def test_cycles_count_in_most_seeds_and_beside_a_control(groups: list, verdict: str) -> None:
    cases = [own for curve, exponent in groups for own in seeds(2 * curve, exponent)]
    assert dilution.cycles_repeat(*scored(*cases)).verdict == verdict


def test_swings_count_beyond_what_the_control_has_swung_until_then() -> None:
    """An early hump of 0.5 counts, although the control swings by 1 later; a late one does not."""
    humps, control = 0.5 * TWO_HUMPS, np.where(X > 0.4, 1.0, 0.0) * (X - 0.4) / 0.6
    assert dilution.swung(np.array([0.0, 2.0, 1.0, -1.0])).tolist() == [0, 2, 2, 3]
    assert dilution.course_of(humps).cycles == 2
    assert dilution.course_of(humps, dilution.swung(-control)).cycles == 1
    found = dilution.courses(scored(*seeds(humps, 1.0), *seeds(-control, 0.0))[0])
    own = found[(found["column"] == "a_frequent") & (found["zipf_exponent"] == 1)]
    assert own["cycles"].tolist() == [1, 1, 1] and own["control"].to_numpy() == pytest.approx(1)


def test_keys_of_other_topics_count_as_well_and_uniform_words_do_not() -> None:
    other = seeds(0.0, 1.0, other=2 * TWO_HUMPS)
    assert dilution.cycles_repeat(*scored(*other)).verdict == "holds"
    uniform = scored(curve_of(np.nan, 1.0, 0, other=np.nan, word_distribution="uniform"))
    assert not dilution.has_frequencies(*uniform)
    assert dilution.cycles_repeat(*uniform).verdict == "undecided"
    assert not dilution.has_frequencies(*scored(case(*TWO_STAGE)))
