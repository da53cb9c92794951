"""Bad input of every kind: each ends in one sentence and exit code 2, at once, and creates nothing."""

import contextlib
import io
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.damage import SOME_OR_ALL, some
from support.one_trial import expand

from topicjax import cli
from topicjax.engine import plan_text, resources
from topicjax.experiments.one_layer.settings import SETTINGS, settings_of, trial_id
from topicjax.settings import Choice, Flag, Real, Whole
from topicjax.store.files import ids_name
from topicjax.store.manifest import RUN_FIELDS, encode, read_manifest
from topicjax.store.writer import Writer
from topicjax.sweep.files import load_sweep

SECONDS = 4.0  # of this process


@pytest.fixture(autouse=True)
def no_devices(monkeypatch):
    assert plan_text  # imported before the clock starts
    monkeypatch.setattr(resources, "use_all_cores", lambda: None)


def contents(folder: Path) -> dict[str, Any]:
    """Return all names in a folder, with the bytes of ordinary files."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place) / name
            found[str(path)] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    return found


def problem(arguments: list[str], folder: Path) -> str:
    """Return what is wrong with the answer to bad input; empty if it is as it should be."""
    out, err, before = io.StringIO(), io.StringIO(), contents(folder)
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        try:
            code: Any = cli.main(arguments)
        except SystemExit as stopped:
            code = stopped.code
    seconds, said = time.process_time() - began, err.getvalue()
    problems = {
        f"exit code {code}": code != 2,
        f"{said.count(chr(10))} lines: {said!r:.300}": said.count("\n") != 1
        or not said.startswith("topicjax"),
        "files changed": contents(folder) != before,
        f"{seconds:.1f} s": seconds > SECONDS,
    }
    return ", ".join(words for words, is_so in problems.items() if is_so)


def check(cases: list[list[str]], folder: Path, at_least: int) -> None:
    """Try all cases in a folder; fail with a list of those that are not refused as they should be."""
    assert len(cases) >= at_least
    failures = [f"{arguments!r:.150}: {why}" for arguments in cases if (why := problem(arguments, folder))]
    print(f"tried {len(cases)}, refused {len(cases) - len(failures)}, failed {len(failures)}")
    assert not failures, "\n".join(failures)


NUMBERS = [
    "",
    "x",
    "nan",
    "inf",
    "-inf",
    "-1",
    "1e999",
    "1e300",
    "0x10",
    "1 2",
    "--1",
    "9" * 400,
    "٣x",
    "true",
]
BAD = {
    Whole: [*NUMBERS, "2.5", "1e-3", "2147483648", "-2147483649"],
    Real: [*NUMBERS, "1e-300", "1e-40", "-1e-9", "1e39"],
    Choice: ["", "nope", "SGD", "0", "true", "sgd adam", "x" * 5000, "a\nb", "\udc80"],
    Flag: ["", "1", "0", "yes", "maybe", "None"],
}


def is_allowed(kind: Any, value: str) -> bool:
    """Return whether a setting that takes any number takes this one: not all have a lower bound."""
    return isinstance(kind, Real) and kind == Real() and value in ("-1", "-1e-9")


def bad_settings() -> Iterator[list[str]]:
    for name, setting in SETTINGS.items():
        bad = [value for value in BAD[type(setting.kind)] if not is_allowed(setting.kind, value)]
        for value, option in itertools.product(bad, ("--set", "--axis")):
            yield ["plan", "smoke", option, f"{name}={value}"]
        yield ["run", "smoke", "--set", f"{name}={BAD[type(setting.kind)][1]}"]
        yield ["run", "smoke", "--set", name]
        yield ["run", "smoke", "--axis", f"{name}="]
        yield ["run", "smoke", "--set", f"{name[:-1]}?=1"]


@SOME_OR_ALL
def test_bad_values_of_every_setting(share, tmp_path):
    cases = list(bad_settings())
    assert len(cases) >= 900
    check(some(cases, share), tmp_path, at_least=50)


IMPOSSIBLE = """length_min=200 length_max=5 p_keep=0.95 p_random=0.95 steps=7 steps=101 record_every=3
embedding_dim=5 topics_per_document=1e12 batch_size=1e9 topics=1e5 attention_dim=1e12 length_max=1e9
words_per_topic=1e9 eval_documents=1e9 steps=1e12 alpha=1e-300 word_concentration=1e-35
beta1=0.9999999999 momentum=1 p_mask=0 seed=7 optimizer=momentum learning_rate=5 objective=cross""".split()
AXES = """log:1:2 log:0:1:3 log:-1:1:3 log:a:1:3 log:1:2:0 log:1:2:-1 log:1:2:2.5 log:1:2:1e9 log:1:inf:3
lin:0:1 lin:0:nan:3 lin:0:1:1000000000000 range:3 range:0:9:2 range:0:1.5 range:5:5 range:5:0
range:0:99999999999 lgo:1:2:3 : :: log lin: 1,log:1:2:3 1,, ,1 1,x 1;2 [1,2] range:0:1000000""".split()
TWICE = [
    ["--set", "l2=1", "--set", "l2=2"],
    ["--axis", "l2=1,2", "--set", "l2=2"],
    ["--axis", "seed=range:0:100000", "--axis", "init_scale=lin:0:1:100000"],
    ["--axis", "batch_size=range:1:600"],
    ["--set", "embedding=trained", "--set", "embedding_dim=1e9"],
    ["--set", "value=blocks", "--set", "embedding=random"],
    ["--set", "steps=1e9", "--set", "record_every=1"],
    ["--set", "documents=tau", "--set", "topics_per_document=5"],
]


def test_impossible_sweeps(tmp_path):
    changes = [
        *(["--set", text] for text in IMPOSSIBLE),
        *(["--axis", f"l2={text}"] for text in AXES),
        *TWICE,
    ]
    check([[command, "smoke", *change] for command in ("plan", "run") for change in changes], tmp_path, 110)


OPTIONS = {
    "--lanes": ["-1", "x", "1.5", "", "1e3"],
    "--devices": ["0", "-1", "99", "x", "1.5", "", "1000000000000000000000"],
    "--layout": ["nowhere", "", ".", "x" * 300, "a\0b", "a\nb", "file.txt"],
    "--save-every": ["-1", "nan", "x", "", "-inf"],
    "--snapshots": [
        "",
        "often",
        "-5",
        "-1,2",
        "log:",
        "log:x",
        "log:0",
        "log:-1",
        "log:1.5",
        "log:1000000000",
    ]
    + ["log:1,2", "101", "0,50,110", "1e2", "50;60", "last,none", "9" * 5000, ",", "0," * 2000],
    "--out": [
        "",
        "x" * 300,
        "a\0b",
        "file.txt",
        "file.txt/below",
        "full",
        "a/" * 3000,
        "bad\udcff",
        "\ud800",
    ],
    "--extend": ["extra"],
    "--no-such-option": ["1"],
}
WORDS = [
    [],
    [""],
    ["fly"],
    ["a\nb"],
    ["run"],
    ["plan"],
    ["run", ""],
    ["run", "smok"],
    ["run", "x" * 300],
    ["run", "x" * 300 + ".py"],
    ["run", "a\0b.py"],
    ["run", "folder.py"],
    ["run", "binary.py"],
    ["plan", "latin.py"],
    ["plan", "exits.py"],
    ["run", "smoke", "joint"],
    ["list", "extra"],
    ["settings", "--set"],
    ["status"],
    ["restore", "full"],
    ["inspect", "full"],
    ["export", "full"],
    ["export", "full", "--csv", "--tensorboard"],
    ["bench", "--repeats", "0"],
    ["bench", "--repeats", "x"],
    ["bench", "--out", ""],
    ["--sets"],
]


def test_bad_options_and_words(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    cases = [
        [command, "smoke", option, value]
        for command in ("plan", "run")
        for option, values in OPTIONS.items()
        for value in values
    ]
    both = [["run", "smoke", "--layout", "full", option, "1"] for option in ("--lanes", "--devices")]
    check([*cases, *both, *WORDS], tmp_path, at_least=130)


def make_run(folder: Path) -> Path:
    """Write a folder as a run of smoke leaves it, with two trials, without training them."""
    named = load_sweep("smoke")
    found = expand(named.base, named.sweep)
    ids = [trial_id(trial) for trial in found[:2]]
    chunk = ids_name(ids)
    rows = pd.DataFrame([settings_of(trial) for trial in found[:2]]).assign(
        trial_id=ids, status="ok", diverged_step=None, stopped_step=100, stop_reason="steps", run=1
    )
    rows = rows.assign(record_every=100, snapshot_steps=[[], []], chunk=chunk, row=[0, 1])
    records = pd.DataFrame([dict(trial_id=own, step=step, loss=1.0) for own in ids for step in (0, 100)])
    values = {str: "x", dict: {}, list: ["cpu"], int: 4}
    entry = {name: values[kind if isinstance(kind, type) else kind[0]] for name, kind in RUN_FIELDS.items()}
    with Writer(folder, "smoke") as writer:
        entry |= dict(sweep="smoke", plan=writer.write_plan([trial_id(trial) for trial in found]), planned=16)
        line = dict(settings={"topics": 4, "objective": "squared"}, values={"bayes": 0.5})
        writer.write_manifest(writer.manifest | {"runs": [entry], "references": [line]})
        writer.commit(chunk, rows, records)
    assert set(read_manifest(folder)["runs"][0]) == set(RUN_FIELDS)
    return folder


FOLDER_COMMANDS = [
    ["status"],
    ["verify"],
    ["repair"],
    ["report"],
    ["export", "--csv"],
    ["export", "--tensorboard"],
    ["restore", "--out", "w.npz", "abc"],
    ["inspect", "abc"],
]


def folder_cases(folders: list[str]) -> list[list[str]]:
    return [
        [command[0], *command[1:-1], folder, command[-1]]
        if command[-1] == "abc"
        else [command[0], folder, *command[1:]]
        for folder in folders
        for command in FOLDER_COMMANDS
    ]


def test_folders_that_are_no_runs(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    folders = [
        "nowhere",
        "file.txt",
        "file.txt/x",
        "empty",
        "other",
        "link",
        "",
        "x" * 300,
        "a/" * 3000,
        "a\0b",
    ]
    folders += ["a\nb", "\udcff", "\ud800", "nowhere/at/all", "\x1b[2J"]
    check(folder_cases(folders), tmp_path, at_least=50)


def test_trials_and_steps_that_are_not_there(tmp_path):
    make_run(tmp_path / "run")
    known = read_known(tmp_path / "run")
    cases = [
        [command, *options, "run", name]
        for command, options in (("restore", ["--out", "w.npz"]), ("inspect", []))
        for name in ("", "zzz", "a" * 500, "a\nb", "\udcff", *known)  # those were run without snapshots
    ]
    cases += [["restore", "run", known[0], "--out", out] for out in ("w.txt", "", "x" * 300, "w", "run")]
    cases += [["restore", "run", known[0], "--step", step] for step in ("x", "1.5", "-1", "7", "")]
    check(cases, tmp_path, at_least=24)


def read_known(folder: Path) -> list[str]:
    return pd.read_parquet(folder / "trials")["trial_id"].tolist()


ODD: list[Any] = [None, 5, -1.5, "x", True, [], [1], {}, {"a": 1}, [None], "ÿ" * 200]


def odd_manifests(good: dict[str, Any]) -> Iterator[bytes]:
    """Give manifests that can be read as JSON, or not even that, with one value that cannot be right."""
    for name, kind in RUN_FIELDS.items():
        for value in ODD:
            fits = (
                isinstance(value, kind) and not isinstance(value, bool) and value != [1] and value != [None]
            )
            if not fits or (name == "plan"):
                yield encode(good | {"runs": [good["runs"][0] | {name: value}]})
    for name in ("runs", "references"):
        for value in (None, 5, "x", {}, [5], [[]], ["x"], [None]):
            yield encode(good | {name: value})
    for name, value in (
        ("settings", 5),
        ("settings", None),
        ("settings", {"objective": None}),
        ("settings", {"objective": [1]}),
        ("values", 5),
        ("values", {"bayes": "x"}),
        ("values", {"bayes": [1]}),
        ("values", {"bayes": True}),
        ("error", "both"),
        ("objective", "squared"),
    ):
        yield encode(good | {"references": [good["references"][0] | {name: value}]})
    for value in ("new", 2, 4, -1, None, [3], {}, 3.5, "3"):
        yield encode(good | {"format": value})
    for value in (None, 5, [], {}, True):
        yield encode(good | {"sweep": value})
    whole = encode(good)
    yield from (b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, whole[:-40], whole * 2)
    yield from (
        b'{"name": "a web app", "version": "1.0"}',
        whole.replace(b"16", b"17"),
        b'{"sweep": "smoke", ',
    )


def test_manifests_with_odd_values(tmp_path):
    folder = make_run(tmp_path / "run")
    good = read_manifest(folder)
    manifests = list(odd_manifests(good))
    commands = [["status", "run"], ["plan", "smoke", "--out", "run"], ["run", "smoke", "--out", "run"]]
    commands += [["plan", "smoke", "--layout", "run"], ["restore", "run", "abc", "--out", "w.npz"]]
    failures, tried = [], 0
    for number, text in enumerate(manifests):
        (folder / "manifest.json").write_bytes(text)
        for arguments in (commands[0], commands[1 + number % 4]):
            if why := problem(arguments, tmp_path):
                failures.append(f"{arguments}: {why} {describe(text)}")
            tried += 1
    print(f"tried {tried}, refused {tried - len(failures)}, failed {len(failures)}")
    assert len(manifests) > 150
    assert not failures, "\n".join(failures)


def describe(text: bytes) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(json.loads(text))[-300:]
    return repr(text[:60])


def test_files_in_the_place_of_others(tmp_path):
    """Folders, pipes and links where a run has its manifest, its lock or its tables."""
    cases = {}
    for name in ("manifest.json", "lock.json", "trials", "journal.log"):
        for kind in ("folder", "pipe", "link", "file"):
            folder = make_run(tmp_path / f"{name}-{kind}")
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if kind == "folder":
                path.mkdir()
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                path.symlink_to(tmp_path / "nowhere")
            else:
                path.write_text("nothing of ours")
            cases[name, kind] = ["run", "smoke", "--out", folder.name]
    fine = [("trials", "folder"), ("trials", "link")]  # a folder of lost trials: another test's
    fine += [("lock.json", "file")]  # what counts is who holds it, not what it says
    check([case for key, case in cases.items() if key not in fine], tmp_path, at_least=13)
