"""report.html of a run: the answer first, then figures, tables, settings and where it came from.

Every figure and table is an entry of CATALOGUE or TABLES with a test of whether it fits the run, so a
sweep of one's own has its page too.  All files go into the run folder, report.html last.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import curves, findings, frames, landscape, losses, maps, matrices, onset, page, stages, tables
from analysis.frames import Run
from analysis.pictures import Picture, number
from analysis.scores import trains_value
from analysis.weights import restorer, with_weights
from topicjax.config import DEFAULTS
from topicjax.lock import StoreError, write_whole

REPORT, FIGURES, TABLES_FOLDER, CELLS = "report.html", "figures", "tables", "cells.parquet"
MOST_ROWS = 40  # of a table on the page; its file has all
FEW_CELLS = 24  # up to so many cells single matrices stand for a run, beyond it is a map


@dataclass(frozen=True)
class Study:
    """A run with its scores."""

    run: Run
    scores: pd.DataFrame
    cells: pd.DataFrame

    @cached_property
    def competes(self) -> bool:
        """Return whether some trial trains both V and attention."""
        return bool(stages.trains_both(self.scores).any())

    @cached_property
    def has_weights(self) -> bool:
        """Return whether some finite trial has stored weights."""
        return len(with_weights(self.run.trials)) > 0

    @cached_property
    def restore(self) -> Any:
        """Return the function that reads a trial's weights, once."""
        return restorer(self.run)

    def varies(self, name: str, at_least: int = 2) -> bool:
        """Return whether a setting has so many values."""
        return len(set(self.scores[name])) >= at_least


@dataclass(frozen=True)
class Entry:
    """A figure (or several) or a table: its file's name, whether it fits a run, and what makes it."""

    name: str
    fits: Callable[[Study], bool]
    make: Callable[[Study], Any]
    title: str = ""


def is_map(study: Study) -> bool:
    """Return whether there is a map to draw: both parts trained, in more than one cell."""
    return study.competes and len(study.cells) > 1


def shows_onset(study: Study) -> bool:
    """Return whether the run can tell how the onset depends on the init scale."""
    return bool(stages.trains_attention(study.scores).any()) and study.varies("init_scale", 3)


LEAD = Entry("phase_map", is_map, lambda study: maps.phase_map(study.cells))
CATALOGUE: dict[str, list[Entry]] = {
    "Maps": [
        Entry("theta", is_map, lambda study: maps.theta_map(study.cells)),
        Entry("log_lag", is_map, lambda study: maps.log_lag_map(study.cells)),
    ],
    "Norms against loss": [
        Entry("views", is_map, lambda study: maps.view_disagreement(study.scores)),
        Entry("phase_map_norm", is_map, lambda study: maps.phase_map(study.cells, "norm")),
    ],
    "Trajectories": [
        Entry("figure4", lambda study: True, lambda study: curves.figure4(study.run, study.scores)),
        Entry(
            "bands",
            lambda study: study.varies("seed"),
            lambda study: curves.norm_bands(study.run, scores=study.scores),
        ),
        Entry("loss", lambda study: True, lambda study: losses.loss_curves(study.run, study.scores)),
    ],
    "Inside the models": [
        Entry(
            "figure1",
            lambda study: study.has_weights and bool((study.scores["embedding"] == "trained").any()),
            lambda study: matrices.figure1(study.run, study.restore),
        ),
        Entry(
            "figure2",
            lambda study: study.has_weights and bool(trains_value(study.scores).any()),
            lambda study: matrices.figure2(study.run, study.restore),
        ),
    ],
    "Theory": [
        Entry(
            "landscape",
            lambda study: bool(stages.trains_attention(study.scores).any()),
            lambda study: landscape.landscapes(study.run),
        ),
        Entry("onset", shows_onset, lambda study: onset.onset_scaling(study.run)),
    ],
}
TABLES = [
    Entry(
        "classes",
        lambda study: True,
        lambda study: class_table(study.scores),
        "Trials per class, in the three views",
    ),
    Entry(
        "table3",
        lambda study: bool(stages.trains_attention(study.scores).any()),
        lambda study: tables.table3(study.run),
        "Table 3: mean attention between positions that show the same word, words of the same topic, of "
        "different topics; mean and standard error over seeds, at the end",
    ),
    Entry(
        "distances",
        lambda study: len(study.cells) <= FEW_CELLS and study.has_weights,
        lambda study: tables.distances(study.run, study.restore),
        "Relative distance of the value matrix to Theorem 2 and to the stage-1 optimum of its documents",
    ),
    Entry(
        "onset",
        shows_onset,
        lambda study: onset.onset_fit(onset.onset_times(study.run)),
        "Onset: measured and predicted slope of learning rate x onset step over ln(1 / init scale)",
    ),
    Entry(
        "sensitivity",
        lambda study: study.competes,
        lambda study: stages.sensitivity(study.scores),
        "Share of trials and of cells that change class with the cut of Theta",
    ),
]
CUTS = stages.CUTS
CLASS_WORDS = (
    f"two-stage: Θ at least {CUTS.two_stage:g}, V is learned before attention helps",
    "reversed: the same with the roles swapped, attention helps before V is learned",
    f"simultaneous: Θ and its reverse below {CUTS.simultaneous:g}; overlapping: all between",
    "V-only: V is learned, attention has not moved in the steps given",
    "compensated: the loss gets there, but not with uniform attention",
    f"unfinished: the loss came less than {CUTS.finished:.0%} of the way to the stage-1 line; no-learning: "
    f"less than {CUTS.no_learning:.0%}",
    "diverged: not finite, or the loss ended above where it began",
    f"topical: the attention score of same-topic pairs rose by {CUTS.topical:g} or more above other pairs; "
    "+copy: in the end a word counts for itself more than for its topic",
)


def write(folder: str | Path) -> Path:
    """Write report.html with its figures and tables into a run folder; return its path."""
    run = frames.load(folder)
    scores = stages.score_trials(run)
    study = Study(run, scores, stages.score_cells(scores))
    stages.write_stages(scores, run.folder)
    write_whole(run.folder / CELLS, lambda file: study.cells.to_parquet(file, index=False))
    content = render(study)
    write_whole(run.folder / REPORT, lambda file: file.write(content.encode()))
    return run.folder / REPORT


def render(study: Study) -> str:
    """Return the page; figures and tables are written on the way."""
    run = study.run
    lead = page.items(findings.findings(study.scores, study.cells, run.missing), "answer")
    lead += draw(LEAD, study)
    sections = [
        (head, "".join(draw(entry, study) for entry in entries)) for head, entries in CATALOGUE.items()
    ]
    sections.append(("Tables", "".join(tabulate(entry, study) for entry in TABLES)))
    sections.append(("Words", words()))
    sections.append(("Settings", settings_tables(study)))
    sections.append(("Provenance", provenance(run)))
    sections.append(("Files", files(run.folder)))
    question = str(run.manifest.get("description", "")).split("\n")[0]
    counts = (number(len(run.trials), "trial"), number(len(study.cells), "cell"))
    subtitle = f"{question} {counts[0]} in {counts[1]}.".strip()
    return page.page(f"topicjax: {run.name}", subtitle, lead, [part for part in sections if part[1]])


def draw(entry: Entry, study: Study) -> str:
    """Return the figures of an entry, or why there are none; nothing if they do not fit the run."""
    if not entry.fits(study):
        return ""
    try:
        made = entry.make(study)
    except (ValueError, StoreError) as error:
        return f"<p>Not drawn ({html.escape(entry.name)}): {html.escape(str(error))}.</p>\n"
    pictures: list[Picture] = made if isinstance(made, list) else [made]
    names = [entry.name, *(f"{entry.name}_{place}" for place in range(2, len(pictures) + 1))]
    folder = study.run.folder
    pairs = zip(names, pictures, strict=True)
    return "".join(page.figure(each, each.save(folder / FIGURES / name), folder) for name, each in pairs)


def tabulate(entry: Entry, study: Study) -> str:
    """Return a table, its first rows if it is long; the file has all."""
    if not entry.fits(study):
        return ""
    folder = study.run.folder / TABLES_FOLDER
    folder.mkdir(exist_ok=True)
    try:
        frame = entry.make(study)
    except (ValueError, StoreError) as error:
        return f"<p>No table ({html.escape(entry.name)}): {html.escape(str(error))}.</p>\n"
    path = tables.to_csv(frame, folder / f"{entry.name}.csv")
    markdown = path.with_suffix(".md")
    markdown.write_text(tables.to_markdown(frame), encoding="utf-8")
    more = f" (the first {MOST_ROWS} of {len(frame)} rows)" if len(frame) > MOST_ROWS else ""
    links = " · ".join(page.link(file, study.run.folder, file.suffix[1:]) for file in (path, markdown))
    return page.table(tables.to_text(frame.head(MOST_ROWS)), entry.title + more + ".", links)


def class_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the classes that occur with their counts and their median Theta in the loss view."""
    counts = maps.class_counts(scores)
    counts = counts[counts.sum(axis=1) > 0]
    theta = scores.groupby("class")["theta"].median()
    topical = scores["suffix"].str.startswith("topical").groupby(scores["class"]).sum()
    medians = theta.reindex(counts.index).to_numpy()
    hits = topical.reindex(counts.index).fillna(0).astype(int).to_numpy()
    return counts.assign(median_theta=medians, topical=hits).reset_index()


def words() -> str:
    """Return how the classes are to be read."""
    text = (
        "Three views of a trial. Loss: how much of the way to the best uniform-attention loss (stage 1) W^V "
        "has gone when attention is forced uniform, and what attention adds in units of stage 1 - stage 2. "
        "Order parameters: same-topic minus other-topic entries of the value matrix and of the attention "
        "scores. Norms: as in the paper's Figure 4. Θ is the largest, over the steps, of the smaller of "
        "progress of V and 1 - progress of attention: 1 if V was done before attention began; log lag is by "
        "how many e-foldings of the step V is ahead."
    )
    return f"<p>{html.escape(text)}</p>\n" + page.items(CLASS_WORDS)


def settings_tables(study: Study) -> str:
    """Return the settings that vary with their values, and the others that are not the default."""
    trials = study.run.trials
    varied, fixed = [], []
    for name in study.run.settings:
        values = sorted(trials[name].unique())
        if len(values) > 1:
            listed = ", ".join(page.shown(value) for value in values[:12]) + (
                ", ..." if len(values) > 12 else ""
            )
            varied.append((name, len(values), listed))
        else:
            mark = "" if values[0] == DEFAULTS[name] else "changed"
            fixed.append((name, page.shown(values[0]), mark))
    first = pd.DataFrame(varied, columns=["setting", "values", "which"])
    second = pd.DataFrame(fixed, columns=["setting", "value", "default?"])
    return page.table(first, "Settings that vary.") + page.table(second, "Settings that all trials share.")


def provenance(run: Run) -> str:
    """Return who made these numbers: command, versions, commit, devices, times."""
    manifest = run.manifest
    rows = [
        ("started", manifest.get("started")),
        ("commit", manifest.get("git_commit")),
        ("Python", manifest.get("python")),
        ("devices", ", ".join(manifest.get("devices", []))),
        *manifest.get("versions", {}).items(),
    ]
    for session, entry in enumerate(manifest.get("runs", []), 1):
        rows.append(
            (
                f"session {session}",
                f"{entry['trials']:,} trials in {entry['wall_seconds']:,.0f} s, finished "
                f"{entry['finished']}, {entry['trial_steps_per_second']:,.0f} trial-steps/s",
            )
        )
    known = [(name, str(value)) for name, value in rows if value]
    table = page.table(pd.DataFrame(known, columns=["what", "value"]), "As the run wrote it down.")
    return table + f"<pre>{html.escape(str(manifest.get('description', '')))}</pre>\n"


def files(folder: Path) -> str:
    """Return links to what is in the folder."""
    names = {
        "trials": "one row a trial: settings, status, final values (parquet parts)",
        "trajectories": "one row a record (parquet parts)",
        stages.STAGES_FILE: "one row a trial: scores, classes, flags in three views",
        CELLS: "one row a cell: medians and quartiles over seeds, majority class, agreement",
        FIGURES: "every figure as PNG and SVG",
        TABLES_FOLDER: "every table as CSV and Markdown",
        "checkpoints": "weights (orbax)",
        "manifest.json": "the sweep as data, versions, limit lines",
    }
    found = [(folder / name, text) for name, text in names.items() if (folder / name).exists()]
    rows = "\n".join(f"<li>{page.link(path, folder, path.name)}: {text}</li>" for path, text in found)
    return f"<ul>\n{rows}\n</ul>\n"
