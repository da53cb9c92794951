"""`topicjax measure`: measuring is resumable, sharded and checked; its columns are like any others."""

import contextlib
import re
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from support.command_line import DEEP
from support.engine_runs import BASE, DEEP_BASE

import topicjax
from topicjax import cli
from topicjax.analysis.figures.any_run import any_page
from topicjax.analysis.page.contract import Chart, Page
from topicjax.analysis.page.explorer import drawn_charts
from topicjax.engine import measuring, resources, run
from topicjax.engine.options import Options
from topicjax.engine.resources import Resources
from topicjax.engine.stopping import StopRequests
from topicjax.errors import UserError
from topicjax.experiments.fingerprint import measure_code
from topicjax.experiments.one_layer.experiment import EXPERIMENT as ONE_LAYER
from topicjax.measures import Measure, load_measure
from topicjax.store import journal, verify
from topicjax.store.files import MEASURED, StoreError, part_files
from topicjax.sweep import expand, product
from topicjax.sweep.files import NamedSweep, load_sweep

EXPERIMENT = load_sweep(DEEP).experiment
SWEEP = product(seed=(0, 1), learning_rate=(0.01, 0.02), init_scale=(0.1, 0.3, 0.5))
STEPS = (0, 20, 40)


def spread(snapshot):
    """Return numbers of the weights, settings, data, step and key of a snapshot."""
    inputs, _ = snapshot.batch(3)
    return dict(
        largest=abs(snapshot.weights[0]).max(),
        given=snapshot.hypers.init_scale + 100 * snapshot.step,
        first_input=inputs[0, 0],
        drawn=jax.random.uniform(snapshot.key),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Twelve trials with snapshots at three steps, the first and last of them records."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    base = DEEP_BASE | dict(depth=2)
    named = NamedSweep("test", "A sweep of the tests.", EXPERIMENT, base, SWEEP, file=DEEP)
    options = Options(0, snapshots="0,20,40")
    trials = expand(EXPERIMENT.settings, base, SWEEP)
    run.run_sweep(named, trials, folder, options, Resources(jax.devices()[:1]))
    return folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory) -> pd.DataFrame:
    """What one call on four devices measures."""
    copied = shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run")
    return by_snapshot(topicjax.load(copied).measure(spread))


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process; return its exit code, output and messages."""
    monkeypatch.setattr(resources, "use_all_cores", lambda count=0: None)

    def call(*arguments) -> tuple[int, str, str]:
        code = cli.main([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return call


def by_snapshot(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_index(["trial_id", "step"]).sort_index()


def in_calls_of(monkeypatch, snapshots: int) -> None:
    """Let each device take this many snapshots a call, and write a part after every call."""
    monkeypatch.setattr(measuring, "CPU_LANES", snapshots)
    monkeypatch.setattr(measuring, "FLUSH_SECONDS", -1.0)


def stops_after_a_call(monkeypatch) -> None:
    """Simulate Ctrl-C during the first call."""

    class Pressed(StopRequests):
        def __call__(self) -> bool:
            self.first = signal.SIGINT
            return True

    monkeypatch.setattr(measuring, "stop_requests", lambda: contextlib.nullcontext(Pressed()))


def test_columns_are_of_their_snapshot_and_join_records_and_trials(trained, whole):
    loaded = topicjax.load(trained)
    assert len(whole) == 12 * 3
    batch, settings = {}, loaded.trials.set_index("trial_id")
    for (trial_id, step), row in whole.iterrows():
        own = settings.loc[trial_id]
        assert row["largest"] == pytest.approx(np.abs(loaded.restore(trial_id, step)[0]).max(), rel=1e-6)
        assert row["given"] == pytest.approx(own["init_scale"] + 100 * step, rel=1e-6)
        batch.setdefault(own["seed"], set()).add(row["first_input"])
    assert [len(found) for found in batch.values()] == [1, 1] and len(set.union(*batch.values())) == 2
    assert whole["drawn"].nunique() == 36  # a key of its own for each


def test_the_tables_of_a_run_have_the_columns(folder, whole):
    run = topicjax.load(folder)
    before = run.trajectories, run.trials
    run.measure(spread, steps=[0, 20])
    joined = by_snapshot(run.trajectories)
    assert list(joined.columns[-4:]) == ["largest", "given", "first_input", "drawn"]
    at = [step in (0, 20) for _, step in joined.index]
    assert joined["largest"].notna().tolist() == at
    pd.testing.assert_series_equal(joined["largest"][at], whole["largest"].loc[joined.index[at]])
    last = whole.xs(20, level="step")["largest"].loc[run.trials["trial_id"]]
    np.testing.assert_array_equal(run.trials["final_largest"], last)  # the last that was measured
    pd.testing.assert_frame_equal(run.trajectories[before[0].columns], before[0])
    pd.testing.assert_frame_equal(run.trials[before[1].columns], before[1])
    assert "largest" in run.trial(run.trials["trial_id"][0]).records
    parts = pd.read_parquet(folder / MEASURED / "spread")  # pandas reads the parts by itself
    assert len(parts) == 24
    assert run.setting_names == topicjax.load(folder).setting_names


def test_the_page_and_the_explorer_show_the_columns(folder):
    run = topicjax.load(folder)
    own = Page(charts=(Chart("Loss", {"loss": "loss"}),), replaces=("records",))
    (entry,) = any_page(own).figures["Measured after training"]
    assert not entry.fits(run, run.trials)
    run.measure(spread)
    assert entry.fits(run, run.trials)
    (picture,) = entry.make(run, run.trials)
    assert "largest" in picture.title and "loss" not in picture.title
    charts = {chart["title"]: chart for chart in drawn_charts(run, own)}
    assert {"Loss", "largest", "drawn"} <= charts.keys() and charts["largest"]["small"]


def test_an_interrupted_call_goes_on_where_it_stopped(folder, whole, monkeypatch):
    in_calls_of(monkeypatch, 2)
    run = topicjax.load(folder)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="28 snapshots are left"):
        stops_after_a_call(patch)
        run.measure(spread)
    assert len(run.measured["spread"]) == 8  # of one call: four devices, two snapshots each
    first = {path: path.read_bytes() for path in part_files(folder / MEASURED / "spread")}
    found = run.measure(spread)
    assert len(first) == 1 and all(path.read_bytes() == content for path, content in first.items())
    pd.testing.assert_frame_equal(by_snapshot(found), whole)
    assert not verify.verify(folder).problems


def test_a_part_written_just_before_the_process_was_killed_counts(folder, whole):
    run = topicjax.load(folder)
    run.measure(spread, steps=[20])
    *lines, last, _ = (folder / "journal.log").read_bytes().split(b"\n")
    assert b'"measured"' in last
    (folder / "journal.log").write_bytes(b"\n".join([*lines, b""]))
    assert topicjax.load(folder).measured == {}
    found = topicjax.load(folder).measure(spread, steps=[40])
    pd.testing.assert_frame_equal(by_snapshot(found), whole.loc[pd.IndexSlice[:, [20, 40]], :])


def test_one_device_and_a_selection_give_the_same_numbers(folder, whole):
    run = topicjax.load(folder)
    chosen = run.trials["trial_id"][:3].tolist()
    found = run.measure(spread, trials=[trial_id[:8] for trial_id in chosen], steps=[40, 0], devices=1)
    expected = whole.loc[pd.IndexSlice[sorted(chosen), [0, 40]], :]
    pd.testing.assert_frame_equal(by_snapshot(found), expected, check_exact=True)


def test_weights_that_changed_are_measured_again(folder, monkeypatch):
    """Rows count for the weights that were measured only, as after other code has trained a trial again."""
    run = topicjax.load(folder)
    run.measure(spread, steps=[20])
    sums = run.finished["snapshot_checksums"].map(lambda own: (*own[:1], "0" * 8, *own[2:]))
    vars(run)["finished"] = run.finished.assign(snapshot_checksums=sums)
    vars(run).pop("measured")
    assert run.measured["spread"].empty


REFUSED = {
    "a column of the run": (lambda s: {"loss": 1.0}, r"has a column loss, which the tables of .* has"),
    "a setting": (lambda s: {"depth": 1.0}, "has a column depth, which the tables"),
    "an array": (lambda s: {"all": s.weights[0]}, r"all of own has shape \(4, 4\); allowed: a number"),
    "no dict": (lambda s: s.weights, r"own returns \[.*; allowed: a dict of numbers by column"),
    "no column": (lambda s: {}, "own returns {}; allowed"),
    "an odd name": (lambda s: {"a b": 1.0}, "own has a column 'a b'; allowed: letters, digits and _"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_column_is_refused_before_anything_is_computed(case, trained):
    function, sentence = REFUSED[case]

    def own(snapshot):
        return function(snapshot)

    before = (trained / "journal.log").read_bytes()
    with pytest.raises(UserError, match=sentence):
        topicjax.load(trained).measure(own)
    assert (trained / "journal.log").read_bytes() == before and not (trained / MEASURED).exists()


def test_wrong_names_and_steps_are_refused(trained):
    run = topicjax.load(trained)
    for given, error, sentence in (
        (
            dict(measure="particpation"),
            UserError,
            "unknown measure 'particpation'; did you mean 'participation'",
        ),
        (dict(measure="there.py:mine"), UserError, "there is no file 'there.py'; allowed: FILE.py"),
        (
            dict(measure=lambda snapshot: {}),
            UserError,
            "the measure is named '<lambda>'; allowed: a function",
        ),
        (dict(measure=print), UserError, "allowed: a function made with def, or one of participation"),
        (dict(measure=spread, steps=[20, 30]), UserError, "is of step 30; there are: 0, 20, 40"),
        (dict(measure=spread, trials=["zz"]), StoreError, "no trial in .* begins with 'zz'"),
        (dict(measure=spread, devices=9), UserError, "--devices is 9; allowed: 1 to 4"),
    ):
        with pytest.raises(error, match=sentence):
            run.measure(**given)
    assert not (trained / MEASURED).exists()


def test_a_column_of_another_measure_is_refused(folder):
    def others(snapshot):
        return {"largest": 1.0}

    run = topicjax.load(folder)
    run.measure(spread, steps=[0])
    with pytest.raises(UserError, match="others has a column largest, which the measure spread has"):
        run.measure(others)


MINE = """import jax.numpy as jnp
OTHER = jnp.ones(1)

def mine(snapshot):
    return {{'shift': ({}) * OTHER[0]}}
"""


def test_a_users_file_on_the_command_line(folder, command, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(MINE.format("snapshot.hypers.learning_rate + snapshot.step"))
    code, out, err = command(
        "measure", folder, f"{file}:mine", "--filter", "learning_rate=0.01", "--steps", "20,40"
    )
    assert code == 0 and f"{folder}/measured/mine: shift of 12 snapshots in" in out, err
    code, out, _ = command("measure", folder, f"{file}:mine")
    assert code == 0 and "shift of 24 snapshots (12 were measured before) in" in out
    assert "measured afterwards: mine of 36 snapshots\n" in command("status", folder)[1]
    found = topicjax.load(folder).trajectories
    rates = topicjax.load(folder).trials.set_index("trial_id")["learning_rate"]
    there = found[found["shift"].notna()]
    np.testing.assert_allclose(there["shift"], there["step"] + rates[there["trial_id"]].to_numpy())

    file.write_text("# a comment\n" + MINE.format("snapshot.hypers.learning_rate + snapshot.step"))
    assert command("measure", folder, f"{file}:mine")[0] == 0  # the same code
    file.write_text(MINE.format("2 * snapshot.step"))
    code, _, err = command("measure", folder, f"{file}:mine")
    assert code == 2 and "has mine of other code (changed since: mine)" in err and "--again" in err
    assert command("measure", folder, f"{file}:mine", "--again")[0] == 0
    found = topicjax.load(folder).trajectories
    there = found[found["shift"].notna()]
    np.testing.assert_allclose(there["shift"], 2 * there["step"])
    assert len([*(folder / "set_aside").rglob("part-*.parquet")]) == 2
    assert not verify.verify(folder).problems


def test_what_a_users_file_raises_is_one_sentence(folder, command, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def measure(snapshot):\n    return 1 / 0\n")
    for typed, sentence in (
        (f"{file}", f"file {file} fails: ZeroDivisionError: division by zero ({file}, line 2, in measure)"),
        (f"{file}:mine", f"in {file}: unknown function 'mine'; allowed: measure; as {file}:NAME"),
    ):
        code, _, err = command("measure", folder, typed)
        assert code == 2 and err == f"topicjax: {sentence}\n"
    code, _, err = command("measure", folder, file, "--steps", "a")
    assert code == 2 and err == "topicjax: --steps is 'a'; allowed: whole numbers separated by commas\n"


def test_verify_notices_a_flipped_byte_and_repair_lets_it_be_measured_again(folder, whole, monkeypatch):
    in_calls_of(monkeypatch, 3)
    run = topicjax.load(folder)
    run.measure(spread)
    first, *_ = part_files(folder / MEASURED / "spread")
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(content)
    (problem,) = verify.verify(folder).problems
    assert problem.path == first and "its bytes are not those that were written" in problem.sentence
    with pytest.raises(StoreError, match="topicjax repair"):
        _ = topicjax.load(folder).trajectories
    _, moved = verify.repair(folder)
    assert [path.name for path in moved] == [first.name] and not verify.verify(folder).problems
    again = topicjax.load(folder)
    assert len(again.measured["spread"]) == 24
    pd.testing.assert_frame_equal(by_snapshot(again.measure(spread)), whole)


def test_a_lost_journal_is_written_again_with_what_was_measured(folder):
    run = topicjax.load(folder)
    run.measure(spread)
    before = journal.read_journal(folder)
    (folder / "journal.log").unlink()
    assert verify.verify(folder).problems
    verify.repair(folder)
    after = journal.read_journal(folder)
    assert after.measured == before.measured and after.commits == before.commits
    assert not verify.verify(folder).problems


def test_missing_and_foreign_parts_are_named(folder, command):
    topicjax.load(folder).measure(spread)
    (part,) = part_files(folder / MEASURED / "spread")
    foreign = part.with_name(f"part-{'a' * 12}.parquet")
    foreign.write_bytes(b"not ours")
    assert f"{foreign} is there, and {folder}/journal.log does not know it" in command("status", folder)[1]
    with pytest.raises(StoreError, match=r"does not know it; copy the folder again"):
        topicjax.load(folder).measure(spread)
    foreign.unlink()
    part.unlink()
    assert f"{part} is missing, though its snapshots are measured" in command("status", folder)[1]
    assert command("verify", folder)[0] == 1 and command("repair", folder)[0] == 0
    assert len(topicjax.load(folder).measure(spread)) == 36


def test_the_functions_of_the_guide_are_measures():
    """They are traced for the one-layer model, which the guide measures."""
    guide = (Path(DEEP).parent / "measuring.md").read_text()
    spec = ONE_LAYER.settings.make_trial(BASE).spec
    columns = []
    for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        made: dict = {}
        exec(text, made)
        (function,) = [own for own in made.values() if getattr(own, "__globals__", None) is made]
        calls_shipped = "topicjax.measures" in text  # then a change of the shipped ones is noticed
        assert ("measures/curvature.py" in measure_code(function, ONE_LAYER)) == calls_shipped
        columns += measuring.traced_columns(ONE_LAYER, spec, Measure("guide", function))
    diagnostics = ("", "_below", "_drift", "_se", "_virial")  # as lax.map sorts them
    scanned = [f"llc{name}_g{gamma}" for name in diagnostics for gamma in (1, 10, 100)]
    assert columns == ["outlier_v", "fresh_loss", *scanned]
    file = load_measure(str(Path(DEEP).parent / "llc_scan.py"))
    assert list(measuring.traced_columns(ONE_LAYER, spec, file)) == scanned and file.name == "llc_scan"
