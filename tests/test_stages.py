"""Progress curves whose scores are known: closed forms, plain loops over one trial, one trial among many."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import isotonic_regression
from support.synthetic_runs import ramp, saturating

from topicjax import stages
from topicjax.pace import due_windows
from topicjax.stages import Records, log_lag, monotone, onset, steady_maximum, theta

LENGTHS = [1, 2, 3, 12, 7, 40, 1, 9, 25] * 4
STARTS = np.cumsum(LENGTHS)[:-1]


def random_trials() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, two noisy rises and a loss of trials of many lengths, one of them not finite."""
    rng = np.random.default_rng(0)
    step = np.concatenate([np.append(0, np.cumsum(rng.integers(1, 9, n - 1))) for n in LENGTHS])
    place = np.concatenate([np.linspace(0, 1, n) for n in LENGTHS])
    first = np.clip(2.5 * place, 0, 1) + rng.normal(0, 0.2, len(step))
    second = np.clip(3 * place - 1.5, 0, 1.2) + rng.normal(0, 0.2, len(step))
    first[STARTS[2] + 4] = np.nan
    return step, first, second, 3 - first - second


def alone(*arrays: np.ndarray):
    """Yield the arrays of one trial after the other."""
    return zip(*(np.split(values, STARTS) for values in arrays), strict=True)


def loop_isotonic(step: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The minimax formula: max over a <= i of min over b >= i of the mean of values[a..b], by steps."""
    n, gap = len(values), np.diff(step)
    weights = np.array([*gap[:1], *gap]) if len(gap) else np.ones(1)

    def mean(a: int, b: int) -> float:
        return np.average(values[a : b + 1], weights=weights[a : b + 1])

    return np.array([max(min(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)])


def loop_steady(values: np.ndarray) -> np.ndarray:
    inner = [np.median(values[i - 1 : i + 2]) for i in range(1, len(values) - 1)]
    return np.array([values[0], *inner, values[-1]][: len(values)])


def loop_onset(step: np.ndarray, curve: np.ndarray, level: float) -> float:
    for i, value in enumerate(curve):
        if value >= level:
            if i == 0:
                return step[0]
            return step[i - 1] + (level - curve[i - 1]) / (value - curve[i - 1]) * (step[i] - step[i - 1])
    return np.nan


def loop_theta(first: np.ndarray, second: np.ndarray) -> float:
    """The maximum on a fine grid between records."""
    best = min(first[0], 1 - second[0])
    for i in range(1, len(first)):
        for share in np.linspace(0, 1, 1001):
            value = first[i - 1] + share * (first[i] - first[i - 1])
            other = second[i - 1] + share * (second[i] - second[i - 1])
            best = max(best, min(value, 1 - other))
    return best


def loop_log_lag(step: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    if len(step) < 3:
        return np.nan
    return float(np.trapezoid((first - second)[1:], np.log(step[1:])))


def loop_way_up(loss: np.ndarray, first: np.ndarray, second: np.ndarray, finished: float) -> int:
    p, q = loop_steady(first), loop_steady(second)
    for i in range(len(q)):
        if q[i] >= 1:
            if p[i] >= finished:
                return i
            break
    return int(np.argmin(np.where(np.isfinite(loss), loss, np.inf)))


def loop_recession(step: np.ndarray, progress: np.ndarray) -> float:
    unit = min(np.diff(step), default=1)
    tenths: dict[int, list[float]] = {}
    for at, value in zip(step, progress, strict=True):
        tenths.setdefault(10 * int(at) // int(step[-1] + unit), []).append(min(max(value, 0), 1))
    means = [np.mean(values) for values in tenths.values()]
    return max(means) - means[-1]


def loop_sure_maximum(values: np.ndarray, errors: float) -> float:
    changes = np.diff(values)
    noise = 0.0
    if len(changes):
        noise = 1.4826 / 2**0.5 * np.median(np.abs(changes - np.median(changes)))
    near = [values[max(i - 2, 0) : i + 3] for i in range(len(values))]
    return max(own.mean() - errors * noise / len(own) ** 0.5 for own in near)


def test_every_score_is_that_of_a_plain_loop_over_one_trial():
    step, P, Q, loss = random_trials()
    records = Records.of(step)
    F, G = monotone(records, P), monotone(records, Q)
    last, steady = stages.way_up(records, loss, P, Q, 0.8), stages.steady(records, Q)
    found = stages.compare(records, F, G)
    found |= dict(boundary=stages.boundary(records, F, G), recession=stages.recession(records, Q))
    found |= dict(noise=stages.sure_maximum(records, Q, 3.0), then=stages.value_at_onset(records, F, G))
    found |= dict(growth=stages.growth(records, 2 + Q), maximum=steady_maximum(records, Q))
    for trial, (own, p, q, lower, f, g, smooth) in enumerate(alone(step, P, Q, loss, F, G, steady)):
        assert last[trial] - records.start[trial] == loop_way_up(lower, p, q, 0.8)
        np.testing.assert_array_equal(smooth, loop_steady(q))
        expected = loop_isotonic(own, np.clip(q, 0, 1))
        np.testing.assert_allclose(g, expected - expected[0], atol=1e-12)
        score = {name: values[trial] for name, values in found.items()}
        assert score["recession"] == pytest.approx(loop_recession(own, q), abs=1e-12)
        assert score["noise"] == pytest.approx(loop_sure_maximum(q, 3.0), abs=1e-12)
        assert score["maximum"] == loop_steady(q).max() and score["growth"] == (2 + q).max() / (2 + q[0])
        if not np.isfinite(p).all():
            assert np.isnan(f).all() and np.isnan(score["theta"]) and np.isnan(score["boundary"])
            continue
        assert score["theta"] == pytest.approx(loop_theta(f, g), abs=2e-3)
        assert min(np.interp(score["boundary"], own, f), 1 - np.interp(score["boundary"], own, g)) == (
            pytest.approx(score["theta"], abs=1e-12)
        )
        assert score["log_lag"] == pytest.approx(loop_log_lag(own, f, g), abs=1e-12, nan_ok=True)
        half = loop_onset(own, f, 0.5)
        assert score["onset_first"] == pytest.approx(half, abs=1e-9, nan_ok=True)
        then = np.nan if np.isnan(half) else np.interp(half, own, g)
        assert score["then"] == pytest.approx(then, abs=1e-9, nan_ok=True)


def test_a_trial_has_the_same_bits_alone_as_among_others():
    step, P, Q, loss = random_trials()

    def scores(step: np.ndarray, P: np.ndarray, Q: np.ndarray, loss: np.ndarray) -> pd.DataFrame:
        records = Records.of(step)
        F, G = monotone(records, P), monotone(records, Q)
        found = stages.compare(records, F, G)
        found |= stages.compare(*(records, stages.share_of_rise(records, Q), G), 0.3)
        found |= dict(last=stages.way_up(records, loss, P, Q, 0.8) - records.start, end=G[records.end])
        found |= dict(recession=stages.recession(records, P), sure=stages.sure_maximum(records, Q, 3.0))
        found |= dict(boundary=stages.boundary(records, F, G), then=stages.value_at_onset(records, F, G))
        found |= dict(rise=monotone(records, stages.rise(records, Q))[records.end])
        found |= dict(norm=monotone(records, stages.norm_rise(records, 1 + Q))[records.end])
        found |= dict(mean=records.mean(Q, records.last(0.3)), median=records.median(Q))
        return pd.DataFrame(found)

    with np.errstate(all="ignore"):
        together = scores(step, P, Q, loss)
        single = pd.concat([scores(*own) for own in alone(step, P, Q, loss)], ignore_index=True)
    pd.testing.assert_frame_equal(together, single, check_exact=True)


def test_the_fit_of_the_last_of_many_trials_is_exact():
    step = np.tile(np.arange(5), 20_000)
    values = np.tile([0.0, 0.3, 0.1, 0.9, 0.7], 20_000)
    fit = monotone(Records.of(step), values).reshape(-1, 5)
    np.testing.assert_array_equal(fit, np.tile(fit[0], (20_000, 1)))
    np.testing.assert_allclose(fit[0], [0, 0.2, 0.2, 0.8, 0.8], atol=1e-15)


def test_a_non_finite_value_takes_only_its_own_trial():
    records = Records.of(np.array([0, 1, 2, 0, 1, 2]))
    fit = monotone(records, np.array([0, np.nan, 1, 0, 0.5, 1]))
    np.testing.assert_allclose(fit, [np.nan, np.nan, np.nan, 0, 0.5, 1])


def test_medians_are_those_of_pandas():
    step, P, Q, _ = random_trials()
    records = Records.of(step)
    for values in (P, Q, np.full(len(step), np.nan)):
        expected = pd.Series(values).groupby(records.owner).median().to_numpy()
        np.testing.assert_array_equal(records.median(values), expected)


def test_two_ramps_of_equal_slope():
    """F = t/100 and (t - 50)/100 add up to 1 at t = 75."""
    step = np.arange(0, 301, 10)
    records = Records.of(step)
    found = stages.compare(records, ramp(0, 100, step), ramp(50, 150, step))
    assert found["theta"][0] == pytest.approx(0.75) and found["theta_reversed"][0] == pytest.approx(0.25)
    assert (found["onset_first"][0], found["onset_second"][0]) == pytest.approx((50, 100))
    assert stages.boundary(records, ramp(0, 100, step), ramp(50, 150, step))[0] == pytest.approx(75)


def test_without_a_crossing_the_boundary_is_where_the_first_gets_to_its_end():
    step = np.arange(0, 1001, 10)
    first, second = 0.85 * ramp(0, 200, step), 0.1 * ramp(500, 600, step)
    assert stages.boundary(Records.of(step), first, second)[0] == 200
    assert theta(Records.of(step), first, second)[0] == pytest.approx(0.85)


def test_jumps_have_the_log_of_their_ratio_as_lag():
    step = np.append(0, np.geomspace(1, 1000, 4001))
    found = log_lag(Records.of(step), (step >= 10) * 1.0, (step >= 200) * 1.0)
    assert found[0] == pytest.approx(np.log(20), abs=2e-3)


@pytest.mark.parametrize("lag", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_theta_of_equal_exponentials_is_the_logistic_of_their_lag(lag: float):
    # x = exp(-t / tau): 1 - x = x exp(lag), so Theta = 1 / (1 + exp(-lag)); swapped: 1 - Theta
    step = np.linspace(0, 20, 4001)
    records = Records.of(step)
    F_V, F_A = saturating(0, 1, step), saturating(lag, 1, step)
    expected = 1 / (1 + np.exp(-lag))
    assert theta(records, F_V, F_A)[0] == pytest.approx(expected, abs=1e-4)
    assert theta(records, F_A, F_V)[0] == pytest.approx(1 - expected, abs=1e-4)


def test_theta_of_a_twice_slower_rise_is_the_golden_ratio():
    step = np.linspace(0, 20, 4001)
    found = theta(Records.of(step), saturating(0, 1, step), saturating(0, 2, step))
    assert found[0] == pytest.approx((np.sqrt(5) - 1) / 2, abs=1e-4)  # 1 - x^2 = x


def test_log_lag_of_two_exponentials_is_the_log_of_their_ratio():
    step = np.append(0, np.geomspace(1e-6, 1e3, 4000))  # Frullani's integral
    found = log_lag(Records.of(step), saturating(0, 0.2, step), saturating(0, 1.4, step))
    assert found[0] == pytest.approx(np.log(7), abs=1e-4)


def test_a_curve_has_the_same_scores_whichever_of_its_steps_are_recorded():
    """A rise with an early bump, and one that falls late: every 20 steps, and 40 records per decade."""
    every, steps = 20, 20_000
    even = np.arange(0, steps + 1, every)
    sparse = np.append(every * due_windows(40, steps // every), steps)
    assert len(sparse) < len(even) / 8

    def curves(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bump = 0.45 * np.exp(-(np.log(np.maximum(step, 1) / 200) ** 2) / 0.3)
        return saturating(0, 900, step) + bump, saturating(0, 6000, step) - 0.3 * (step > 12_000)

    scores, fits, ends = [], [], []
    for step in (even, sparse):
        records = Records.of(step)
        P, Q = curves(step)
        F, G = monotone(records, P), monotone(records, Q)
        fits.append(F)
        ends.append(G[-1])
        found = stages.compare(records, F, G)
        found |= dict(boundary=stages.boundary(records, F, G), recession=stages.recession(records, Q))
        scores.append({name: float(values[0]) for name, values in found.items()})
    dense, thin = scores
    for name in ("theta", "theta_reversed", "log_lag", "recession"):
        assert thin[name] == pytest.approx(dense[name], abs=0.01), name
    for name in ("onset_first", "onset_second", "boundary"):
        assert thin[name] == pytest.approx(dense[name], rel=0.02), name
    plain = isotonic_regression(np.clip(curves(even)[0], 0, 1)).x
    np.testing.assert_array_equal(fits[0], np.clip(plain - plain[0], 0, 1))
    plain = isotonic_regression(np.clip(curves(sparse)[1], 0, 1)).x  # equal weights: a lower end
    assert ends[1] == pytest.approx(ends[0], abs=0.005) and abs(plain[-1] - plain[0] - ends[0]) > 0.015


def test_log_lag_starts_after_step_zero_and_needs_two_records():
    step = np.array([0, 1, np.e, 0, 5, 0])
    ones = np.array([0, 1, 1, 0, 1, 0.0])
    np.testing.assert_allclose(log_lag(Records.of(step), ones, 0 * ones), [1, np.nan, np.nan])


def test_onset_is_interpolated_and_absent_if_never_reached():
    step = np.array([0, 10, 20, 0, 10, 0, 7])
    curve = np.array([0, 0.4, 0.8, 0, 0.49, 0, 1.0])
    np.testing.assert_allclose(onset(Records.of(step), curve), [12.5, np.nan, 3.5])
    fine = np.linspace(0, 5, 2001)
    found = onset(Records.of(fine), saturating(1, 1, fine), 0.5)
    assert found[0] == pytest.approx(1 + np.log(2), abs=1e-4)


def test_one_outlier_inside_a_trial_does_not_set_its_maximum():
    step = np.array([0, 1, 2, 3, 0, 1, 2])
    values = np.array([0, 9, 1, 2, 0, 1, 5.0])
    np.testing.assert_allclose(steady_maximum(Records.of(step), values), [2, 5])


def test_rises_are_shares_of_a_trials_own_maximum():
    records = Records.of(np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]))
    values = np.array([1, 2, 5.0, 3, 3, 3, 3, 2, 1])
    np.testing.assert_allclose(stages.rise(records, values), [0, 0.25, 1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(stages.rise(records, values, 4.0)[:3], 0)  # a rise of 4 is not above 4
    fallen = [0, 0.25, 1, 0, 0, 0, np.nan, np.nan, np.nan]
    np.testing.assert_allclose(stages.norm_rise(records, values), fallen)
    shares = stages.share_of_rise(records, values - 1)
    np.testing.assert_allclose(shares, [0, 0.25, 1, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan])
