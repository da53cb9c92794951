"""The fit, Theta, log lag and onsets of curves whose answers are known."""

import numpy as np
import pytest
from support.synthetic_runs import saturating

from topicjax.analysis.one_layer.curves import Records, log_lag, monotone, onset, steady_maximum, theta


def brute_force_isotonic(values: np.ndarray) -> np.ndarray:
    """The minimax formula: max over a <= i of min over b >= i of the mean of values[a..b]."""
    n = len(values)

    def mean(a: int, b: int) -> float:
        return values[a : b + 1].mean()

    return np.array([max(min(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)])


def test_the_fit_is_the_isotonic_one_of_each_trial_alone():
    rng = np.random.default_rng(0)
    lengths = [1, 2, 3, 12, 7, 12, 1, 9] * 4
    step = np.concatenate([np.arange(n) for n in lengths])
    values = rng.normal(0.5, 0.5, len(step))
    fit = monotone(Records.of(step), values)
    for own, found in zip(*(np.split(x, np.cumsum(lengths)[:-1]) for x in (values, fit)), strict=True):
        expected = brute_force_isotonic(np.clip(own, 0, 1))
        np.testing.assert_allclose(found, expected - expected[0], atol=1e-12)


def test_the_fit_stays_exact_for_the_last_of_many_trials():
    step = np.tile(np.arange(5), 20_000)
    values = np.tile([0.0, 0.3, 0.1, 0.9, 0.7], 20_000)
    fit = monotone(Records.of(step), values).reshape(-1, 5)
    np.testing.assert_allclose(fit, np.tile([0, 0.2, 0.2, 0.8, 0.8], (20_000, 1)), atol=1e-10)


def test_a_non_finite_value_takes_only_its_own_trial():
    records = Records.of(np.array([0, 1, 2, 0, 1, 2]))
    fit = monotone(records, np.array([0, np.nan, 1, 0, 0.5, 1]))
    np.testing.assert_allclose(fit, [np.nan, np.nan, np.nan, 0, 0.5, 1])


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


def test_theta_is_the_maximum_over_a_fine_grid():
    rng = np.random.default_rng(1)
    for _ in range(50):
        F_V, F_A = (np.append(0, np.sort(rng.uniform(0, rng.uniform(0.3, 1), 8))) for _ in "VA")
        records, fine = Records.of(np.arange(9)), np.linspace(0, 8, 20_001)
        dense_V, dense_A = (np.interp(fine, np.arange(9), F) for F in (F_V, F_A))
        expected = np.minimum(dense_V, 1 - dense_A).max()
        assert theta(records, F_V, F_A)[0] == pytest.approx(expected, abs=1e-4)


def test_log_lag_of_two_exponentials_is_the_log_of_their_ratio():
    step = np.append(0, np.geomspace(1e-6, 1e3, 4000))  # Frullani's integral
    found = log_lag(Records.of(step), saturating(0, 0.2, step), saturating(0, 1.4, step))
    assert found[0] == pytest.approx(np.log(7), abs=1e-4)


def test_log_lag_starts_after_step_zero_and_needs_two_records():
    step = np.array([0, 1, np.e, 0, 5, 0])
    ones = np.array([0, 1, 1, 0, 1, 0.0])
    np.testing.assert_allclose(log_lag(Records.of(step), ones, 0 * ones), [1, np.nan, np.nan])


def test_onset_is_interpolated_and_absent_if_never_reached():
    step = np.array([0, 10, 20, 0, 10, 0, 7])
    curve = np.array([0, 0.4, 0.8, 0, 0.49, 0, 1.0])
    np.testing.assert_allclose(onset(Records.of(step), curve, 0.5), [12.5, np.nan, 3.5])
    fine = np.linspace(0, 5, 2001)
    found = onset(Records.of(fine), saturating(1, 1, fine), 0.5)
    assert found[0] == pytest.approx(1 + np.log(2), abs=1e-4)


def test_one_outlier_inside_a_trial_does_not_set_its_maximum():
    step = np.array([0, 1, 2, 3, 0, 1, 2])
    values = np.array([0, 9, 1, 2, 0, 1, 5.0])
    np.testing.assert_allclose(steady_maximum(Records.of(step), values), [2, 5])
