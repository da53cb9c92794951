"""Output for programs: one JSON object with the documented fields, nothing else on standard output."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.json_fields import DOCS, check_fields, redrawn

from topicjax import cli
from topicjax.bench import compare, deep, sizes, tiny
from topicjax.bench.timing import Method
from topicjax.cli import json_output
from topicjax.cli.json_output import FIELDS
from topicjax.sweep.files import sweep_names


def test_the_page_lists_the_fields_of_the_code():
    text = DOCS.read_text()
    assert redrawn(text) == text, "to write them again: .venv/bin/python tests/support/json_fields.py"


def read(capsys, form: str, *arguments: str, code: int = 0, empty: tuple[str, ...] = ()) -> dict:
    """Run a command with --json, and check its output: every field, except those of arrays that are empty."""
    assert cli.main([*arguments, "--json"]) == code
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    check_fields(form, found, empty)
    return found


@pytest.fixture(autouse=True)
def devices_are_set(monkeypatch):
    for module in ("engine.resources", "bench.compare", "bench.deep", "bench.tiny"):
        monkeypatch.setattr(f"topicjax.{module}.use_all_cores", lambda *_: None)


def test_list_and_settings(capsys):
    found = read(capsys, "list", "list")["sweeps"]
    assert [each["name"] for each in found] == list(sweep_names())
    (two_stage,) = [each for each in found if each["name"] == "two_stage"]
    assert two_stage["trials"] == 480 and "Theorem 3" not in two_stage["claims"]
    (own,) = read(capsys, "settings", "settings", "smoke")["experiments"]
    by_name = {each["name"]: each for each in own["settings"]}
    assert own["experiment"] == "one_layer" and by_name["topics"]["part"] == "Spec"
    assert by_name["seed"]["part"] == "Stream" and by_name["learning_rate"]["part"] == "Hypers"
    assert len(read(capsys, "settings", "settings")["experiments"]) > 2


def test_plan_says_the_same_as_its_text(smoke, capsys):
    folder, _ = smoke
    found = read(capsys, "plan", "plan", "smoke", "--set", "learning_rate=0.3", "--axis", "l2=0,1e-3")
    assert (found["trials"], found["left"], found["finished"]) == (8, 8, 0)
    assert found["axes"]["l2"] == [0, 1e-3] and found["refinement"] is None
    assert found["notes"] == ["--set learning_rate=0.3 keeps 4 of 16 trials"]
    assert sum(each["trials"] for each in found["programs"]) == 8
    whole = read(capsys, "plan", "plan", "smoke", "--out", str(folder), empty=("programs[].",))
    assert (whole["finished"], whole["left"], whole["programs"]) == (16, 0, [])


def test_a_users_file_may_print(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = (DOCS.parent / "deep_linear.py").read_text()
    Path("own.py").write_text(
        f"print('hello from my file')\n{source}\nREFINE = dict(axes=('learning_rate',), levels=1)\n"
    )
    assert cli.main(["plan", "own.py", "--set", "depth=1", "--json"]) == 0
    captured = capsys.readouterr()
    refinement = json.loads(captured.out)["refinement"]
    assert "hello from my file" in captured.err and refinement["axes"] == ["learning_rate"]
    assert refinement["most_trials"] > 80 and not list(tmp_path.glob("results*"))


def test_status_and_verify(smoke, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(smoke[0], folder)
    found = read(capsys, "status", "status", str(folder))
    assert (found["planned"], found["finished"], found["running"]) == (16, 16, None)
    assert found["plans"] == [{"words": "smoke", "planned": 16, "finished": 16}]
    whole = read(capsys, "verify", "verify", str(folder), empty=("problems[].",))
    assert whole["is_whole"] and whole["trials"] == 16 and whole["problems"] == []
    part = min((folder / "trajectories").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    damaged = read(capsys, "verify", "verify", str(folder), code=1)
    assert not damaged["is_whole"] and damaged["problems"][0]["path"] == str(part)
    assert read(capsys, "status", "status", str(folder))["problems"]


def test_numbers_that_json_lacks_are_null():
    content = {"a": (float("nan"), np.float32(0.5)), 3: Path("x"), "b": [np.inf, np.int64(2), True]}
    assert json_output.plain(content) == {"a": [None, 0.5], "3": "x", "b": [None, 2, True]}


MISTAKES = {
    "plan": ["plan", "two_stag"],
    "plan of a target": ["plan", "smoke", "--target", "v5e:2x2"],
    "status": ["status", "nowhere"],
    "verify": ["verify", "nowhere"],
    "settings": ["settings", "two_stag"],
    "claims": ["claims", "nowhere"],
    "bench": ["bench", "--repeats", "0"],
    "list": ["list", "everything"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_leave_standard_output_empty(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main([*MISTAKES[name], "--json"])
    except SystemExit as stopped:  # argparse
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == "" and captured.err.count("\n") == 1


NAMES = {
    "bench": ("engine-adam", "token-vmap", "torch-eager"),
    "bench --tiny": ("engine", "by hand", "no records", "torch"),
}
DEVICE = dict(device="2 x cpu", load_before=0.5, record_every=20, record_share=0.1)
DEVICE |= dict(drawing_share=0.1)
ENGINE = dict(torch_processes={"torch-eager": "2 x 1 thread"}, planned_record_share=0.1)
TINY = dict(trials=1000, order="together", lanes=64, torch_processes="2 x 1 thread")


def summarized(form: str):
    """Timings by hand, summarized as those of a benchmark."""
    methods = [Method(name, lambda: None, 1, 1e6, 1.0) for name in NAMES[form]]
    rates = {name: [10.0, 11.0] for name in NAMES[form]}
    if form == "bench":
        return compare.summary(methods, rates, [100.0, 100.0]) | DEVICE | ENGINE | dict(peak_memory_bytes=9e8)
    return tiny.summary(methods, rates, [100.0, 100.0]) | DEVICE | TINY


def test_bench(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compare, "run", lambda repeats: summarized("bench"))
    monkeypatch.setattr(tiny, "run", lambda repeats: summarized("bench --tiny"))
    for form in NAMES:
        found = read(capsys, form, *form.split())
        assert found["machine"]["versions"]["jax"] and found["load_before"] == 0.5
        assert found["methods"][0]["method"].startswith("engine")
    shape = sizes.Size(2)
    rows = [sizes.row("batch size", shape, FakeEngine(), [1.0, 2.0], {}) for _ in range(2)]
    monkeypatch.setattr(sizes, "run", lambda repeats, report: pd.DataFrame(rows))
    monkeypatch.setattr("topicjax.analysis.figures.bench_sizes.scaling_figure", lambda frame: FakeEngine())
    found = read(capsys, "bench --scaling", "bench", "--scaling", "--out", str(tmp_path))
    assert found["sizes"][0]["trials_per_chunk"] == 32 and "scaling.csv" in found["files"][0]


class FakeEngine:
    """Stands for compiled chunks, and for their figure."""

    steps, compile_seconds = 40, 1.5

    def __init__(self):
        from topicjax.engine.plan import make_groups

        trials = sizes.trials(sizes.Size(1, 1, 1))
        (self.group,) = make_groups(
            sizes.EXPERIMENT, {str(number): trial for number, trial in enumerate(trials)}, 1, 1
        )

    def save(self, path) -> list[Path]:
        return [Path(f"{path}.svg")]


def test_bench_of_layers_tells_its_progress_apart(monkeypatch, capsys):
    monkeypatch.setattr(deep, "need_torch", lambda: None)
    row = dict.fromkeys((name[9:] for name in FIELDS["bench --layers"] if name.startswith("models[]")), 1.0)
    monkeypatch.setattr(deep, "run_case", lambda case, repeats: row | dict(model="m", torch_processes="2"))
    monkeypatch.setattr(deep, "encoder_case", lambda layers, sweep: None)
    assert len(read(capsys, "bench --layers", "bench", "--layers")["models"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("form", [name for name in FIELDS if name.split()[0] == "bench"])
def test_real_benchmarks_print_what_is_documented(form, capsys, tmp_path, monkeypatch):
    for name in ("torch", "ray"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    read(capsys, form, *form.split(), "--repeats", "1")
