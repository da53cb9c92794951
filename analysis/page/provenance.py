"""Where the numbers of a report come from: plans, settings, runs, versions, files."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from topicjax.experiments.one_layer.settings import DEFAULTS
from topicjax.store.manifest import last_run, plan_in_words
from topicjax.store.reader import Run, Status

from ..encoder.scores import LAYERS_FILE
from ..frames import settings_in
from ..one_layer.scores import STAGES_FILE
from ..pictures import MOST_VALUES, counted, first_of
from . import html as page

REPORT, FIGURES_FOLDER, TABLES_FOLDER, CELLS = "report.html", "figures", "tables", "cells.parquet"
MOST_RUNS = 40  # of the table of runs; the manifest has all
CONTENTS = {  # of a run folder that has its report
    "trials": "one row per trial: settings, status, final values (parquet parts)",
    "trajectories": "one row per record (parquet parts)",
    "details": "one row per record and place of an index, as the layer (parquet parts)",
    STAGES_FILE: "one row per trial: scores, classes, flags in three views",
    LAYERS_FILE: "one row per trial and layer: scores and classes by the loss and by the norms, onsets",
    CELLS: "one row per cell: medians and quartiles over seeds, majority class, agreement",
    FIGURES_FOLDER: "every figure as PNG and SVG",
    TABLES_FOLDER: "every table as CSV and Markdown",
    "checkpoints": "weights (orbax)",
    "plans": "the trials that each run was asked for (parquet)",
    "manifest.json": "every run as data: its sweep, versions, devices; limit lines",
}


def plans_sentence(status: Status) -> str:
    """Return which plans the folder holds trials of; empty if it is one."""
    if len(status.plans) < 2:
        return ""
    listed = first_of([f"{plan.words} ({plan.finished:,})" for plan in status.plans])
    sentence = f"This folder holds trials of {len(status.plans)} plans: {listed}"
    if sum(plan.finished for plan in status.plans) > status.finished - status.beyond:
        sentence += "; some trials belong to several"
    if status.beyond:
        sentence += f"; and {counted(status.beyond, 'trial')} that no plan names"
    return f"{sentence}."


def settings_tables(run: Run) -> str:
    """Return the settings that vary with their values, and the others with whether they are the default."""
    varied, fixed = [], []
    for name in settings_in(run.trials):
        values = sorted(run.trials[name].unique())
        if len(values) > 1:
            listed = first_of([page.shown(value) for value in values[: MOST_VALUES + 1]])
            varied.append((name, len(values), listed))
        else:
            mark = "" if values[0] == DEFAULTS[name] else "changed"
            fixed.append((name, page.shown(values[0]), mark))
    first = pd.DataFrame(varied, columns=["setting", "values", "which"])
    second = pd.DataFrame(fixed, columns=["setting", "value", "default?"])
    return page.table(first, "Settings that vary.") + page.table(second, "Settings that all trials share.")


def provenance(run: Run) -> str:
    """Return every run that added to the folder: what it was asked for, when and with what it ran."""
    entries = run.manifest.get("runs", [])
    if not entries:
        return ""
    last = f" (the last {MOST_RUNS} of {len(entries):,})" if len(entries) > MOST_RUNS else ""
    caption = f"The runs that made these trials{last}, as they wrote it down."
    table = page.table(runs_table(run, entries).tail(MOST_RUNS), caption)
    table += page.table(circumstances(entries), "What they ran with.")
    return table + f"<pre>{html.escape(str(last_run(run.manifest).get('description', '')))}</pre>\n"


def runs_table(run: Run, entries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per run: what it was asked for, how many trials it trained, when, how fast."""
    rows = []
    counts: Any = run.trials["run"].value_counts() if "run" in run.trials else None
    for number, entry in enumerate(entries, 1):
        trained = entry.get("trials", 0)
        if counts is not None:  # counts those of an interrupted run, too
            trained = int(counts.get(number, 0))
        seconds, rate = entry.get("wall_seconds"), entry.get("trial_steps_per_second")
        rows.append(
            {
                "run": number,
                "asked for": plan_in_words(entry),
                "trials trained": f"{trained:,}",
                "started": entry.get("started", "-"),
                "finished": entry.get("finished", "-"),
                "seconds": "-" if seconds is None else f"{seconds:,.0f}",
                "trial-steps/s": "-" if rate is None else f"{rate:,.0f}",
            }
        )
    return pd.DataFrame(rows)


def circumstances(entries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return commit, Python, devices and packages; where runs differ, the values with their runs."""
    rows = [
        ("commit", [entry.get("git_commit") for entry in entries]),
        ("devices", [", ".join(entry.get("devices", [])) for entry in entries]),
        ("Python", [entry.get("python") for entry in entries]),
    ]
    packages = dict.fromkeys(name for entry in entries for name in entry.get("versions", {}))
    rows += [(name, [entry.get("versions", {}).get(name) for entry in entries]) for name in packages]
    known = [(name, by_run(values)) for name, values in rows if any(values)]
    return pd.DataFrame(known, columns=["what", "value"])


def by_run(values: Sequence[Any]) -> str:
    """Return the value that all runs share, or each value with the numbers of its runs; None is unknown."""
    runs: dict[str, list[str]] = {}
    for number, value in enumerate(values, 1):
        if value:
            runs.setdefault(str(value), []).append(str(number))
    if len(runs) == 1:
        return next(iter(runs))
    return first_of(
        [f"{value} (run{'s' * (len(numbers) > 1)} {first_of(numbers)})" for value, numbers in runs.items()],
        "; ",
    )


def files(folder: Path) -> str:
    """Return links to what is in the folder."""
    found = [(folder / name, text) for name, text in CONTENTS.items() if (folder / name).exists()]
    lines = "\n".join(f"<li>{page.link(path, folder, path.name)}: {text}</li>" for path, text in found)
    return f"<ul>\n{lines}\n</ul>\n"
