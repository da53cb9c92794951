"""The map to explore, inside the page: settings and scores of all trials, trajectories as far as they fit.

The files in web/ draw it.  A column of settings is coded as places in the list of its values, numbers as
`packing` says.
"""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topicjax.store.reader import Run

from ..frames import column, varying
from ..maps.arrangements import choose_axes
from ..maps.layouts import rank
from ..one_layer.cells import cell_numbers, score_cells
from ..one_layer.curves import Records
from ..one_layer.map_panels import ATTENDS
from ..one_layer.stages import CLASSES, HAS_STAGE2, VIEWS, is_topical
from ..pictures import counted, distinct_texts, label, written
from ..topic_model import CLASS_COLOURS, CLASS_HATCHES, LINES, MAIN_SETTINGS, aligned, settings_in
from .packing import code_series, in_text, kept_records

HERE = Path(__file__).parent
SCRIPTS = "data cells layouts panels controls moves charts trials page".split()  # one function, in this order
MOST_RECORDS, FEWEST_RECORDS = 48, 16  # of a trial on the page
ALL_RECORDS = 60_000  # of all trials together: about 1.6 MB
MANY_VALUES = 2000  # of a setting: more numbers are packed, to seven digits
CURVES = (
    *("eval_loss", "eval_loss_uniform", "norm_v", "norm_k", "norm_q", "norm_e"),
    *("v_block", "v_diag", "a_topic", "a_self"),
)
SCORES = ("theta", "log_lag", "onset_v", "onset_attention")
NOTES = ("status", "diverged_step", "stopped_step", "stop_reason")  # columns of the trials, where they are
HATCHES = {  # a character of a hatch as lines in a square of 8 by 8
    "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    ".": "M2 2h1v1h-1zM6 6h1v1h-1z",
    "+": "M4 0V8M0 4H8",
    "x": "M0 0L8 8M0 8L8 0",
}


def explorer(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> str:
    """Return the map to explore: a place for it, its patterns, its data and what draws it."""
    if len(scores) < len(run.trials):
        run = run.select(scores["trial_id"].tolist())
    data = page_data(aligned(run), scores, x, y)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("&", "\\u0026")
    note = "The map to explore needs JavaScript; the figures below show the same run without it."
    style = (HERE / "web" / "explorer.css").read_text(encoding="utf-8")
    script = "\n".join((HERE / "web" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return (
        f"<style>{style}</style>\n"
        f'<section id="explorer" aria-label="Map to explore">{patterns()}<noscript><p>{html.escape(note)}</p>'
        f'</noscript></section>\n<script type="application/json" id="explorer-data">{safe}</script>\n'
        f'<script>(() => {{\n"use strict";\n{script}}})();</script>\n'
    )


def patterns() -> str:
    """Return the hatches of classes as patterns of SVG, named by the place of the class in CLASSES."""
    inside = ""
    for name, hatch in CLASS_HATCHES.items():
        ink = "#8c8c8c" if name == "diverged" else "#5f5f5f"
        inside += (
            f'<pattern id="hatch-{CLASSES.index(name)}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="{CLASS_COLOURS[name]}"/>'
            f'<path d="{HATCHES[hatch[0]]}" stroke="{ink}" fill="none"/></pattern>'
        )
    return f'<svg width="0" height="0" aria-hidden="true"><defs>{inside}</defs></svg>'


def page_data(run: Run, scores: pd.DataFrame, x: str | None = None, y: str | None = None) -> dict[str, Any]:
    """Return what the page knows of a run, as JSON takes it; x and y are the axes at first."""
    names = varying(scores, settings_in(scores))
    across, up = map_axes(scores, names, x, y)
    records, sentence = packed_records(run, scores)
    notes = run.trials[[name for name in NOTES if name in run.trials]].dropna(axis=1, how="all")
    return {
        "name": run.name,
        "ids": scores["trial_id"].tolist(),
        "settings": [{"name": name, "label": label(name)} | coded_values(scores[name]) for name in names],
        "main": [name for name in MAIN_SETTINGS if name in names],
        "x": across,
        "y": up,
        "classes": [class_look(name) for name in CLASSES],
        "legend": [CLASSES.index(name) for name in CLASS_COLOURS],
        "views": {view: view_scores(scores, end) for view, end in VIEWS.items()},
        "topical": in_text(is_topical(scores), "u1"),
        "suffix": coded_values(scores["suffix"]),
        "notes": {name: coded_values(values) for name, values in notes.items()},
        "records": records,
        "sentence": sentence,
    }


def map_axes(scores: pd.DataFrame, names: Sequence[str], x: str | None, y: str | None) -> tuple[str, str]:
    """Return the settings along both axes, the given ones or the usual; empty where nothing else varies."""
    cells = score_cells(scores)
    by = [name for name in MAIN_SETTINGS if name in cells and name not in (x, y)]
    across, up, *_ = [*(name for name in choose_axes(cells, by, x, y) if name in names), "", ""]
    return across, up


def class_look(name: str) -> dict[str, Any]:
    """Return how a class is drawn, and whether Theta and topical attention mean something in it."""
    hatched = name in CLASS_HATCHES
    return dict(
        name=name,
        colour=CLASS_COLOURS[name],
        hatched=hatched,
        staged=name in HAS_STAGE2,
        attends=name in ATTENDS,
    )


def view_scores(scores: pd.DataFrame, end: str) -> dict[str, str]:
    """Return the class and the scores of each trial in a view, packed."""
    place = pd.Index(CLASSES).get_indexer(pd.Index(scores["class" + end]))
    return {"class": in_text(place, "u1")} | {
        name: in_text(column(scores, name + end), "<f4") for name in SCORES
    }


def coded_values(values: Any) -> dict[str, Any]:
    """Return a column as its values in order, how a reader writes them, and their places, packed."""
    code, found = pd.factorize(values, use_na_sentinel=False)
    plain = [None if pd.isna(value) or value in (np.inf, -np.inf) else value for value in found.tolist()]
    order = sorted(range(len(plain)), key=lambda place: (plain[place] is None, rank(plain[place])))
    ranks = np.empty(len(order), int)
    ranks[order] = np.arange(len(order))
    ordered = [plain[place] for place in order]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in ordered)
    kind = "<u2" if len(ordered) < 2**16 else "<u4"
    packed = dict(numeric=numeric, bytes=int(kind[2]), codes=in_text(ranks[code], kind))
    if numeric and len(ordered) > MANY_VALUES:
        return packed | dict(values=in_text(np.array(ordered), "<f4"))
    return packed | dict(values=ordered, texts=texts(ordered))


def texts(values: Sequence[Any]) -> list[str]:
    """Return values as a reader writes them; a missing one is empty."""
    if None in values:
        return [written("" if value is None else value, 4) for value in values]
    try:
        return distinct_texts(values)
    except StopIteration:  # two words that differ in an underscore only
        return [str(value) for value in values]


def packed_records(run: Run, scores: pd.DataFrame) -> tuple[dict[str, Any] | None, str]:
    """Return the kept records of the trials whose trajectories fit on a page, and what was left out."""
    layout = Records.of(run.trajectories["step"].to_numpy())
    rows, most, sentence = trials_that_fit(scores)
    lengths = layout.end - layout.start + 1
    if not len(rows):
        return None, sentence
    marks = np.stack([column(scores, name) for name in ("onset_v", "onset_attention", "t_end")], axis=1)
    kept = [
        layout.start[row]
        + kept_records(layout.step[layout.start[row] : layout.end[row] + 1], marks[row], most)
        for row in rows
    ]
    if not sentence and lengths[rows].max() > most:
        sentence = (
            f"Lines have at most {most} records of a trial: the first, the last, and those near onsets."
        )
    counts = np.array([len(places) for places in kept])
    places, start = np.concatenate(kept), np.cumsum(counts) - counts
    packed = {
        "rows": in_text(rows, "<u4"),
        "counts": in_text(counts, "<u2"),
        "steps": in_text(layout.step[places], "<u4"),
        "curves": packed_curves(run.trajectories, places, start),
        "lines": packed_lines(run.trials.iloc[rows]),
    }
    return packed, sentence


def trials_that_fit(scores: pd.DataFrame) -> tuple[np.ndarray, int, str]:
    """Return the trials whose trajectories are on the page, records of each, and a sentence on the others.

    All have them if each can have FEWEST_RECORDS; else the first trial of each cell; else none.
    """
    rows = np.arange(len(scores))
    if len(rows) * FEWEST_RECORDS > ALL_RECORDS:
        rows = np.unique(cell_numbers(scores)[1], return_index=True)[1]
    most = min(MOST_RECORDS, ALL_RECORDS // max(1, len(rows)))
    trials = counted(len(scores), "trial")
    if most < FEWEST_RECORDS:
        return rows[:0], 0, f"No trajectories are on this page: {trials} are too many for one file."
    if len(rows) < len(scores):
        return rows, most, f"Of {trials} the first of each cell has its trajectory on this page."
    return rows, most, ""


def packed_curves(frame: pd.DataFrame, places: np.ndarray, start: np.ndarray) -> dict[str, Mapping[str, str]]:
    """Return each recorded column that has values, packed."""
    packed = {}
    for name in CURVES:
        values = column(frame, name)[places] if name in frame else np.full(1, np.nan)
        if np.isfinite(values).any():
            codes, low, high = code_series(values, start)
            packed[name] = dict(
                codes=in_text(codes, "<u2"), low=in_text(low, "<f4"), high=in_text(high, "<f4")
            )
    return packed


def packed_lines(trials: pd.DataFrame) -> dict[str, str]:
    """Return each limit line that some trial has, packed."""
    lines = {name: column(trials, f"line_{name}") for name in LINES}
    return {name: in_text(values, "<f4") for name, values in lines.items() if np.isfinite(values).any()}
