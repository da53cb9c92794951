"""The fingerprint of an experiment changes with its code, and with nothing else; folders hold to it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import pytest

import topicjax
from topicjax.cli import main
from topicjax.experiments import SHIPPED, load_experiment
from topicjax.experiments.fingerprint import changed_parts, fingerprint
from topicjax.experiments.one_shot import one_shot
from topicjax.store.files import StoreError
from topicjax.store.reader import status
from topicjax.sweep import product
from topicjax.sweep.files import load_sweep

FILE = '''"""A number that falls."""
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
import jax.numpy as jnp
from helpers import shrink
from topicjax import Experiment, Real, TrialSettings, Whole
from topicjax.sweep import product

TARGET = 0.5

@dataclass(frozen=True)
class Spec:
    """Static settings."""
    steps: Annotated[int, Whole(1), "training steps"] = 4
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 2

class Stream(NamedTuple):
    seed: Annotated[Any, Whole(0), "of the start"] = 0

class Hypers(NamedTuple):
    rate: Annotated[Any, Real(low=0), "of the fall"] = 0.1

def loss(state):
    """Compare with the target."""
    return (state - TARGET) ** 2

def update(spec, stream, hypers, state, batch, step):
    return shrink(state, hypers.rate), None  # a comment

def report():
    raise NotImplementedError

EXPERIMENT = Experiment(
    settings=TrialSettings("falling", Spec, Stream, Hypers),
    init=lambda spec, stream, hypers: jnp.float32(1 + stream.seed),
    update=update,
    measure=lambda spec, stream, hypers, source, state, batch, made: dict(loss=loss(state)),
    weights=lambda spec, state: {},
)
SWEEP = product(rate=(0.1, 0.2))
'''
HELPERS = "def shrink(state, rate):\n    return state * (1 - rate)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_file(folder: Path, old: str = "", new: str = "") -> dict[str, str]:
    """Return the fingerprint of the file with one text replaced."""
    assert old in FILE
    (folder / "mine.py").write_text(FILE.replace(old, new) if old else FILE)
    return fingerprint(load_sweep(str(folder / "mine.py")).experiment)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Compare with the target."""', '"""Other words."""'),
        ("  # a comment", ""),
        ("(0.1, 0.2))", "(0.1, 0.2, 0.3))"),
        ("raise NotImplementedError", "return None"),
        ("dict(loss=loss(state))", "dict( loss = loss(state), )"),
    ],
)
def test_words_sweeps_and_pages_change_nothing(folder, old, new):
    assert of_file(folder, old, new) == of_file(folder)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("TARGET = 0.5", "TARGET = 7.0", ["TARGET"]),
        ("(state - TARGET) ** 2", "abs(state - TARGET)", ["loss"]),
        ("1 + stream.seed", "2 + stream.seed", ["EXPERIMENT"]),
        ("= 0.1\n\ndef loss", "= 0.3\n\ndef loss", ["Hypers"]),
    ],
)
def test_what_changes_results_is_named(folder, old, new, parts):
    assert changed_parts(of_file(folder), of_file(folder, old, new)) == parts


PAGED = (
    "def report():\n    raise NotImplementedError",
    "BEST = 1\n\ndef scores(run):\n    return loss(run) < BEST\n\ndef report():\n    return scores",
)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("BEST = 1", "BEST = 2", []),
        ("loss(run) < BEST", "loss(run) > BEST", []),
        ("TARGET = 0.5", "TARGET = 7.0", ["TARGET"]),
        ("(state - TARGET) ** 2", "abs(state - TARGET)", ["loss"]),  # which the report uses too
        ("(0.1, 0.2))", "(0.1, 0.2))\nif BEST > 2:\n    del SWEEP", ["...", "BEST"]),  # used elsewhere
    ],
)
def test_what_only_the_report_uses_changes_nothing(folder, monkeypatch, old, new, parts):
    own = FILE.replace(*PAGED)
    monkeypatch.setitem(globals(), "FILE", own)
    assert changed_parts(of_file(folder), of_file(folder, old, new)) == parts


def test_modules_beside_the_file_count(folder):
    before = of_file(folder)
    (folder / "helpers.py").write_text(HELPERS.replace("1 - rate", "1 - 2 * rate"))
    assert changed_parts(before, of_file(folder)) == ["helpers.shrink"]


def test_a_version_stands_for_the_code(folder):
    experiment = load_sweep(str(folder / "mine.py")).experiment
    assert fingerprint(replace(experiment, version=3)) == {"version": "3"}


def made_at_run_time(factor: str) -> Any:
    names: dict = {"jnp": jax.numpy}
    exec(f"def train(hypers, key):\n    return (), dict(loss=jnp.full(1, {factor}))", names)
    return names["train"]


def test_functions_without_a_file_and_inside_wrappers_count():
    class Rate(NamedTuple):
        rate: Annotated[Any, topicjax.Real(low=0), "of nothing"] = 0.1

    first, second, again = (
        fingerprint(one_shot("wrapped", made_at_run_time(factor), Rate, ("loss",)))
        for factor in ("1.0", "2.0", "1.0")
    )
    assert first == again != second and changed_parts(first, second) == ["train"]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_experiments_are_their_slice_what_slices_share_and_theory(name):
    parts = fingerprint(load_experiment(name))
    folders = {part.rpartition("/")[0] for part in parts}
    assert folders == {f"experiments/{name}", "experiments/shared", "theory"}
    assert f"experiments/{name}/experiment.py" in parts


def test_a_folder_of_other_code_is_refused_until_it_is_asked_for(folder, capsys, monkeypatch):
    """The loss compared with 0.5, then with 7: the second run once said that nothing was left to train."""
    monkeypatch.setattr("topicjax.engine.resources.use_all_cores", lambda *_: None)  # jax has started already
    assert main(["run", "mine.py"]) == 0
    (folder / "mine.py").write_text(FILE.replace("TARGET = 0.5", "TARGET = 7.0"))
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}
    for command in ("plan", "run"):
        assert main([command, "mine.py"]) == 2
        said = capsys.readouterr().err
        assert "results/mine holds trials of other code (changed since: TARGET)" in said
        assert "allowed: another folder (--out), or --other-code to add to this one" in said
    assert {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")} == before
    assert main(["run", "mine.py", "--other-code", "--axis", "rate=0.3"]) == 0
    versions = status("results/mine").versions
    assert len(versions) == 2 and all("falling code " in text for text in versions)
    capsys.readouterr()
    assert main(["status", "results/mine"]) == 0
    assert "trained by 2 versions of the code" in capsys.readouterr().out
    assert main(["report", "results/mine"]) == 0
    assert (
        "These trials were trained by 2 versions of the code" in Path("results/mine/report.html").read_text()
    )
    experiment = load_sweep("mine.py").experiment
    with pytest.raises(StoreError, match="trials of other code"):
        topicjax.sweep(experiment, product(rate=0.4), "results/mine", name="mine")
    topicjax.sweep(experiment, product(rate=0.4), "results/mine", name="mine", other_code=True)
