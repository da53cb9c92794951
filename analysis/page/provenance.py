"""Provenance of a report: plans, settings, runs, versions and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from topicjax.errors import counted
from topicjax.store.manifest import arithmetic_in_words, code_name, last_run, plan_in_words
from topicjax.store.reader import Run, Status

from ..pictures import MOST_VALUES, first_of
from . import html as page

REPORT, FIGURES_FOLDER, TABLES_FOLDER, CELLS = "report.html", "figures", "tables", "cells.parquet"
USUAL_ARITHMETIC = "float32, matrix products at full precision"
MOST_RUNS = 40  # rows of the table of runs; the manifest has all
CONTENTS = {  # of a run folder with a report
    "trials": "one row per trial: settings, status, final values (parquet parts)",
    "trajectories": "one row per record (parquet parts)",
    "details": "one row per record and value of an index such as the layer (parquet parts)",
    CELLS: "one row per cell: medians and quartiles over seeds, majority class, agreement",
    FIGURES_FOLDER: "every figure as PNG and SVG",
    TABLES_FOLDER: "every table as CSV and Markdown",
    "checkpoints": "weights (orbax)",
    "plans": "the trials that each run was asked for (parquet)",
    "manifest.json": "every run as data: its sweep, versions, devices; limit lines",
}


def plans_sentence(status: Status) -> str:
    """Say which plans the trials of the folder belong to; empty for a single plan."""
    if len(status.plans) < 2:
        return ""
    listed = first_of([f"{plan.words} ({plan.finished:,})" for plan in status.plans])
    sentence = f"This folder holds trials of {len(status.plans)} plans: {listed}"
    if sum(plan.finished for plan in status.plans) > status.finished - status.beyond:
        sentence += "; some trials belong to several"
    if status.beyond:
        sentence += f"; and {counted(status.beyond, 'trial')} that no plan names"
    return f"{sentence}."


def code_sentence(status: Status) -> str:
    """Say which versions of the code trained the folder's trials; empty if only one did."""
    if not status.versions:
        return ""
    listed = "; ".join(status.versions)
    return f"These trials were trained by {len(status.versions)} versions of the code: {listed}."


def arithmetic_sentence(status: Status) -> str:
    """Say how the folder's runs computed, if any did not use float32 and full precision."""
    if {*status.arithmetic} <= {USUAL_ARITHMETIC}:
        return ""
    return f"Arithmetic: {'; '.join(status.arithmetic)}."


def settings_tables(run: Run, defaults: Mapping[str, Any]) -> Markup:
    """Tabulate the settings that vary with their values, and constant settings, marked if not the default."""
    values = {
        name: pd.factorize(run.trials[name], sort=True, use_na_sentinel=False)[1]
        for name in run.setting_names
    }
    shown = {n: first_of([page.shown(value) for value in v[: MOST_VALUES + 1]]) for n, v in values.items()}
    varied = [(n, len(v), shown[n]) for n, v in values.items() if len(v) > 1]
    fixed = [
        (n, shown[n], "changed" if n in defaults and v[0] != defaults[n] else "")
        for n, v in values.items()
        if len(v) <= 1
    ]
    first = page.table(pd.DataFrame(varied, columns=["setting", "values", "which"]), "Settings that vary.")
    rest = pd.DataFrame(fixed, columns=["setting", "value", "default?"])
    rest = rest if defaults else rest.drop(columns="default?")
    second = page.table(rest, "Settings that all trials share.")
    return first * bool(varied) + second * bool(fixed)


def provenance(run: Run) -> Markup:
    """Tabulate every run that added to the folder: its plan, when it ran, versions and devices."""
    entries = run.manifest.get("runs", [])
    if not entries:
        return Markup()
    last = f" (the last {MOST_RUNS} of {len(entries):,})" if len(entries) > MOST_RUNS else ""
    caption = f"The runs that trained these trials{last}, from manifest.json."
    table = page.table(runs_table(run, entries).tail(MOST_RUNS), caption)
    table += page.table(circumstances(entries), "Versions and devices of these runs.")
    return table + page.preformatted(str(last_run(run.manifest).get("description", "")))


def runs_table(run: Run, entries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate runs, one row each: its plan, how many trials it trained, when, how fast."""
    rows = []
    counts: Any = run.trials["run"].value_counts() if "run" in run.trials else None
    for number, entry in enumerate(entries, 1):
        trained = entry.get("trials", 0)
        if counts is not None:  # also counts the trials of an interrupted run
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
    """Tabulate commit, Python, devices and packages; where runs differ, each value with its runs."""
    rows = [
        ("commit", [entry.get("git_commit") for entry in entries]),
        ("experiment", [f"{entry.get('experiment')}, {code_name(entry)}" for entry in entries]),
        ("arithmetic", [arithmetic_in_words(entry) for entry in entries]),
        ("its options", [in_words(entry.get("arithmetic", {})) for entry in entries]),
        ("devices", [", ".join(entry.get("devices", [])) for entry in entries]),
        ("Python", [entry.get("python") for entry in entries]),
    ]
    packages = dict.fromkeys(name for entry in entries for name in entry.get("versions", {}))
    rows += [(name, [entry.get("versions", {}).get(name) for entry in entries]) for name in packages]
    known = [(name, by_run(values)) for name, values in rows if any(values)]
    return pd.DataFrame(known, columns=["what", "value"])


def in_words(options: Mapping[str, Any]) -> str:
    """Write options of jax as name = value."""
    return ", ".join(f"{name.removeprefix('jax_')} = {value}" for name, value in options.items())


def by_run(values: Sequence[Any]) -> str:
    """Write the value that all runs share, or each value with the numbers of its runs; None is unknown."""
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


def files(folder: Path, scores: Mapping[str, str]) -> Markup:
    """Write links to the files in the folder; `scores` maps the file of scores to its contents."""
    names = list(CONTENTS)
    place = names.index("details") + 1
    known = {name: {**CONTENTS, **scores}[name] for name in (*names[:place], *scores, *names[place:])}
    return page.file_list({folder / n: holds for n, holds in known.items() if (folder / n).exists()}, folder)
