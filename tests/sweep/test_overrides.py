"""Changes from the command line: how texts are read, what --set selects and what --axis replaces."""

import functools
import itertools
from typing import Any

import pytest
from support.one_trial import expand as trials

from topicjax.errors import UserError
from topicjax.experiments.one_layer.settings import TRIALS, settings_of, trial_id
from topicjax.sweep import Sweep, bind, chain, overrides, product, where
from topicjax.sweep.files import NamedSweep
from topicjax.sweep.overrides import override

parse_axis = functools.partial(overrides.parse_axis, TRIALS)
parse_setting = functools.partial(overrides.parse_setting, TRIALS)
SGD = product(optimizer="sgd", learning_rate=[1.0, 3.0])
ADAM = product(optimizer="adam", learning_rate=[0.01, 0.03, 0.1])
CHAINED = product(seed=range(2)) * chain(SGD, ADAM)


def changed(
    sweep: Sweep, sets: tuple[str, ...] = (), axes: tuple[str, ...] = (), **base: Any
) -> tuple[NamedSweep, list[str]]:
    """Return the sweep over this base after --set and --axis, and the notes."""
    return override(NamedSweep("mine", "", "one_layer", base, bind(TRIALS, sweep)), sets, axes)


def settings(named: NamedSweep, *names: str) -> list[tuple]:
    """Return the values of some settings of each trial."""
    return [tuple(settings_of(trial)[name] for name in names) for trial in trials(named.base, named.sweep)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("steps=200", 200),
        ("steps=1e3", 1000),
        (" learning_rate = 1e-3 ", 0.001),
        ("learning_rate=.5", 0.5),
        ("l2=0", 0.0),
        ("infinite_documents=true", True),
        ("infinite_documents=False", False),
        ("optimizer=sgd", "sgd"),
    ],
)
def test_settings_are_read_in_their_own_type(text: str, value: Any) -> None:
    name, found = parse_setting(text)
    assert (name, found, type(found)) == (text.split("=")[0].strip(), value, type(value))
    assert parse_axis(text) == (name, (value,))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepz=3", r"unknown setting 'stepz'; did you mean 'steps'\?"),
        ("stepz", r"unknown setting 'stepz'; did you mean 'steps'\?"),
        ("word_query_probability=0.5", "unknown setting 'word_query_probability'"),
        ("=3", "unknown setting ''"),
        ("steps", "steps is ''; allowed: a whole number"),
        ("steps=", "steps is ''; allowed: a whole number"),
        ("steps=many", "steps is 'many'; allowed: a whole number"),
        ("steps=2.5", "steps is 2.5; allowed: a whole number"),
        ("seed=" + "9" * 400, "seed is inf; allowed: a whole number"),
        ("l2==3", "l2 is '=3'; allowed: a number"),
        ("infinite_documents=1", "infinite_documents is '1'; allowed: true or false"),
        ("optimizer=SGD", "optimizer is 'SGD'; allowed: sgd, momentum, adam, adamw"),
    ],
)
@pytest.mark.parametrize("parse", [parse_setting, parse_axis])
def test_unreadable_settings_say_what_is_allowed(parse: Any, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_a_list_is_no_value_of_a_setting() -> None:
    with pytest.raises(ValueError, match="steps is '20,40'; allowed: a whole number"):
        parse_setting("steps=20,40")


def test_axes_are_read_as_lists_and_ranges() -> None:
    assert parse_axis("learning_rate=1e-3, 1e-2,1") == ("learning_rate", (0.001, 0.01, 1.0))
    assert parse_axis("optimizer=sgd,adam") == ("optimizer", ("sgd", "adam"))
    assert parse_axis("l2=log:1e-3:10:5") == ("l2", (0.001, 0.01, 0.1, 1.0, 10.0))
    assert parse_axis("l2=lin:0:1:5") == ("l2", (0.0, 0.25, 0.5, 0.75, 1.0))
    assert parse_axis("seed=range:2:5") == ("seed", (2, 3, 4))
    assert {type(value) for value in parse_axis("steps=log:10:1000:3")[1]} == {int}


@pytest.mark.parametrize(
    "values",
    ["log:1:2", "log:0:1:3", "log:a:1:3", "log:1:2:0", "log:1:2:2.5", "lin:0:1", "range:3"]
    + ["range:0:9:2", "range:0:1.5", "lgo:1:2:3", "1,log:1:2:3", ":"],
)
def test_unreadable_axes_say_what_is_allowed(values: str) -> None:
    with pytest.raises(ValueError, match=f"axis 'l2={values}' cannot be read; allowed after =: v1,v2"):
        parse_axis(f"l2={values}")


def test_axes_of_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seed is 0\.5; allowed: a whole number"):
        parse_axis("seed=lin:0:1:3")
    with pytest.raises(ValueError, match="axis seed has no values"):
        parse_axis("seed=range:3:3")
    with pytest.raises(ValueError, match="axis seed has no values or too many"):
        parse_axis("seed=range:0:" + "9" * 400)


def test_setting_what_the_sweep_varies_selects_trials_with_all_their_other_settings() -> None:
    found, notes = changed(CHAINED, ("optimizer=adam",))
    rates = [0.01, 0.03, 0.1]
    assert settings(found, "optimizer", "seed", "learning_rate") == [
        ("adam", seed, rate) for seed in range(2) for rate in rates
    ]
    assert notes == ["--set optimizer=adam keeps 6 of 10 trials"]


def test_selected_trials_are_trials_of_the_whole_sweep() -> None:
    every = {trial_id(trial) for trial in trials({}, CHAINED)}
    found, _ = changed(CHAINED, ("optimizer=sgd", "seed=1"))
    selected = {trial_id(trial) for trial in trials(found.base, found.sweep)}
    assert len(selected) == 2 and selected < every


def test_a_branch_that_does_not_name_a_setting_has_it_from_the_base() -> None:
    sweep = chain(product(l2=[0.1, 0.5]), product(seed=[1, 2]))
    found, notes = changed(sweep, ("l2=0.25",), l2=0.25)
    assert settings(found, "seed", "l2") == [(1, 0.25), (2, 0.25)]
    assert notes == ["--set l2=0.25 keeps 2 of 4 trials"]
    assert settings(changed(sweep, ("l2=0",))[0], "seed", "l2") == [(1, 0.0), (2, 0.0)]  # the default


def test_every_selection_says_how_many_trials_remain() -> None:
    _, notes = changed(CHAINED, ("seed=0", "optimizer=sgd"))
    assert notes == ["--set seed=0 keeps 5 of 10 trials", "--set optimizer=sgd keeps 2 of 5 trials"]


def test_the_order_of_options_does_not_matter() -> None:
    sweep = chain(product(optimizer="sgd", steps=40), product(optimizer="adam", seed=[0, 1]))
    for sets in itertools.permutations(("optimizer=adam", "steps=1000", "seed=1")):
        assert settings(changed(sweep, sets)[0], "optimizer", "steps", "seed") == [("adam", 1000, 1)]
    for sets in itertools.permutations(("optimizer=adam", "steps=40")):
        with pytest.raises(UserError, match="leaves no trial"):  # only the branch of SGD has 40 steps
            changed(sweep, sets)


def test_setting_what_the_sweep_leaves_open_changes_all_trials() -> None:
    found, notes = changed(CHAINED, ("steps=40", "l2=0.5"), l2=0.1)
    assert settings(found, "steps", "l2") == [(40, 0.5)] * 10
    assert found.base == dict(steps=40, l2=0.5)
    assert found.sweep == CHAINED
    assert notes == []


def test_a_value_of_which_all_trials_are_needs_no_note() -> None:
    found, notes = changed(SGD, ("optimizer=sgd",))
    assert settings(found, "optimizer", "learning_rate") == [("sgd", 1.0), ("sgd", 3.0)]
    assert notes == []


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (
            ("learning_rate=0.2",),
            r"--set learning_rate=0\.2 leaves no trial: the sweep has learning_rate at 1\.0, 3\.0, 0\.01, "
            r"0\.03, 0\.1; to use another value instead: --axis learning_rate=0\.2",
        ),
        (
            ("optimizer=adam", "learning_rate=3"),
            r"has learning_rate at 0\.01, 0\.03, 0\.1; .* --axis learning_rate=3",
        ),
        (("optimizer=momentum",), "has optimizer at sgd, adam; .* --axis optimizer=momentum"),
    ],
)
def test_a_value_the_sweep_does_not_have_is_refused_with_advice(sets: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        changed(CHAINED, sets)


def test_advice_lists_a_few_values_only() -> None:
    with pytest.raises(UserError, match=r"seed at 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.; to use"):
        changed(product(seed=range(20)), ("seed=20",))


def test_an_axis_replaces_the_one_of_its_name_and_varies_fastest() -> None:
    found, notes = changed(CHAINED, axes=("learning_rate=0.5,0.25",), learning_rate=7.0)
    combinations = itertools.product(range(2), ["sgd", "adam"], [0.5, 0.25])
    assert list(found.sweep) == [dict(seed=s, optimizer=o, learning_rate=x) for s, o, x in combinations]
    assert settings(found, "learning_rate")[:2] == [(0.5,), (0.25,)]
    assert notes == []


def test_new_axes_are_crossed_with_all_trials_in_the_order_given() -> None:
    found, _ = changed(chain(SGD, ADAM), ("steps=40",), ("seed=range:0:2", "l2=0,0.5"))
    combinations = itertools.product([*SGD, *ADAM], range(2), [0.0, 0.5])
    assert list(found.sweep) == [row | dict(seed=s, l2=x) for row, s, x in combinations]
    assert {trial.spec.steps for trial in trials(found.base, found.sweep)} == {40}


def test_a_selection_and_an_axis_go_together() -> None:
    found, notes = changed(CHAINED, ("optimizer=adam",), ("learning_rate=0.5",))
    assert settings(found, "optimizer", "seed", "learning_rate") == [("adam", 0, 0.5), ("adam", 1, 0.5)]
    assert notes == ["--set optimizer=adam keeps 6 of 10 trials"]


def test_where_is_not_applied_again() -> None:
    even = where(product(seed=range(4)), lambda s: s["seed"] % 2 == 0)
    assert settings(changed(even, axes=("seed=1",))[0], "seed") == [(1,)]


def test_overrides_without_texts_change_nothing() -> None:
    named = NamedSweep("mine", "", "one_layer", dict(l2=0.5), chain(SGD, ADAM))
    assert override(named, [], []) == (named, [])


@pytest.mark.parametrize(
    ("sets", "axes"),
    [(("l2=1",), ("l2=1,2",)), (("l2=1", "l2=2"), ()), ((), ("l2=1", "l2=2"))],
)
def test_a_setting_overridden_twice_is_refused(sets: tuple[str, ...], axes: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="l2 is given twice; allowed: once"):
        changed(SGD, sets, axes)
