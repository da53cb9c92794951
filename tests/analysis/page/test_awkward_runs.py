"""The report of awkward runs: it draws what can be drawn, shows what is chosen, and nothing takes it down."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.synthetic_runs import STEP, TWO_STAGE, case, line_entry, ramp, whole_id, write_run

from topicjax import cli
from topicjax.analysis.figures import any_run
from topicjax.analysis.one_layer import page
from topicjax.analysis.one_layer.page import PAGE
from topicjax.analysis.outputs import write_file
from topicjax.analysis.page import report
from topicjax.analysis.page.live import Announcer
from topicjax.analysis.page.selection import Selection, class_names
from topicjax.analysis.pictures import Picture
from topicjax.errors import UserError

pytestmark = pytest.mark.usefixtures("undrawn")
V_ONLY = ramp(0, 100), 0.0
FINALS = ("attn_same_word", "attn_same_topic", "attn_diff_topic", "theorem2_distance", "a_self")
Made = list[tuple[dict[str, Any], pd.DataFrame]]


def made(progress: Any = TWO_STAGE, end: int = 1000, **changed: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return a trial as a folder has it: no limit lines of its own, final values, no weights."""
    step = STEP[end >= STEP]
    row, frame = case(*(np.broadcast_to(part, STEP.shape)[: len(step)] for part in progress), step, **changed)
    row = {name: value for name, value in row.items() if not name.startswith("line_")}
    finals = {f"final_{name}": 0.01 for name in FINALS} | dict(snapshot_steps="", snapshot_checksums="")
    finals |= {f"final_{name}": float(frame[name].iloc[-1]) for name in ("a_topic", "eval_loss")}
    turns = np.where(step > 0, 0.1 / (1 + step), np.nan)
    return row | finals, frame.assign(rotation_v=turns, a_mask=0.0)


@pytest.fixture
def quickly_saved(undrawn: None, laid_out: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out and drawn, but not turned into pictures."""

    def save(self: Picture, path: Path) -> list[Path]:
        self.figure.draw_without_rendering()
        files = [Path(path).with_name(f"{Path(path).name}.{kind}") for kind in ("png", "svg")]
        return [write_file(file, b"drawn") for file in files]

    monkeypatch.setattr(Picture, "save", save)


def folder_of(folder: Path, trials: Made, **manifest: Any) -> Path:
    """Write the trials into a run folder, with ids 000, 001, ..."""
    named = [f"{number:03d}" for number in range(len(trials))]
    rows = [row | dict(trial_id=name) for name, (row, _) in zip(named, trials, strict=True)]
    frames = [frame.assign(trial_id=name) for name, (_, frame) in zip(named, trials, strict=True)]
    return write_run(folder, rows, frames, **manifest)


def grid(**axes: Any) -> Made:
    """Return a trial per combination, every second one V-only."""
    combinations = enumerate(product(*axes.values()))
    return [
        made((TWO_STAGE, V_ONLY)[number % 2], **dict(zip(axes, values, strict=True)))
        for number, values in combinations
    ]


def random_points(count: int) -> Made:
    rng = np.random.default_rng(0)
    return [
        made(learning_rate=float(10 ** rng.uniform(-3, 0)), init_scale=float(10 ** rng.uniform(-4, -1)))
        for _ in range(count)
    ]


def early(**changed: Any) -> Made:
    """Return trials of one cell that ended at different steps, and one that diverged."""
    ends = [(700, "stage 2 complete"), (800, "stage 2 complete"), (1000, "steps")]
    trials = [
        made(end=end, seed=seed, stopped_step=end, stop_reason=why, **changed)
        for seed, (end, why) in enumerate(ends)
    ]
    lost = made(end=300, seed=3, status="diverged", stopped_step=300, stop_reason="diverged", **changed)
    lost[1].loc[20:, "eval_loss"] = np.nan
    return [*trials, lost]


def refined() -> tuple[Made, dict[str, Any]]:
    points = [*product((1.0, 4.0, 16.0), (0.1, 1.0)), (2.0, 0.1), (2.0, 10**-0.5)]
    trials = [made(TWO_STAGE if rate > 3 else V_ONLY, learning_rate=rate, init_scale=s) for rate, s in points]
    refine = dict(axes=["learning_rate", "init_scale"], levels=1)
    axes = dict(learning_rate=[1.0, 4.0, 16.0], init_scale=[0.1, 1.0])
    return trials, dict(runs=[dict(sweep="tiny", refine=refine, axes=axes)])


RUNS: dict[str, tuple[Made, dict[str, Any]]] = {
    "one trial": ([made()], {}),
    "one cell": ([made(seed=seed) for seed in range(3)], {}),
    "a random sample": (random_points(15), {}),
    "odd axes": (grid(p_keep=(0.1, 0.2), alpha=(0.1, 1.0), init=("normal", "uniform")), {}),
    "words only": (grid(key_visibility=("all", "unmasked"), documents=("lda", "tau")), {}),
    "no limit lines": (grid(learning_rate=(0.1, 1.0), init_scale=(0.1, 1.0)), dict(references=[])),
    "attention frozen": (grid(attention=("uniform",), learning_rate=(0.1, 1.0)), {}),
    "value frozen": (grid(value=("blocks",), learning_rate=(0.1, 1.0)), {}),
    "some frozen": (grid(attention=("uniform", "trained"), learning_rate=(0.1, 1.0)), {}),
    "all diverged": ([made(status="diverged", eval_loss=np.nan, seed=seed) for seed in range(2)], {}),
    "trials that stop early": (early() + early(learning_rate=0.5), {}),
    "many optimizers": (
        grid(optimizer=("sgd", "adam", "momentum", "adamw"), objective=("squared", "cross_entropy")),
        dict(references=[line_entry(), line_entry("squared")]),
    ),
    "refined": refined(),
    "overlapping topics": (grid(overlap=(0.2,), init_scale=(0.001, 0.01, 0.1)), dict(references=[])),
    "no topical attention": (
        [made(V_ONLY, init_scale=scale) for scale in (0.001, 0.01, 0.1)],
        {},
    ),
    "no column of snapshots": (
        [({k: v for k, v in row.items() if "snapshot" not in k}, frame) for row, frame in [made()] * 2],
        {},
    ),
    "a single record": ([(made()[0], made()[1].head(1))], {}),
    "no manifest entries": (grid(learning_rate=(0.1, 1.0)), dict(runs=[])),
}


ALIKE = (  # to others that are tried in every test
    *("many optimizers", "words only", "no topical attention", "overlapping topics", "one cell"),
    *("no column of snapshots", "a single record", "attention frozen", "value frozen"),
    *("trials that stop early", "no manifest entries", "odd axes", "some frozen"),
)


QUICK = ("all diverged",)  # drawn in every test; the figures of others are made only


def whole_pages() -> list[Any]:
    made = [pytest.param(name, False, id=f"{name}-made") for name in RUNS if name not in (*ALIKE, *QUICK)]
    marks = {name: [] if name in QUICK else [pytest.mark.slow] for name in RUNS}
    return [*made, *(pytest.param(name, True, id=f"{name}-drawn", marks=marks[name]) for name in RUNS)]


@pytest.mark.parametrize(("name", "is_drawn"), whole_pages())
def test_awkward_runs_have_a_page_without_a_gap(name: str, is_drawn: bool, tmp_path: Path, request):
    if is_drawn:
        request.getfixturevalue("quickly_saved")
    trials, manifest = RUNS[name]
    said: list[str] = []
    text = report.write(folder_of(tmp_path / "run", trials, **manifest), said.append).read_text()
    pieces = [line for line in said if line.startswith(("figure ", "table ")) and line.endswith(" ...")]
    found = [re.search(r"\((\d+) of (\d+)\)", line) for line in pieces]
    numbers = [(int(match[1]), int(match[2])) for match in found if match]
    assert numbers == [(place, len(pieces)) for place in range(1, len(pieces) + 1)]  # all are counted
    for word in ("Not drawn (", "No table", "Not shown", "defect"):
        assert word not in text, re.findall(rf"{re.escape(word)}[^<]*", text)
    assert "<h1>topicjax: tiny</h1>" in text and "<img " in text
    assert len([*(tmp_path / "run" / "figures").glob("*.svg")]) == text.count("<img data-packed=")


def test_bands_of_trials_that_stop_early_say_so(tmp_path: Path):
    text = report.write(folder_of(tmp_path / "run", early())).read_text()
    assert "A line ends where fewer than half of its trials still have records." in text


def four_by_two(folder: Path) -> Path:
    axes = dict(learning_rate=(0.001, 0.01), optimizer=("sgd", "adam"), seed=(0, 1))
    return folder_of(folder, grid(**axes))


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        (("learning_rate=1e-3",), 4),
        (("learning_rate=0.0010,0.01",), 8),
        (("optimizer=sgd", "seed=1"), 2),
        (("class=two-stage",), 4),
        (("class=V-only,two-stage", "seed=0"), 4),
        (("infinite_documents=false",), 8),
    ],
)
@pytest.mark.usefixtures("one_figure")
def test_filters_choose_the_trials_and_the_page_says_so(filters: tuple, shown: int, tmp_path: Path):
    folder = four_by_two(tmp_path / "run")
    text = report.write(folder, chosen=Selection(filters=filters)).read_text()
    sentence = f"Filtered by {'; '.join(filters)}: {shown} of 8 trials are shown."
    assert f"<p>{sentence}</p>" in text
    plain = re.sub(r'</?a\b[^>]*>|<details class="more">.*?</details>', "", text)  # what is seen at first
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", plain, re.S)
    assert captions and all(sentence in caption for caption in captions)
    classes = re.findall(r"<caption>Trials per .*", plain)
    assert classes and all(sentence.rstrip(".") in caption for caption in classes)
    assert f"{shown} trials in " in text
    assert len(pd.read_parquet(folder / "stages.parquet")) == 8  # tables for others have all trials
    classes = pd.read_csv(folder / "tables" / "classes.csv")
    assert classes["loss"].sum() == shown


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--x", "lr"], "unknown setting 'lr'; did you mean 'learning_rate'?"),
        (["--panel", "objective,nothing"], "unknown setting 'nothing'"),
        (["--x", "alpha", "--y", "alpha"], "alpha is given twice"),
        (["--filter", "colour=red"], "unknown setting 'colour'"),
        (["--filter", "optimizer"], "cannot be read; allowed: NAME=VALUE"),
        (["--filter", "optimizer=lion"], "optimizer is 'lion'"),
        (["--filter", "seed=7"], "no trial is left with seed=7; there are: 0, 1"),
        (["--filter", "class=best"], "unknown class 'best'"),
        (
            ["--filter", "class=reversed"],
            "no trial is left with class=reversed; there are: V-only, two-stage",
        ),
        (["--x", "seed"], "a cell holds all its seeds"),
        (["--filter", "seed=0", "--filter", "seed=1"], "--filter names seed twice"),
        (["--watch", "0"], "--watch is 0; allowed: seconds, above 0"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(typed: list, message: str, tmp_path: Path, capsys):
    folder = four_by_two(tmp_path / "run")
    before = sorted(folder.rglob("*"))
    assert cli.main(["report", str(folder), *typed]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert sorted(folder.rglob("*")) == before


def test_the_name_of_a_class_may_have_a_comma():
    assert class_names("two-stage, non-topical,V-only", PAGE.classes) == ["two-stage, non-topical", "V-only"]
    assert class_names("two-stage,V-only", PAGE.classes) == ["two-stage", "V-only"]


@pytest.mark.usefixtures("one_figure")
def test_axes_and_panels_are_those_that_were_chosen(tmp_path: Path):
    folder = four_by_two(tmp_path / "run")
    chosen = ["--x", "optimizer", "--y", "learning_rate", "--panel", "objective"]
    assert cli.main(["report", str(folder), *chosen]) == 0
    text = (folder / "report.html").read_text()
    assert "Map of optimizer against learning rate" in text and "Not drawn" not in text


def test_another_experiment_is_filtered_and_drawn_along_chosen_axes(tmp_path: Path):
    step, rows, frames = np.arange(5), [], []
    for number, (depth, width, kind) in enumerate(product((1, 2), (8, 16, 32), ("relu", "tanh"))):
        row = dict(trial_id=whole_id(f"{number:x}"), seed=0, depth=depth, width=width, kind=kind)
        rows.append(row | dict(status="ok", diverged_step=None, final_loss=1.0 * number))
        frames.append(pd.DataFrame(dict(trial_id=row["trial_id"], step=step, loss=1.0 * number)))
    folder = write_run(tmp_path / "run", rows, frames, runs=[dict(experiment="deep")], references=[])
    text = report.write(folder, chosen=Selection("depth", "kind", filters=("width=16,32",))).read_text()
    assert "Final values by depth" in text and "8 of 12 trials are shown" in text and "defect" not in text
    assert "a colour per value of kind" in text
    with pytest.raises(UserError, match="no figure of deep takes --panel; allowed: --x, --y, --filter"):
        report.write(folder, chosen=Selection(panel=("kind",)))
    with pytest.raises(UserError, match="width is 'wide'; allowed: a number"):
        report.write(folder, chosen=Selection(filters=("width=wide",)))


@pytest.mark.parametrize("name", ["findings", "settings_tables", "provenance", "files", "plans_sentence"])
@pytest.mark.parametrize("experiment", ["one_layer", "other"])
@pytest.mark.usefixtures("one_figure")
def test_no_part_takes_the_page_down(name: str, experiment: str, tmp_path: Path, monkeypatch):
    def broken(*arguments: Any) -> str:
        raise ZeroDivisionError("by zero")

    if name != "findings":
        monkeypatch.setattr(report, name, broken)
    elif experiment == "other":
        monkeypatch.setattr(any_run, "findings", broken)
    else:
        monkeypatch.setattr(page, "PAGE", replace(page.PAGE, findings=broken))
    manifest = dict(runs=[dict(experiment=experiment)])
    text = report.write(folder_of(tmp_path / "run", grid(learning_rate=(0.1, 1.0)), **manifest)).read_text()
    assert "this is a defect of topicjax, please report it: ZeroDivisionError: by zero." in text
    assert "<figure id=" in text


def test_a_long_piece_is_heard_of_again():
    import time

    said: list[str] = []
    with Announcer(said.append, total=2, again=0.05) as progress:
        progress("figure slow ...")
        time.sleep(0.4)
        progress("figure quick ...")
    assert said[0] == "figure slow (1 of 2) ..." and said[-1] == "figure quick (2 of 2) ..."
    again = said[1:-1]
    assert 2 <= len(again) <= 8 and all(
        re.fullmatch(r"figure slow \(1 of 2\) \.\.\. \d+ s", line) for line in again
    )
