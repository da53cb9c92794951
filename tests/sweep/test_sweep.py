"""Sweeps expand to what itertools says, and mistakes give one sentence."""

import itertools
import math
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from support.calls import count_calls
from support.one_trial import axes_of
from support.one_trial import expand as trials

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import SETTINGS, TRIALS, Spec, make_trial, settings_of
from topicjax.settings import Setting
from topicjax.sweep import (
    Sweep,
    bind,
    chain,
    linspace,
    logspace,
    loguniform,
    product,
    sample,
    uniform,
    where,
    zipped,
)
from topicjax.sweep import expand as expand_any
from topicjax.trial import Trial, TrialSettings

SGD = product(optimizer="sgd", learning_rate=[1.0, 3.0])
ADAM = product(optimizer="adam", learning_rate=[0.01, 0.03, 0.1])


def made(base: dict[str, Any], rows: list[dict[str, Any]]) -> list[Trial]:
    """The trials by brute force: every row through make_trial, the first of equal ones kept."""
    return list(dict.fromkeys(make_trial(base | row) for row in rows))


def test_product_is_the_cartesian_product_with_the_last_axis_fastest() -> None:
    sweep = product(optimizer=["sgd", "adam"], seed=range(3), l2=(0.0, 0.1))
    combinations = itertools.product(["sgd", "adam"], [0, 1, 2], [0.0, 0.1])
    assert list(sweep) == [dict(optimizer=o, seed=s, l2=x) for o, s, x in combinations]
    assert len(sweep) == 12
    assert list(sweep)[1] == dict(optimizer="sgd", seed=0, l2=0.1)


@pytest.mark.parametrize("values", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), [1.0, 2.0]])
def test_every_kind_of_axis_gives_plain_values_of_the_settings_type(values: Any) -> None:
    rows = list(bind(TRIALS, product(seed=values, l2=values)))
    assert [(row["seed"], row["l2"]) for row in rows] == [(1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)]
    assert {type(row["seed"]) for row in rows} == {int}
    assert {type(row["l2"]) for row in rows} == {float}


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.array(0.5)])
def test_single_values_and_strings_are_axes_of_one_value(value: Any) -> None:
    assert list(product(optimizer="sgd", l2=value)) == [dict(optimizer="sgd", l2=0.5)]


def test_no_axes_are_one_trial_with_nothing_set() -> None:
    assert list(product()) == [{}]
    assert list(zipped()) == [{}]
    assert product() * SGD == SGD == SGD * product()


def test_zipped_pairs_by_position_and_repeats_single_values() -> None:
    sweep = zipped(seed=range(3), optimizer="sgd", l2=[0.0, 0.1, 0.2])
    pairs = zip(range(3), [0.0, 0.1, 0.2], strict=True)
    assert list(sweep) == [dict(seed=s, optimizer="sgd", l2=x) for s, x in pairs]
    assert list(zipped(seed=4, l2=0.5)) == [dict(seed=4, l2=0.5)]


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_zipped_refuses_unequal_lengths(seeds: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"seed has {len(seeds)}, l2 has 3; allowed: equal"):
        zipped(seed=seeds, l2=[0, 1, 2])


def test_cross_has_the_left_side_outside() -> None:
    left, right = product(seed=range(3)), chain(SGD, ADAM)
    assert list(left * right) == [a | b for a, b in itertools.product(left, right)]
    assert len(left * right) == 3 * (2 + 3)


def test_cross_refuses_a_setting_on_both_sides() -> None:
    with pytest.raises(ValueError, match=r"both sides of \* set learning_rate, optimizer; allowed"):
        _ = SGD * ADAM


def test_chain_joins_in_order_and_makes_conditional_axes() -> None:
    sweep = chain(SGD, ADAM, product(seed=3))
    assert list(sweep) == [*SGD, *ADAM, dict(seed=3)]
    pairs = [(t.spec.optimizer, t.hypers.learning_rate) for t in trials({}, chain(ADAM, SGD))]
    assert pairs == [("adam", 0.01), ("adam", 0.03), ("adam", 0.1), ("sgd", 1.0), ("sgd", 3.0)]


def test_where_sees_the_settings_of_the_sweep() -> None:
    sweep = product(seed=range(4), l2=[0, 0.5])
    assert list(where(sweep, lambda s: s["l2"] * s["seed"] > 0.5)) == [
        dict(seed=2, l2=0.5),
        dict(seed=3, l2=0.5),
    ]


def test_where_names_a_misspelt_setting() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'learning_rat'; did you mean 'learning_rate'\?"):
        where(SGD, lambda s: s["learning_rat"] == 0)


def test_a_sweep_cannot_be_changed_through_what_it_hands_out() -> None:
    sweep = product(seed=[1, 2])
    next(iter(sweep))["seed"] = 7
    where(sweep, lambda s: s.update(seed=9) is None)
    assert list(sweep) == [dict(seed=1), dict(seed=2)]


@pytest.mark.parametrize(("lo", "hi", "n"), [(1e-4, 1e-1, 7), (0.3, 30, 5), (10, 0.1, 4), (2, 5, 2)])
def test_spaced_values_have_exact_ends_and_equal_steps(lo: float, hi: float, n: int) -> None:
    for values in (logspace(lo, hi, n), linspace(lo, hi, n)):
        assert len(values) == n
        assert (values[0], values[-1]) == (lo, hi)
        assert {type(value) for value in values} == {float}
    ratios = [b / a for a, b in itertools.pairwise(logspace(lo, hi, n))]
    np.testing.assert_allclose(ratios, (hi / lo) ** (1 / (n - 1)), rtol=2e-5)
    np.testing.assert_allclose(np.diff(linspace(lo, hi, n)), (hi - lo) / (n - 1), rtol=1e-9)


def test_spaced_values_print_nicely_and_keep_ends_of_many_digits() -> None:
    assert logspace(1e-4, 1e-1, 7) == (1e-4, 3.16228e-4, 1e-3, 3.16228e-3, 1e-2, 3.16228e-2, 0.1)
    assert linspace(0.1, 0.5, 5) == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert logspace(1.23456789, 9.87654321, 2) == (1.23456789, 9.87654321)
    assert logspace(2, 3, 1) == linspace(2, 3, 1) == (2.0,)


@pytest.mark.parametrize(("lo", "hi", "n"), [(0, 1, 3), (1, -1, 3), (1, math.inf, 3), (1, 2, 0)])
def test_logspace_refuses_ends_without_a_logarithm_and_no_values(lo: float, hi: float, n: int) -> None:
    with pytest.raises(ValueError, match=rf"logspace has {lo}, {hi}, {n}; allowed: above 0"):
        logspace(lo, hi, n)


@pytest.mark.parametrize(("lo", "hi", "n"), [(0, math.nan, 3), (0, 1, 0), (0, 1, 10**12)])
def test_linspace_refuses_infinite_ends_and_impossible_counts(lo: float, hi: float, n: int) -> None:
    with pytest.raises(ValueError, match=rf"linspace has {lo}, {hi}, {n}; allowed: finite"):
        linspace(lo, hi, n)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        (dict(learning_rat=1), r"unknown setting 'learning_rat'; did you mean 'learning_rate'\?"),
        (dict(word_query_probability=0.1), "unknown setting 'word_query_probability'"),
        (dict(seed=[0, 1.5]), "seed is 1.5; allowed: a whole number"),
        (dict(seed="1"), "seed is '1'; allowed: a whole number"),
        (dict(seed=True), "seed is True; allowed: a whole number"),
        (dict(l2=[[1, 2]]), r"l2 is \[1, 2\]; allowed: a number"),
        (dict(optimizer=["sgd", "adagrad"]), "optimizer is 'adagrad'; allowed: sgd, momentum"),
        (dict(l2=np.ones((1, 2))), r"l2 is \[1.0, 1.0\]; allowed: a number"),
        (dict(seed=[]), "axis seed has no values"),
        (dict(seed=range(10**30)), "axis seed has no values or too many; allowed: 1 to 100000"),
    ],
)
@pytest.mark.parametrize("combine", [product, zipped])
def test_wrong_names_and_values_are_refused_before_anything_is_planned(
    combine: Any, axes: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        bind(TRIALS, combine(**axes))


def test_a_sweep_of_hand_written_rows_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'sede'; did you mean 'seed'\?"):
        trials({}, Sweep((dict(sede=1),)))
    with pytest.raises(ValueError, match="l2 is 'x'; allowed: a number"):
        trials({}, Sweep((dict(l2="x"),)))
    with pytest.raises(ValueError, match=r"l2 is \[1\]; allowed: a number"):
        trials({}, Sweep((dict(l2=[1]),)))
    with pytest.raises(ValueError, match=r"a sweep has \[1, 2\]; allowed: dicts of settings"):
        Sweep(([1, 2],))  # pyright: ignore


def test_sweeps_that_would_fill_the_memory_are_refused_before_they_are_made() -> None:
    many = product(seed=range(1001))
    rates = linspace(0, 1, 1000)
    sentence = "the sweep has 1,001,000 trials; allowed: up to 1,000,000; shorten an axis"
    before = time.process_time()
    with pytest.raises(UserError, match=sentence):
        product(seed=range(1001), l2=rates)
    with pytest.raises(UserError, match=sentence):
        _ = many * product(l2=rates)
    with pytest.raises(UserError, match=sentence):
        chain(*[many] * 1000)
    with pytest.raises(UserError, match=r"the sweep has 10,000,000,000 trials"):
        product(seed=range(100_000), l2=linspace(0, 1, 100_000))
    assert time.process_time() - before < 10


def test_trials_equal_make_trial_row_by_row() -> None:
    base = dict(steps=40, batch_size=8, p_mask=0.2, l2=0.25)
    sweep = product(seed=range(2), init_scale=[0.1, 0.2], topics=[3, 4]) * chain(SGD, ADAM)
    expanded = trials(base, sweep)
    assert expanded == made(base, list(sweep))
    assert len(expanded) == 2 * 2 * 2 * 5
    assert (expanded[0].spec.steps, expanded[0].stream.p_mask, expanded[0].hypers.l2) == (
        40,
        0.2,
        0.25,
    )


def test_equal_trials_are_one_where_they_first_appear() -> None:
    default = SETTINGS["momentum"].default
    base = dict(l2=0.75, optimizer="momentum")
    sweep = chain(
        product(seed=[2, 1, 2]),
        product(seed=1, momentum=[default, 0.5]),  # the first is the default: a repetition
        product(l2=0.75, seed=[1, 3]),  # l2 is the base's: the first is a repetition
    )
    expanded = trials(base, sweep)
    assert [(t.stream.seed, t.hypers.momentum) for t in expanded] == [
        (2, default),
        (1, default),
        (1, 0.5),
        (3, default),
    ]
    assert expanded == made(base, list(sweep))


def test_the_sweep_wins_over_the_base() -> None:
    assert [t.stream.seed for t in trials(dict(seed=9), product(seed=[1, 9]))] == [1, 9]


def test_twenty_thousand_trials_expand_to_distinct_identities() -> None:
    sweep = product(seed=range(100), init_scale=logspace(1e-4, 1, 40)) * chain(SGD, ADAM)
    expanded = trials({}, sweep)
    assert len(expanded) == len(set(expanded)) == 20_000
    assert len({t.spec for t in expanded}) == len({id(t.spec) for t in expanded}) == 2
    sample = list(sweep)[::997]
    assert expanded[::997] == [make_trial(row) for row in sample]


def test_values_are_checked_once_however_many_trials_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, Any]] = []
    check = Setting.check
    monkeypatch.setattr(
        Setting, "check", lambda own, value: checked.append((own.name, value)) or check(own, value)
    )
    fresh = TrialSettings("one_layer", *TRIALS.classes)  # it has checked nothing yet
    axes = dict(seed=range(30), learning_rate=logspace(1e-4, 1, 20), optimizer=("sgd", "adam"))
    assert len(expand_any(fresh, dict(l2=0.5), product(**axes))) == 30 * 20 * 2
    assert len(checked) == len(set(checked)) == len(SETTINGS) - len(axes) + 30 + 20 + 2


def test_the_work_of_expanding_and_naming_grows_with_the_trials_alone() -> None:
    def name_all(sweep: Sweep) -> None:
        for trial in expand_any(TRIALS, {}, sweep):
            TRIALS.trial_id(trial)

    def sampled(count: int) -> Sweep:
        return sample(count, seed=range(count), learning_rate=loguniform(1e-4, 1.0), p_keep=uniform(0, 0.3))

    calls = [count_calls(name_all, sampled(count)) for count in (500, 2000)]
    assert (
        calls[1] < 4.2 * calls[0] and calls[1] < 120 * 2000
    )  # 385 where every value of every trial is checked


def test_impossible_trials_say_which_one() -> None:
    with pytest.raises(ValueError, match=r"multiple of record_every = 20 \(in the .* steps=30, seed=0"):
        trials({}, product(steps=[40, 30], seed=range(2)))
    with pytest.raises(ValueError, match=r"at most topics = 3 \(in the trial with topics=3\)"):
        trials(dict(documents="tau", topics_per_document=4), product(topics=[5, 3]))
    with pytest.raises(ValueError, match=r"l2 is -1.0; .* \(in the trial with the base alone\)"):
        trials(dict(l2=-1), product())


def test_limits_between_parts_are_checked_for_every_combination() -> None:
    good = chain(product(topics=5, topics_per_document=5), product(topics=3, topics_per_document=3))
    assert len(trials(dict(documents="tau"), good)) == 2
    with pytest.raises(ValueError, match="topics_per_document is 5; allowed: at most topics = 3"):
        trials(dict(documents="tau"), chain(good, product(topics=3, topics_per_document=5)))


def test_empty_sweeps_are_refused() -> None:
    with pytest.raises(ValueError, match="the sweep has no trials; allowed: one or more"):
        trials({}, where(SGD, lambda s: False))


@pytest.mark.parametrize("expand", [trials, axes_of])
def test_a_wrong_base_is_refused(expand: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'step'; did you mean 'steps'\?"):
        expand(dict(step=20), SGD)
    with pytest.raises(ValueError, match=r"the base is Spec\(.*; allowed: a dict of settings"):
        expand(Spec(), SGD)


def test_axes_are_the_settings_that_differ_with_values_in_order() -> None:
    sweep = product(seed=[3, 1], l2=0.5) * chain(SGD, ADAM, product(batch_size=8))
    axes = axes_of(dict(learning_rate=0.07), sweep)
    assert list(axes.items()) == [
        ("seed", [3, 1]),
        ("optimizer", ["sgd", "adam"]),
        ("learning_rate", [1.0, 3.0, 0.01, 0.03, 0.1, 0.07]),
        ("batch_size", [SETTINGS["batch_size"].default, 8]),
    ]
    expanded = [settings_of(trial) for trial in trials(dict(learning_rate=0.07), sweep)]
    assert {n for n in SETTINGS if len({s[n] for s in expanded}) > 1} == set(axes)


def test_sweeps_are_read_without_jax() -> None:
    check = "import sys, topicjax.sweep.files, topicjax.sweep.overrides; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_sample_is_spread_evenly_over_all_axes_together() -> None:
    rows = list(
        sample(512, learning_rate=loguniform(1e-4, 1.0), l2=uniform(0.0, 2.0), optimizer=("sgd", "adam"))
    )
    rate = np.log10([row["learning_rate"] for row in rows])
    l2 = np.array([row["l2"] for row in rows])
    assert ((rate >= -4) & (rate <= 0)).all() and ((l2 >= 0) & (l2 <= 2)).all()
    counts, *_ = np.histogram2d(rate, l2, bins=(4, 4), range=((-4, 0), (0, 2)))
    assert (
        np.abs(counts - 32).max() <= 4
    )  # independent numbers would stray by 5.5 each, three times as far in 16
    assert sum(row["optimizer"] == "sgd" for row in rows) == pytest.approx(256, abs=8)


def test_a_larger_sample_begins_with_the_smaller_one() -> None:
    axes = dict(learning_rate=loguniform(1e-4, 1.0), init_scale=loguniform(1e-5, 0.3))
    assert list(sample(40, **axes))[:10] == list(sample(10, **axes))
    assert list(sample(10, 1, **axes)) != list(sample(10, **axes))


def test_a_sample_combines_as_any_sweep_does() -> None:
    sweep = sample(7, learning_rate=loguniform(0.1, 1.0)) * product(seed=range(5))
    assert len(trials({}, sweep)) == 35
    assert len(axes_of({}, sweep)["learning_rate"]) == 7


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: sample(0, l2=uniform(0, 1)), "sample has 0 points of 1 axes; allowed: 1 to 100000"),
        (lambda: sample(3), "sample has 3 points of 0 axes; allowed"),
        (lambda: sample(3, l2=[]), "axis l2 has no values"),
        (lambda: loguniform(0, 1), "loguniform has 0, 1; allowed: two finite numbers above 0"),
        (lambda: uniform(2, 1), "uniform has 2, 1; allowed: two finite numbers, the smaller first"),
        (lambda: uniform(0, math.inf), "uniform has 0, inf; allowed"),
    ],
)
def test_mistakes_in_samples_are_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()
