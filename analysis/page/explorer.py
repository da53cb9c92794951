"""The interactive map of a page: cells, rectangles and colours computed by `maps`, and trajectories.

Everything is computed here and written as JSON; the modules in web/ draw it and handle events.  A column of
settings is stored as indices into the list of its values; numbers are stored as bytes in base 64.  The JSON
is compressed in the page.
"""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm, to_hex, to_rgb
from pandas.api.types import is_numeric_dtype

from topicjax.errors import UserError, counted
from topicjax.pace import PER_DECADE
from topicjax.settings import SEEDS
from topicjax.store.reader import Run

from ..frames import column, distinct, due_records, measured_columns, reference_losses, varying
from ..maps.cells import (
    FINAL,
    NOTES,
    STATUS,
    cell_table,
    class_column,
    class_views,
    first_panels,
    score_columns,
    scored_trials,
)
from ..maps.colours import shaded
from ..maps.drawing import brightness, cell_colours, cell_marks, colour_scale, hatch_ink
from ..maps.layouts import AXES, MOST_VALUES, Layout, Refinement, arrange, rank
from ..pictures import distinct_texts, label, sentences, written
from .claims import Explain
from .contract import Chart, Look, Page, Scores, View
from .html import NO_WORDS, Words
from .scripts import WEB, bundle, packed

Array = np.ndarray
MOST_MAPS, MOST_ROWS = 12, 12  # pairs of axes; rows of panels (twice as many if panels are chosen)
ALL_RECTANGLES = 60_000  # limit over all maps: about 1 MB
ALL_VALUES = 120_000  # limit for scores and final values over all trials and cells: about 0.6 MB
MOST_RECORDS, FEWEST_RECORDS = 32, 16  # per trial on the page
ALL_NUMBERS = 600_000  # limit over all trajectories: about 1.6 MB
MOST_CURVES, MOST_MARKS = 24, 6
SEVERAL = -1  # the index of a setting that takes several values in a cell
LEVELS = 32766  # from code 1 to code 32767
NEGATIVE = 0x8000  # added to the code of a negative number; alone it means non-finite
SHARE_OF_MARKS = 12  # each mark gets one in this many records
NONE = np.zeros(0, int)
MOST_MEASURED = 12  # columns measured after training, each with a small chart
ALL_MATRICES = 2_000_000  # limit for numbers of matrices: about 0.4 MB, as most entries of a matrix are alike
MOST_INSIDE = 1000  # trials with matrices: their weights are read one by one, some 100 a second
MOST_SIDE = 400  # rows and columns of a matrix
# Levels of a small matrix, and of one with more than FEW entries; odd, so that 0 has a level of its own.
FINE, COARSE = 91, 9
FEW, NO_VALUE, FIRST_LEVEL = 1000, "!", 35  # an entry is a character: no value, or its level
CELL = "cell of the page"
LINE_COLOURS = (  # on a light page, on a dark page
    *(("#0072B2", "#4FA8DC"), ("#D55E00", "#F0853A"), ("#B87700", "#E6A83A"), ("#007D5B", "#2FB58C")),
    *(("#8A4F7D", "#C98ABC"), ("#56606A", "#A9B4BF")),
)
DASHES = ("", "5 3", "2 3", "8 3 2 3")
HATCHES = {  # matplotlib's hatch characters as SVG paths in a square of 8 by 8
    "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    ".": "M2 2h1v1h-1zM6 6h1v1h-1z",
    "+": "M4 0V8M0 4H8",
    "x": "M0 0L8 8M0 8L8 0",
    "-": "M0 4H8",
}


def explorer(
    run: Run,
    scores: Scores,
    page: Page,
    x: str | None = None,
    y: str | None = None,
    words: Words = NO_WORDS,
    explain: Explain | None = None,
) -> str:
    """Write the interactive map as HTML: its section, style, data and script.

    `x` and `y` are the axes shown first; classes that are among the `words` are explained.  `explain` says
    why matrices cannot be drawn, given the name of their function and its exception.
    """
    found = page_data(run, scores, page, x, y, words, explain)
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    note = "The interactive map needs JavaScript; the figures below show the same run without it."
    return (
        f"<style>{(WEB / 'explorer.css').read_text(encoding='utf-8')}</style>\n"
        f'<section id="explorer" aria-label="Interactive map"><noscript><p>{html.escape(note)}</p></noscript>'
        '<svg width="0" height="0" aria-hidden="true"></svg></section>\n'
        f'<script type="text/plain" id="explorer-data">{packed(text.encode())}</script>\n'
        f'<script type="module">\n{bundle("page.js")}</script>\n'
    )


def page_data(
    run: Run,
    scores: Scores,
    page: Page,
    x: str | None = None,
    y: str | None = None,
    words: Words = NO_WORDS,
    explain: Explain | None = None,
) -> dict[str, Any]:
    """Collect everything the explorer shows of a run, ready for JSON."""
    trials, settings = scored_trials(run, scores, page)
    views, looks = class_views(trials, page)
    layouts = map_layouts(run, trials, settings, page, x, y)
    members, numbers = all_cells(layouts)
    owner = np.repeat(np.arange(len(members)), [len(own) for own in members])
    stacked = trials.iloc[np.concatenate(members)].assign(**{CELL: owner})
    cells = cell_table(page, settings)(stacked, [CELL])
    names = kept_columns(trials, settings, views, len(trials) + len(cells))
    finals = [name for name in names if name.startswith(FINAL)]
    first = f"view:{views[0].name}"
    charts = drawn_charts(run, page)
    records, sentence = packed_records(run, trials, settings, charts, page)
    try:
        stands = standing(trials, members, views[0])
        inside, remark = packed_matrices(run, scores, trials, stands, page)
    except Exception as error:
        if explain is None:
            raise
        inside, remark = None, f"No matrices: {explain('inside', error)}."
    return {
        "name": run.name,
        "ids": trials["trial_id"].tolist(),
        "settings": coded_settings(trials, settings, layouts, members, numbers),
        "classes": [class_look(name, look, words) for name, look in looks.items()],
        "views": [packed_view(view, views, trials, cells, looks, names) for view in views],
        "columns": [packed_column(name, trials, cells, views) for name in names],
        "notes": {name: coded_values(trials[name]) for name in note_columns(trials, settings, page)},
        "cells": {
            "counts": in_text(np.bincount(owner), "<u4"),
            "trials": in_text(np.concatenate(members), "<u4"),
        },
        "maps": [packed_map(layout, number) for layout, number in zip(layouts, numbers, strict=True)],
        "colour": f"column:{finals[0]}" if views[0].name == STATUS and finals else first,
        "open": int(telling_cell(cells.iloc[np.unique(numbers[0])], views[0], looks)),
        "scales": {
            name: in_text(colormaps[name](range(256))[:, :3] * 255, "u1") for name in ("cividis", "PuOr")
        },
        "charts": charts,
        "records": records,
        "inside": inside,
        "sentence": " ".join(filter(None, (sentence, remark))),
    }


def map_layouts(
    run: Run, trials: pd.DataFrame, settings: Sequence[str], page: Page, x: str | None, y: str | None
) -> list[Layout]:
    """Lay out the map of the default axes, then of other pairs of settings that vary.

    If there are many pairs, those with the most values come first.  Pairs that would leave out panels are
    skipped.
    """
    several = varying(trials, [name for name in settings if name not in SEEDS])
    panels = [name for name in first_panels(trials, settings, page) if name not in (x, y)]
    if len(several) > 1:  # constant settings do not separate cells
        settings = [name for name in settings if name in {*several, *panels, x, y}]

    def layout(x: str | None, y: str | None) -> Layout:
        cells = lambda frame, by: distinct(frame, by)[1]  # noqa: E731
        return arrange(trials, settings, cells, Refinement.of(run.manifest), x, y, panels, MOST_ROWS)

    first = layout(x, y)
    several.sort(key=lambda name: AXES.index(name) if name in AXES else len(AXES))
    sizes = {name: min(MOST_VALUES, trials[name].nunique()) for name in several}
    pairs = [pair for pair in combinations(several, 2) if {*pair} != {first.x, first.y}]
    if len(pairs) >= MOST_MAPS:
        pairs.sort(key=lambda pair: -sizes[pair[0]] * sizes[pair[1]])
    found, rectangles = [first], 0
    for pair in pairs[: MOST_MAPS - 1]:
        other = layout(*pair)
        rectangles += len(other.cells)
        if not other.left_out and rectangles <= ALL_RECTANGLES:
            found.append(other)
    return found


def all_cells(layouts: Sequence[Layout]) -> tuple[list[Array], list[Array]]:
    """Number the cells of all maps; return the trials of each cell, and per map the numbers of its cells.

    Maps whose axes are not pooled share their cells.
    """
    known: dict[tuple[int, bytes], int] = {}
    members, numbers = [], []
    for place, layout in enumerate(layouts):
        order = np.argsort(layout.owner, kind="stable")
        ends = np.searchsorted(layout.owner[order], np.arange(len(layout.cells) + 1))
        own = [order[low:high] for low, high in pairwise(ends)]
        keys = [(place if layout.pooled else -1, trials.tobytes()) for trials in own]
        for key, trials in zip(keys, own, strict=True):
            if key not in known:
                known[key] = len(members)
                members.append(trials)
        numbers.append(np.array([known[key] for key in keys]))
    return members, numbers


def packed_map(layout: Layout, numbers: Array) -> dict[str, Any]:
    """Pack the panels of a map; rectangles of cells are measured in places from the lower left."""
    panels = []
    for row, text in enumerate(layout.labels):
        for place, title in enumerate(layout.titles):
            part, grid = layout.parts[row][place], layout.grids[row][place]
            if part.empty:
                continue
            regions = grid.regions(part)
            words = [*title.split("\n"), *text.split("\n")[:-1]]
            panel = {
                "title": ", ".join(filter(None, words)),
                "shape": grid.shape,
                "ticks": grid.ticks,
                "texts": grid.texts,
                "cells": in_text(numbers[part.index.to_numpy()], "<u4"),
                "boxes": in_text(regions.boxes + 0.5, "<u2"),
                "empty": in_text(grid.empty(part), "<u2"),
            }
            if grid.refined:
                squares = np.column_stack([regions.centres + 0.5, regions.sides])
                panel |= {"whose": in_text(regions.whose, "<u4"), "squares": in_text(squares, "<f4")}
            panels.append(panel)
    return {
        "x": layout.x,
        "y": layout.y,
        "name": f"{label(layout.x)} by {label(layout.y)}",
        "labels": [label(layout.x), label(layout.y)],
        "remarks": sentences(layout.remarks),
        "panels": panels,
    }


def coded_settings(
    trials: pd.DataFrame,
    settings: Sequence[str],
    layouts: Sequence[Layout],
    members: Sequence[Array],
    numbers: Sequence[Array],
) -> list[dict[str, Any]]:
    """Pack the settings that vary or are an axis: values, and an index into them per trial and per cell."""
    axes = {name for layout in layouts for name in (layout.x, layout.y)}
    names = [name for name in settings if name in axes or name in varying(trials, [name])]
    starts = np.cumsum([0, *(len(own) for own in members[:-1])])
    every = np.concatenate(members)
    found = []
    for name in names:
        packed, (code, values) = coded_values(trials[name]), value_codes(trials[name])
        low, high = (by.reduceat(code[every], starts) for by in (np.minimum, np.maximum))
        of_cells = np.where(low == high, low, SEVERAL)
        for layout, number in zip(layouts, numbers, strict=True):
            if layout.pooled and name in (layout.x, layout.y):  # pooled values are labelled by the middle one
                of_cells[number] = pd.Index(values).get_indexer(pd.Index(layout.cells[name]))
        found.append(packed | dict(name=name, label=label(name), cells=in_text(of_cells, "<i4")))
    return found


def kept_columns(
    trials: pd.DataFrame, settings: Sequence[str], views: Sequence[View], rows: int
) -> list[str]:
    """List the scores and final values that fit on a page, beginning with those that the views use."""
    names = [n for n in score_columns(trials, settings) if np.isfinite(column(trials, n)).any()]
    used = [view.score + view.suffix for view in views if view.score]
    used += [name for name in names if name.startswith("onset_")]
    used += [name for name in names if name.startswith(FINAL)]
    ordered = list(dict.fromkeys([*used, *(name for name in names if name not in NOTES)]))
    return ordered[: max(len(views), ALL_VALUES // rows)]


def packed_column(
    name: str, trials: pd.DataFrame, cells: pd.DataFrame, views: Sequence[View]
) -> dict[str, Any]:
    """Pack a column of trials and of cells with its label and colour scale."""
    suffix = suffix_of(name, views)
    base = plain_label(name.removeprefix(FINAL).removesuffix(suffix))
    beside = [f" ({view.name})" for view in views if suffix and view.suffix == suffix]
    scale: Any = colour_scale(column(cells, name))
    is_share = name in {view.score + view.suffix for view in views}
    low, high = (0, 1) if is_share else (scale.norm.vmin, scale.norm.vmax)
    return {
        "name": name,
        "label": "".join([base, *beside]),
        "group": "final values" if name.startswith(FINAL) else "scores",
        "trials": in_text(column(trials, name), "<f4"),
        "cells": in_text(column(cells, name), "<f4"),
        "low": float(low),
        "high": float(high),
        "log": isinstance(scale.norm, LogNorm) and not is_share,
        "scale": "cividis" if is_share else scale.cmap.name,
    }


def suffix_of(name: str, views: Sequence[View]) -> str:
    """Find the view suffix of a column; empty for columns of the first view or of no view."""
    return max((view.suffix for view in views if name.endswith(view.suffix)), key=len, default="")


def plain_label(name: str) -> str:
    """Write a column in words, without mathematics."""
    return name.replace("_", " ") if "$" in label(name) else label(name)


def packed_view(
    view: View,
    views: Sequence[View],
    trials: pd.DataFrame,
    cells: pd.DataFrame,
    looks: Mapping[str, Look],
    names: Sequence[str],
) -> dict[str, Any]:
    """Pack the classes of a view for trials and cells, with the cells' colours and marks."""
    kinds, own = pd.Index(list(looks)), class_column(view)
    onsets = [n for n in names if n.startswith("onset_") and suffix_of(n, views) == view.suffix]
    marks: Any = cell_marks(cells, view) @ (1, 2, 4)
    words = {
        f"Number and shade of a cell: {label(view.score)}.": view.score,
        f"White centre: {view.hollow_words}.": (marks & 4).any(),
        "Upper corner: trials disagree.": (marks & 1).any(),
        "Lower corner: some trials diverged.": (marks & 2).any(),
    }
    return {
        "name": view.name,
        "column": own,
        "words": view.words or view.name,
        "score": names.index(view.score + view.suffix) if view.score else -1,
        "onsets": [names.index(name) for name in onsets],
        "trials": in_text(kinds.get_indexer(pd.Index(trials[own])), "u1"),
        "cells": in_text(kinds.get_indexer(pd.Index(cells[own])), "u1"),
        "colours": in_text((255 * cell_colours(cells, view, looks)).round(), "u1"),
        "marks": in_text(marks, "u1"),
        "hint": sentences(words),
        "hollow": view.hollow_words,
    }


def class_look(name: str, look: Look, words: Words = NO_WORDS) -> dict[str, Any]:
    """Describe how a class is drawn.

    Lines are darkened to a contrast of 3:1 on a light page, and lightened to the same on a dark one.
    """
    colour: Any = np.array(to_rgb(look.colour))
    bright = max(brightness(colour), 0.01)
    light: Any = shaded(colour, min(1, 0.55 / (1.01 - bright)))
    line = to_hex(colour * min(1, 0.55 / bright)), to_hex(light)
    path = HATCHES.get(look.hatch[:1], HATCHES["/"]) if look.hatch else ""
    ink = to_hex(hatch_ink(look))
    drawn = dict(name=name, colour=to_hex(colour), line=line, hatch=path, ink=ink)
    return drawn | dict(word=words.anchor(name))


def telling_cell(cells: pd.DataFrame, view: View, looks: Mapping[str, Look]) -> Any:
    """Choose the cell that is open at first: the highest score in the first class that occurs."""
    kinds = pd.Index(list(looks)).get_indexer(pd.Index(cells[class_column(view)]))
    scores = column(cells, view.score + view.suffix) if view.score else column(cells, "trials")
    return cells.index[np.lexsort((-np.nan_to_num(scores, nan=-1), kinds))[0]]


def note_columns(trials: pd.DataFrame, settings: Sequence[str], page: Page) -> list[str]:
    """List the columns that say how trials ended, and text columns of the scores other than classes."""
    known = {*settings, *(class_column(view) for view in page.views), *NOTES, "trial_id"}
    words = [str(name) for name in trials if name not in known and isinstance(trials[name].iloc[0], str)]
    return [*(name for name in NOTES if name in trials and len(trials[name].dropna())), *words]


def value_codes(values: Any) -> tuple[Array, list[Any]]:
    """Return each value's index among the distinct values, and these in order; missing values are None."""
    code, found = pd.factorize(values, use_na_sentinel=False)
    plain = [None if pd.isna(value) or value in (np.inf, -np.inf) else value for value in found.tolist()]
    order = sorted(range(len(plain)), key=lambda place: (plain[place] is None, rank(plain[place])))
    ranks = np.empty(len(order), int)
    ranks[order] = np.arange(len(order))
    return ranks[code], [plain[place] for place in order]


def coded_values(values: Any) -> dict[str, Any]:
    """Pack a column as its distinct values in order, their texts, and an index per row."""
    code, found = value_codes(values)
    texts = ["" if v is None else written(v, 4) for v in found] if None in found else distinct_texts(found)
    return dict(codes=in_text(code, "<i4"), values=found, texts=texts)


def drawn_charts(run: Run, page: Page) -> list[dict[str, Any]]:
    """Describe the charts of a trial's records and the style of their curves.

    By default all losses share one chart, and every other column has a small one; columns that were measured
    after training always do.
    """
    frame, later = run.trajectories, measured_columns(run)
    known = {*run.setting_names, *NOTES, "trial_id", "step"}
    numeric = [str(n) for n in frame if n not in known and is_numeric_dtype(frame[n])]
    full = [name for name in numeric if np.isfinite(column(frame, name)).any()]
    charts: Sequence[Chart] = page.charts

    def small(name: str) -> Chart:
        return Chart(plain_label(name), {name: plain_label(name)}, scale_of(frame[name]))

    if not page.charts:
        losses = [name for name in full if "loss" in name]
        others = [name for name in full if name not in losses]
        charts = [Chart("Loss", {n: plain_label(n) for n in losses}, references=True), *map(small, others)]
    drawn = {name for chart in charts for name in chart.columns}
    further = [name for name in full if name in later and name not in drawn][:MOST_MEASURED]
    found, room = [], MOST_CURVES + len(further)
    for chart in [*map(small, further), *charts] if page.charts else charts:
        names = [name for name in chart.columns if name in full][:room]
        room -= len(names)
        curves = [
            dict(
                name=name,
                label=chart.columns[name],
                colour=LINE_COLOURS[place % len(LINE_COLOURS)],
                dash=DASHES[(place if chart.references else place // len(LINE_COLOURS)) % len(DASHES)],
            )
            for place, name in enumerate(names)
        ]
        is_small = (not page.charts or {*chart.columns} <= {*further}) and not chart.references
        look = dict(title=chart.title, log=chart.scale == "log", references=chart.references, small=is_small)
        found += [look | dict(curves=curves)] if curves else []
    return found


def scale_of(values: Any) -> Any:
    """Choose the scale of a column: logarithmic if it is positive and spans two orders of magnitude."""
    finite = values[np.isfinite(values)]
    return "log" if finite.min() > 0 and finite.max() > 100 * finite.min() else "linear"


def packed_records(
    run: Run, trials: pd.DataFrame, settings: Sequence[str], charts: Sequence[Mapping[str, Any]], page: Page
) -> tuple[dict[str, Any] | None, str]:
    """Pack the records of the trials whose trajectories fit on a page; say what was left out."""
    names = list(dict.fromkeys(curve["name"] for chart in charts for curve in chart["curves"]))
    cell = distinct(trials, [name for name in settings if name not in SEEDS])[0]
    rows, most, sentence = trials_that_fit(cell, len(names))
    if not len(rows) or not names:
        return None, sentence
    frame = run.trajectories
    owner = pd.Index(trials["trial_id"]).get_indexer(pd.Index(frame["trial_id"]))
    order = np.lexsort((frame["step"].to_numpy(), owner))
    step = frame["step"].to_numpy()[order]
    starts, ends = (np.searchsorted(owner[order], rows, side) for side in ("left", "right"))
    marks = [str(name) for name in trials if str(name).startswith("onset_")][:MOST_MARKS]
    at = trials[marks].to_numpy(float)
    is_rare = has_rare_columns(run, trials, owner)[order]
    kept = [
        low + kept_records(step[low:high], at[row], most, np.flatnonzero(is_rare[low:high]))
        for row, low, high in zip(rows, starts, ends, strict=True)
    ]
    if not sentence and (ends - starts).max() > most:
        sentence = (
            f"Curves show at most {most} records per trial, with the first, the last and those near onsets."
        )
    counts = np.array([len(places) for places in kept])
    is_there = counts > 0
    places, start = np.concatenate(kept), (np.cumsum(counts) - counts)[is_there]
    rows, counts = rows[is_there], counts[is_there]
    curves = {}
    for name in names if len(places) else ():
        codes, low, high = code_series(column(frame, name)[order[places]], start)
        curves[name] = dict(codes=in_text(codes, "<u2"), low=in_text(low, "<f4"), high=in_text(high, "<f4"))
    references = reference_losses(run, page.references)
    packed = {
        "rows": in_text(rows, "<u4"),
        "counts": in_text(counts, "<u2"),
        "steps": in_text(step[places], "<u4"),
        "curves": curves,
        "references": packed_references(references, run, trials["trial_id"].iloc[rows]),
    }
    return packed, sentence


def has_rare_columns(run: Run, trials: pd.DataFrame, owner: Array) -> Array:
    """Mark the records that have columns which others lack; `owner` is the row of each record's trial, or -1.

    These columns are rare ones, or were measured after training on the snapshot of the record.
    """
    frame = run.trajectories
    later = [name for name in measured_columns(run) if name in frame]
    is_rare = np.any(frame[later].notna().to_numpy(), axis=1)
    if "rare_every" in trials:
        pace: Any = trials[[name for name in ("record_every", "rare_every", PER_DECADE) if name in trials]]
        is_rare |= due_records(frame, pace.take(owner)) & (owner >= 0)
    return is_rare


def trials_that_fit(cell: Array, curves: int) -> tuple[Array, int, str]:
    """Choose the trials whose trajectories are on the page, records per trial, and a sentence on the rest.

    All trials are chosen if each can have FEWEST_RECORDS; else the first trial of each cell; else none.
    """
    rows, all_records = np.arange(len(cell)), ALL_NUMBERS // max(1, curves)
    if len(rows) * FEWEST_RECORDS > all_records:
        rows = np.unique(cell, return_index=True)[1]
    most = min(MOST_RECORDS, all_records // max(1, len(rows)))
    trials = counted(len(cell), "trial")
    if most < FEWEST_RECORDS:
        return rows[:0], 0, f"This page has no trajectories: {trials} are too many for one file."
    if len(rows) < len(cell):
        return rows, most, f"Trajectories of {trials} do not fit: this page has the first of each cell."
    return rows, most, ""


def packed_references(found: pd.DataFrame, run: Run, trial_ids: pd.Series) -> list[dict[str, str]]:
    """Pack the reference losses of these trials by name."""
    rows = pd.Index(run.trials["trial_id"]).get_indexer(pd.Index(trial_ids))
    values = {str(name): column(found, str(name))[rows] for name in found}
    return [
        dict(name=plain_label(name), values=in_text(own, "<f4"))
        for name, own in values.items()
        if np.isfinite(own).any()
    ]


def kept_records(step: Array, marks: Array, most: int, rare: Array = NONE) -> Array:
    """Choose at most `most` of a trial's records; return their indices.

    These are the first and the last, others spaced evenly and evenly in the logarithm, and those around each
    mark.  A mark is a step at which something happens, or NaN.  `rare` are the records with columns that
    others lack.
    """
    last = len(step) - 1
    if last < most:
        return np.arange(last + 1)
    if len(rare):  # half of them among those that have rare columns
        return np.union1d(
            kept_records(step, marks, most - most // 2), rare[kept_records(step[rare], marks, most // 2)]
        )
    around = max(1, most // SHARE_OF_MARKS)
    spread = most - around * len(marks)
    evenly = np.linspace(0, last, spread - spread // 2)
    places = np.concatenate([evenly, np.geomspace(1, last, spread // 2)]).round().astype(int)
    after = np.searchsorted(step, marks[np.isfinite(marks)])
    near = after[:, None] + np.arange(around) - around // 2
    return np.unique(np.clip(np.concatenate([places, near.ravel()]), 0, last))


def code_series(values: Array, start: Array) -> tuple[Array, Array, Array]:
    """Code series that lie end to end; return the codes and the log of the extreme sizes of each series.

    A number is coded in two bytes by its sign and the logarithm of its size, on a scale from the smallest to
    the largest size of its series (one column of one trial).  So 1e-8 and 1 have the same relative precision:
    half a step of ln(largest / smallest) / LEVELS, 3e-4 for eight decades, at most 3e-3 for all of float32.
    Code 0 is zero, 1 to 32767 a size, NEGATIVE alone a non-finite number.
    """
    size = np.abs(values.astype(float))
    is_sized = np.isfinite(size) & (size > 0)
    log_size = np.log(np.where(is_sized, size, 1))
    low = np.minimum.reduceat(np.where(is_sized, log_size, np.inf), start)
    high = np.maximum.reduceat(np.where(is_sized, log_size, -np.inf), start)
    low, high = (np.where(np.isfinite(end), end, 0).astype("<f4") for end in (low, high))
    counts = np.diff(np.append(start, len(values)))
    width = np.repeat(np.where(high > low, high - low, 1).astype(float), counts)
    level = (log_size - np.repeat(low.astype(float), counts)) / width * LEVELS
    codes = 1 + np.clip(level.round(), 0, LEVELS).astype(np.uint16)
    codes = np.where(is_sized, codes + np.where(values < 0, NEGATIVE, 0), 0)
    return np.where(np.isfinite(values), codes, NEGATIVE).astype("<u2"), low, high


def standing(trials: pd.DataFrame, members: Sequence[Array], view: View) -> list[int]:
    """Choose the trial that stands for each cell: of its class, with the middle score, the first of these."""
    kinds = trials[class_column(view)].to_numpy()
    scores = column(trials, view.score + view.suffix) if view.score else np.zeros(len(trials))
    scores = np.nan_to_num(scores, nan=-1)
    chosen = []
    for own in members:
        found = pd.Series(kinds[own]).mode()
        like = own[kinds[own] == found[0]]
        chosen.append(int(like[np.abs(scores[like] - np.median(scores[like])).argmin()]))
    return chosen


def packed_matrices(
    run: Run,
    scores: Scores,
    trials: pd.DataFrame,
    standing: Sequence[int],
    page: Page,
) -> tuple[dict[str, Any] | None, str]:
    """Pack the matrices inside trained models; return them with a remark on what was left out.

    All trials have small ones, and those that stand for a cell larger ones.  If there are too many trials,
    only those that stand for a cell have any.
    """
    ids = trials["trial_id"].to_numpy()
    stands = [*dict.fromkeys(standing)]
    every = [*range(len(ids))] if len(ids) <= MOST_INSIDE else stands[:MOST_INSIDE]
    labels: dict[tuple[str, tuple[str, ...]], int] = {}
    found: dict[int, list[dict[str, Any]]] = {}
    room, left_out = ALL_MATRICES, 0
    for make, chosen in ((page.inside, every), (page.inside_cell, stands[:MOST_INSIDE])):
        if make is None:
            continue
        made = make(run, scores, [str(ids[trial]) for trial in chosen])
        for trial in chosen:
            own = [packed_matrix(name, each, labels) for name, each in made.get(str(ids[trial]), {}).items()]
            size = sum(math.prod(each["shape"]) for each in own)
            left_out += size > room
            if own and size <= room:
                room -= size
                found.setdefault(trial, []).extend(own)
    if not found:
        return None, ""
    texts = [dict(title=title, texts=own) for title, own in labels]
    few = f"Matrices of {counted(left_out, 'model')} do not fit." * bool(left_out)
    remark = " ".join(filter(None, (cut_sentence(len(ids), len(stands)), few)))
    by_trial = {str(trial): own for trial, own in found.items()}
    return dict(labels=texts, trials=by_trial, remark=remark), remark


def cut_sentence(trials: int, stands: int) -> str:
    """Say which trials have matrices where not all do; `stands` is the number that stand for a cell."""
    if trials <= MOST_INSIDE:
        return ""
    few = f", for the first {MOST_INSIDE:,} of {stands:,} cells" if stands > MOST_INSIDE else ""
    return f"Of {counted(trials, 'trial')}, matrices are drawn only for the one that stands for a cell{few}."


def packed_matrix(name: str, given: Any, labels: dict[tuple[str, tuple[str, ...]], int]) -> dict[str, Any]:
    """Pack a matrix in one character per entry, with its labels and the range of its colours.

    Colours end at the largest size of all but one in a hundred entries, so a few large ones hide nothing.  In
    a large matrix the entries end there too: its levels are few, because they take most of the page.
    """
    frame = given if isinstance(given, pd.DataFrame) else None
    values = np.asarray(given, float)
    if values.ndim != 2 or not values.size or max(values.shape) > MOST_SIDE:
        allowed = f"a matrix of at most {MOST_SIDE} rows and columns"
        raise UserError(f"inside: {name} has shape {values.shape}; allowed: {allowed}")
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    high = high if high > low else low + 1
    if low < 0 < high:
        limit = float(np.quantile(np.abs(known), 0.99)) or max(-low, high)
        shade = [-limit, limit]
    else:
        shade = [float(end) for end in np.quantile(known, (0.005, 0.995))] if known.size else [low, high]
    is_large = values.size > FEW
    low, high = shade if is_large else (low, high)
    level = (np.clip(np.nan_to_num(values), low, high) - low) / (high - low or 1)
    codes = (FIRST_LEVEL + level * ((COARSE if is_large else FINE) - 1)).round().astype("u1")
    codes[~np.isfinite(values)] = ord(NO_VALUE)
    places = [-1, -1]
    if frame is not None:
        for number, own in enumerate((frame.index, frame.columns)):
            key = (str(own.name or ""), tuple(map(str, own)))
            places[number] = labels.setdefault(key, len(labels))
    digits = [float(f"{end:.4g}") for end in (low, high, *shade)]
    return {
        "name": name,
        "shape": list(values.shape),
        "labels": places,
        "low": digits[0],
        "high": digits[1],
        "shade": digits[2:],
        "levels": COARSE if is_large else FINE,
        "cut": is_large,
        "codes": codes.tobytes().decode("ascii"),
    }


def in_text(values: Array, kind: str) -> str:
    """Encode numbers in base 64: their bytes in the given little-endian type."""
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()
