"""The spread over seeds by cause: simulated grids of known variances, and grids made by hand."""

from typing import Any

import numpy as np
import pytest
from support.synthetic_runs import STEP, TWO_STAGE, Case, case, ramp, scored

from topicjax.analysis.one_layer import spread

VARIANCES = np.array([0.6, 0.25, 0.15])


def simulated(count: int, seeds: int, variances: np.ndarray = VARIANCES) -> np.ndarray:
    """Draw grids with these variances of documents, weights and remainder."""
    rng, sd = np.random.default_rng(0), np.sqrt(variances)
    rows, columns = rng.normal(size=(count, seeds, 1)), rng.normal(size=(count, 1, seeds))
    return 300 + sd[0] * rows + sd[1] * columns + sd[2] * rng.normal(size=(count, seeds, seeds))


def test_variances_are_estimated_without_bias() -> None:
    found = spread.variance_components(simulated(20_000, 6))
    error = found.std(axis=0) / len(found) ** 0.5
    assert (np.abs(found.mean(axis=0) - VARIANCES) < 4 * error).all() and (error < 0.005).all()


def test_a_grid_by_hand_has_the_sums_of_squares_of_the_textbook() -> None:
    grid = np.array([[10.0, 12.0, 11.0], [20.0, 24.0, 25.0], [33.0, 30.0, 36.0], [44.0, 41.0, 47.0]])
    rest = rows = columns = 0.0
    for i, j in np.ndindex(4, 3):
        rest += (grid[i, j] - grid[i].mean() - grid[:, j].mean() + grid.mean()) ** 2
        rows += (grid[i].mean() - grid.mean()) ** 2
        columns += (grid[:, j].mean() - grid.mean()) ** 2
    rest, rows, columns = rest / 6, rows / 3, columns / 2  # mean squares: 3 x 2, 3 and 2 degrees of freedom
    expected = [(rows - rest) / 3, (columns - rest) / 4, rest]
    assert spread.variance_components(grid) == pytest.approx(expected)
    assert spread.shares(grid).sum() == pytest.approx(1)
    assert np.isnan(spread.shares(np.full((3, 3), 0.1))).all()


def test_errors_of_the_jackknife_are_those_of_repeated_experiments() -> None:
    """The spread of an estimate over many grids, and how often two errors hold the truth."""
    grids = simulated(2000, 8)
    share, error = spread.shares(grids)[:, 0], spread.jackknife(spread.shares, grids)[:, 0]
    assert np.median(error) == pytest.approx(share.std(), rel=0.15)
    held = np.abs(share - VARIANCES[0]) < 2 * error
    assert 0.88 < held.mean() < 0.97
    mean = spread.jackknife(lambda own: own.mean(axis=(-2, -1)), grids)
    exact = np.sqrt((VARIANCES[0] + VARIANCES[1]) / 8 + VARIANCES[2] / 64)
    assert np.sqrt((mean**2).mean()) == pytest.approx(exact, rel=0.1)


def crossed(effect: Any, scale: float, seeds: int = 4, **changed: Any) -> list[Case]:
    """Make trials of crossed seeds whose onset is `effect(documents, weights)` after that of the scale."""
    cases = []
    for documents, weights in np.ndindex(seeds, seeds):
        begin = 300 - 20 * np.log10(scale) + effect(documents, weights)
        settings = dict(optimizer="sgd", seed=documents, init_seed=weights, init_scale=scale) | changed
        row, frame = case(ramp(0, 100), ramp(begin, begin + 100), **settings)
        cases.append((row, frame.assign(a_topic=np.fmin(0.1 * np.exp((STEP - begin) / 20), 1.5))))
    return cases


STEPS = np.array([-30.0, -10.0, 10.0, 30.0])


def test_documents_that_decide_hold_the_claim_and_weights_that_decide_fail_it() -> None:
    by_documents = [*crossed(lambda d, w: STEPS[d] + w, 1e-3), *crossed(lambda d, w: STEPS[d] + 3 - w, 1e-2)]
    run, scores = scored(*by_documents)
    assert spread.is_crossed(run, scores)
    verdict = spread.documents_cause_the_spread(run, scores)
    assert (verdict.verdict, verdict.numbers["estimates"], verdict.numbers["most"]) == ("holds", 4, 4)
    assert verdict.numbers["per_decade_onset_step"] == pytest.approx(20)
    table = spread.spread_table(run, scores).set_index("measure")
    onset = table.loc["onset_step"].iloc[0]
    assert onset["sd_documents"] == pytest.approx(STEPS.std(ddof=1))
    assert onset["sd_weights"] == pytest.approx(np.arange(4).std(ddof=1))
    assert (onset["document_seeds"], onset["weight_seeds"], onset["without"]) == (4, 4, 0)
    spread.spread_figure(run, scores).close()
    by_weights = crossed(lambda d, w: STEPS[w] + d, 1e-3)
    assert spread.documents_cause_the_spread(*scored(*by_weights)).verdict == "fails"
    both = crossed(lambda d, w: STEPS[w] + STEPS[d], 1e-3)
    assert spread.documents_cause_the_spread(*scored(*both)).verdict == "undecided"


def test_only_whole_grids_in_which_every_trial_has_an_onset_are_split() -> None:
    cases = crossed(lambda d, w: STEPS[d], 1e-3)
    run, scores = scored(*cases[:-1])
    assert not spread.is_crossed(run, scores)
    assert spread.documents_cause_the_spread(run, scores).verdict == "undecided"
    row, _ = cases[-1]
    never = scored(*cases[:-1], (row, case(ramp(0, 100), 0.0)[1]))
    table = spread.spread_table(*never).set_index("measure")
    assert table["without"].to_list() == [1, 1, 1] and table["sd_documents"].isna().all()
    assert spread.documents_cause_the_spread(*never).verdict == "undecided"
    assert not spread.is_crossed(*scored(*(case(*TWO_STAGE, seed=seed) for seed in range(4))))


def test_minus_one_is_the_seed_of_the_documents() -> None:
    """Trials of another sweep, with the default, complete a grid; the same trial twice counts once."""
    cases = crossed(lambda d, w: STEPS[d], 1e-3)
    diagonal = [number for number, (row, _) in enumerate(cases) if row["seed"] == row["init_seed"]]
    default = [(row | dict(init_seed=-1), frame) for row, frame in (cases[number] for number in diagonal)]
    others = [own for number, own in enumerate(cases) if number not in diagonal]
    for run in (scored(*others, *default), scored(*cases, *default)):
        ((_, own),) = spread.seed_grids(*run)
        assert len(own) == 16
