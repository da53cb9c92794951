"""Every option of a run is one field: flag, argument, manifest key and check follow from it."""

import inspect
import json
import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.engine_runs import DEEP_BASE, DEEP_LINEAR, train_sweep

import topicjax
from topicjax.cli.commands import typed_options
from topicjax.cli.parser import make_parser
from topicjax.engine.cluster.messages import Task
from topicjax.engine.options import OPTIONS, Options, flag, make_options, read_options
from topicjax.errors import UserError
from topicjax.sweep import product

NAMES = [field.name for field in fields(Options)]
OTHER = dict(  # for every option a value that is not its default, as typed and as meant
    lanes=("3", 3),
    devices=("2", 2),
    cluster=("local:2", "local:2"),
    order=("lane", "lane"),
    round_products=("bf16", "bf16"),
    layout=("results/a", Path("results/a")),
    snapshots=("log:3", "log:3"),
    save_every=("5", 5.0),
    other_code=(None, True),
    extend=(None, True),
)
WRONG = dict(
    lanes=-1,
    devices=0,
    cluster="somewhere",
    order="both",
    round_products="fp8",
    layout="a\0b",
    snapshots=5,
    save_every=float("nan"),
    other_code="yes",
    extend="yes",
)


def test_every_option_is_tried_here():
    assert list(OTHER) == list(WRONG) == NAMES == list(OPTIONS)


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_a_flag(command, name):
    text, value = OTHER[name]
    typed = make_parser().parse_args([command, "smoke", flag(name), *([text] if text else [])])
    assert typed_options(typed) == replace(Options(), **{name: value})
    assert "%" not in OPTIONS[name].help and OPTIONS[name].allowed


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_an_argument_of_sweep(name):
    parameter = inspect.signature(topicjax.sweep).parameters[name]
    assert parameter.default == getattr(Options(), name)
    assert f"{name}: {OPTIONS[name].help}" in topicjax.sweep.__doc__
    assert getattr(make_options({name: OTHER[name][1]}), name) == OTHER[name][1]


def test_every_option_is_in_the_manifest_or_says_why_not(tmp_path):
    train_sweep(tmp_path / "run", product(seed=0), DEEP_BASE, 1, 1, experiment=DEEP_LINEAR)
    entry = json.loads((tmp_path / "run" / "manifest.json").read_text())["runs"][0]
    missing = [name for name in NAMES if name not in entry and not OPTIONS[name].unrecorded]
    assert not missing
    assert {name: entry[name] for name in ("lanes", "order", "snapshots")} == dict(
        lanes=1, order="", snapshots="last"
    )


def test_workers_are_told_every_option():
    assert Task.__annotations__["options"] is Options
    given = Options(**{name: value for name, (_, value) in OTHER.items()})
    assert pickle.loads(pickle.dumps(given)) == given


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value_is_the_same_sentence_everywhere(name, tmp_path):
    with pytest.raises(UserError, match=rf"^{name} is .*; allowed: ") as called:
        topicjax.sweep("one_layer", product(seed=0), tmp_path / "run", **{name: WRONG[name]})
    assert OPTIONS[name].allowed in str(called.value) and not list(tmp_path.iterdir())
    if name not in ("other_code", "extend", "snapshots"):  # a flag without a value; any text may be typed
        with pytest.raises(UserError) as typed:
            read_options({name: str(WRONG[name])})
        assert str(typed.value).partition(" is ")[0] == flag(name)
        assert str(typed.value).partition("; ")[2] == str(called.value).partition("; ")[2]


def test_unknown_and_contradicting_options_are_refused():
    with pytest.raises(UserError, match="unknown option 'lane'; did you mean 'lanes'"):
        make_options({"lane": 1})
    with pytest.raises(UserError, match="--layout is given with --lanes, --devices or --order; allowed"):
        read_options({"layout": "a", "lanes": "1"})
    with pytest.raises(UserError, match="devices names devices of this process and cluster is given"):
        make_options({"devices": ["a device"], "cluster": "auto"})
