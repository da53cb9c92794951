"""Tables over several runs: in how many cells training is two-stage, how clean, and what removes the stages.

The first has a row per run and a column per measure (loss, order parameters, norms); the second a row per
view, with what removes the stages.

The pages of the runs say which of their classes count as two-stage (Page.staged).  The trials of a cell
differ only in the seed; its answer is that of its most frequent class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from topicjax.errors import UserError, counted
from topicjax.pace import PER_DECADE
from topicjax.settings import SEEDS
from topicjax.store.reader import load

from ..frames import Array, cell_of_rows, distinct, varying
from ..maps.cells import DIVERGED, UNSCORED, majority, scored_trials
from ..outputs import write_file
from ..pictures import (
    MOST_VALUES,
    PALETTE,
    WIDTH,
    Picture,
    described,
    first_of,
    label,
    setting_text,
    style,
    written,
)
from ..tables import markdown_cell, markdown_table
from . import html
from .claims_table import Scored, explain, now, origin, relative, scored
from .contract import Staged
from .lookup import find_page

TITLE = "Is two-stage general?"
MEASURES = ("loss", "order parameters", "norms")  # columns of the first table
NOT_DEFINED, NOT_RECORDED, NOT_JUDGED = "not defined", "not recorded", "no cell judged"
HEAD = ("run and view", "two-stage", "Θ", "agreement", "what removes it")
# How long a cell is trained and how often it is measured: pairs of cells may differ in these.
PACE = ("steps", "until", "record_every", PER_DECADE, "rare_every")
TWO_STAGE, ANOTHER, NO_ANSWER = 2, 1, 0  # the answer of a cell
LEAST_PAIRS = 3  # of a value that is named as what removes the stages
MOST_NAMED = 3  # values in a sentence
MOST_COMMON = 2  # settings that are named as common to all pairs
FAR_APART = 0.25  # shares of a setting's values that differ by more are named
SURE = 0.9  # share of cells from which the answer is yes
MOST_DOTS = 400  # of a row of the figure
READING = (
    "First table: two-stage cells among the judged ones, and the median of Θ. "
    f"{NOT_DEFINED.capitalize()}: the pages of this experiment have no view by that measure. "
    f"{NOT_RECORDED.capitalize()}: they have one, but this run lacks its columns.",
    "A cell is the trials that differ only in the seed; it has the class of most of them. Judged are the "
    "cells in which stage 2 happened, or what else a view needs for an answer; the others are listed beside.",
    "Θ is 1 if the first part is done before the second begins, and about 0.5 if both rise together: median "
    "and range over judged cells. Agreement: the share of their trials that have the class of the cell.",
    "What removes it: values of a setting at which most cells are no longer two-stage that are so at another "
    "value, with all other settings equal (but for the number of steps and of records); those at which the "
    "share of two-stage cells falls most come first. Pairs whose second cell is not judged are listed apart.",
)
Say = Callable[[str], object]


@dataclass(frozen=True)
class Value:
    """The cells with one value of a setting, and their pairs with cells that differ in that setting alone.

    Of the pairs in which the other cell is two-stage, this one is too in `kept`, is judged otherwise in
    `removed` and not judged in `unanswered`.  `where` has settings that are the same in all pairs that are
    kept or removed, though they vary in the run.
    """

    value: Any
    words: str
    cells: int
    judged: int
    two_stage: int
    kept: int
    removed: int
    unanswered: int
    fall: float  # share of two-stage cells among the others minus that among these, over judged pairs
    where: str

    @property
    def share(self) -> float:
        """Return the share of judged cells that are two-stage; NaN without any."""
        return self.two_stage / self.judged if self.judged else np.nan


@dataclass(frozen=True)
class Setting:
    """A setting that varies in a run, with its values in order."""

    name: str
    values: list[Value]


@dataclass(frozen=True)
class Row:
    """What one run says in one view."""

    experiment: str
    run: str
    view: str
    words: str
    cells: int
    judged: int
    two_stage: int
    others: dict[str, int]  # judged cells of the other classes
    not_judged: dict[str, int]  # cells of classes that do not answer
    trials: int
    most_trials: int  # of a cell
    theta: float  # median over judged cells
    theta_lowest: float
    theta_highest: float
    agreement: float
    removes: str
    settings: list[Setting]
    commit: str
    page: str
    dots: list[tuple[float, bool]] = field(default_factory=list)  # of judged cells: Theta, is it two-stage?


@dataclass(frozen=True)
class Summary:
    """What one run says by each of MEASURES, in words."""

    experiment: str
    run: str
    answers: dict[str, str]


@dataclass(frozen=True)
class General:
    """The rows of several runs, remarks on the runs, and where the table comes from."""

    rows: list[Row]
    remarks: list[str]
    commit: str
    summary: list[Summary] = field(default_factory=list)
    made: str = field(default_factory=now)

    @property
    def main(self) -> list[Row]:
        """Select the first view with judged cells of each run."""
        judged = (row for row in self.rows if row.judged)
        return list({(row.experiment, row.run): row for row in reversed([*judged])}.values())[::-1]

    @property
    def answer(self) -> list[str]:
        """Answer the question in one or two sentences, from the first view of each run."""
        rows = self.main
        if not rows:
            return ["No answer: no cell of these runs is judged."]
        judged, found = (sum(getattr(row, name) for row in rows) for name in ("judged", "two_stage"))
        by_share = sorted(rows, key=lambda row: -row.two_stage / row.judged)
        word = "No" if not found else "Yes" if found >= SURE * judged else "In part"
        if word == "Yes" and by_share[-1].two_stage < SURE * by_share[-1].judged:
            word = "In part"
        text = (
            f"{word}: by the first view of each run training is two-stage in {found} of "
            f"{counted(judged, 'judged cell')}"
        )
        ends = [f"{row.two_stage} of {row.judged} in {row.run} ({row.view})" for row in by_share]
        text += (
            f", from {ends[0]} to {ends[-1]}." if len(rows) > 1 else f" of {rows[0].run} ({rows[0].view})."
        )
        named = [(remover, row) for row in rows for remover in removers(row.settings)[:1]]
        named.sort(key=lambda pair: -pair[0].removed)
        parts = [f"{pairs_text(own)} in {row.run}" for own, row in named[:MOST_NAMED]]
        return [text, *([f"What removes it, all else equal: {', '.join(parts)}."] if parts else [])]

    @property
    def origin(self) -> str:
        """Say which code made the table, and when."""
        return origin(self.commit, self.made)


def make_general(folders: Sequence[str | Path], commit: str = "", say: Say = lambda text: None) -> General:
    """Collect the rows of these run folders; `commit` is that of the code that makes the table."""
    rows: list[Row] = []
    summary: list[Summary] = []
    remarks: list[str] = []
    silent: list[str] = []
    for folder in map(Path, folders):
        say(f"{folder} ...")
        run = load(folder)
        found = find_page(run)
        if not found.page.staged:
            silent.append(str(folder))
            remarks += [f"{folder}: {found.remark}"] if found.remark else []
            continue
        try:
            own = scored(folder, run, found)
        except Exception as error:  # of a user's page, say: the other runs are shown all the same
            remarks.append(f"{folder}: not scored: {explain('score', error)}.")
            continue
        made, sentences = rows_of(own)
        summary.append(summary_of(own, made))
        rows += [row for row in made if row.judged]
        empty = [f"{row.view} ({texts(row)['not_judged']})" for row in made if not row.judged]
        remarks += [*own.remarks, *sentences]
        remarks += [f"{folder}: no cell is judged by {'; '.join(empty)}."] if empty else []
    if silent:
        remarks.append(f"Pages without a view of two stages: {', '.join(silent)}.")
    order = list(dict.fromkeys(each.experiment for each in summary))
    for each in (rows, summary):
        each.sort(key=lambda own: order.index(own.experiment))
    return General(rows, remarks, commit, summary)


def rows_of(own: Scored) -> tuple[list[Row], list[str]]:
    """Make the rows of one run, one per view that its scores have; and say which could not be made."""
    rows, remarks = [], []
    for view in own.found.page.staged:
        try:
            rows += [row] if (row := row_of(own, view)) else []
        except Exception as error:
            remarks.append(f"{own.folder}, {view.name}: {explain('its view', error)}.")
    return rows, remarks


def measure_of(view: Staged) -> str:
    """Return the measure of a view: its own, or the first that its name has; empty without one."""
    return view.by or next((name for name in MEASURES if name in view.name), "")


def summary_of(own: Scored, rows: Sequence[Row]) -> Summary:
    """Write what the rows of a run say by each measure, or why they say nothing."""
    made = {row.view: row for row in rows}
    answers = {}
    for measure in MEASURES:
        views = [view.name for view in own.found.page.staged if measure_of(view) == measure]
        texts = [answer_text(made[name], measure) for name in views if name in made]
        answers[measure] = "; ".join(texts) or (NOT_RECORDED if views else NOT_DEFINED)
    return Summary(own.run.experiment, own.name, answers)


def answer_text(row: Row, measure: str) -> str:
    """Write the two-stage cells of a row and the median of Theta, after the rest of its name."""
    words = row.view.replace(measure, "").strip(", ")
    theta = f" (Θ {row.theta:.2f})" if np.isfinite(row.theta) else ""
    count = f"{row.two_stage} of {row.judged}{theta}" if row.judged else NOT_JUDGED
    return f"{words}: {count}" if words else count


def row_of(own: Scored, view: Staged) -> Row | None:
    """Count the cells of a run in one view, and compare those that differ in one setting.

    None if the scores have no classes of this view.
    """
    page = own.found.page
    if view.by and view.by not in MEASURES:
        raise UserError(f"it is by {view.by!r}; allowed: {', '.join(MEASURES)}")
    unknown = {*view.two_stage, *view.not_judged} - {*page.classes}
    if page.classes and unknown:
        allowed = ", ".join(page.classes)
        raise UserError(
            f"it names the class {min(unknown)!r}, which the page does not have; allowed: {allowed}"
        )
    select = view.rows or page.of_trials
    rows = select(own.scores) if select else own.scores
    if view.column not in rows or not rows[view.column].notna().to_numpy().any():
        return None
    trials, settings = scored_trials(own.run, rows, page)
    names = [name for name in settings if name not in SEEDS] + [view.unit] * bool(view.unit)
    cells, state, theta = answers(trials, names, view, [*page.classes])
    judged, is_two_stage = state > NO_ANSWER, state == TWO_STAGE
    thetas = theta[judged & np.isfinite(theta)]
    size = cells["trials"].to_numpy()
    classes: Any = cells["class"]
    compared = compare_settings(cells, state, names)
    weight = size * judged if size.max(initial=0) > 1 else np.zeros(len(cells))
    return Row(
        *(own.run.experiment, own.name, view.name, view.words),
        *(len(cells), int(judged.sum()), int(is_two_stage.sum())),
        others={str(name): int(n) for name, n in classes[state == ANOTHER].value_counts().items()},
        not_judged={str(name): int(n) for name, n in classes[~judged].value_counts().items()},
        trials=len(trials),
        most_trials=int(size.max(initial=0)),
        theta=float(np.median(thetas)) if len(thetas) else np.nan,
        theta_lowest=float(thetas.min()) if len(thetas) else np.nan,
        theta_highest=float(thetas.max()) if len(thetas) else np.nan,
        agreement=float(np.average(cells["agreement"], weights=weight)) if weight.any() else np.nan,
        removes=removal(compared, int(is_two_stage.sum()), int(judged.sum())),
        settings=compared,
        commit=own.commit,
        page=own.page,
        dots=[
            (float(value), bool(is_own))
            for value, is_own in zip(theta[judged], is_two_stage[judged], strict=True)
            if np.isfinite(value)
        ],
    )


def answers(
    trials: pd.DataFrame, names: Sequence[str], view: Staged, classes: Sequence[str]
) -> tuple[pd.DataFrame, Array, Array]:
    """Pool trials to cells with equal `names`; return the cells, the answer of each and its median Theta.

    In a tie between classes the first of the page wins; where the page has none, one that counts.
    """
    number, cells = distinct(trials, names)
    found = trials[view.column].astype(object).fillna(UNSCORED).to_numpy()
    last = {*view.not_judged, UNSCORED, DIVERGED}
    other = [name for name in dict.fromkeys(found) if name not in last]
    kinds = [*dict.fromkeys([*classes, *view.two_stage, *other, *view.not_judged, UNSCORED, DIVERGED])]
    kind, agreement = majority(number, found, kinds)
    state = np.where(np.isin(kind, view.two_stage), TWO_STAGE, ANOTHER)
    state[np.isin(kind, [*last])] = NO_ANSWER
    theta = np.full(len(cells), np.nan)
    if view.theta in trials:
        theta = trials[view.theta].astype(float).groupby(number).median().to_numpy()
    cells = cells.assign(**{"class": kind}, agreement=agreement, trials=np.bincount(number))
    return cells, state, theta


def compare_settings(cells: pd.DataFrame, state: Array, names: Sequence[str]) -> list[Setting]:
    """Count for every setting that varies, and is not fixed by others, the answers at each of its values."""
    ordered = sorted(varying(cells, names), key=lambda name: name in PACE)  # stable
    telling: list[str] = []
    for name in ordered:
        telling += varying(cells, [name], telling)
    found = []
    for name in telling:
        code = cell_of_rows(cells, [name])
        values = cells[name].iloc[np.unique(code, return_index=True)[1]].tolist()
        pairs = pairs_of(cells, state, ordered, name)
        shown = [each for each in telling if each != name and each not in PACE]
        cell_counts, judged, two_stage = (
            np.bincount(code, is_one, len(values)).astype(int)
            for is_one in (state >= NO_ANSWER, state > NO_ANSWER, state == TWO_STAGE)
        )
        found.append(
            Setting(
                name,
                [
                    Value(
                        value,
                        setting_text(name, value),
                        *map(int, (cell_counts[n], judged[n], two_stage[n])),
                        *map(int, (pairs.kept[n], pairs.removed[n], pairs.unanswered[n])),
                        fall=float(pairs.fall[n]),
                        where=common_settings(cells, pairs.has_pair[:, n][pairs.group], shown),
                    )
                    for n, value in enumerate(values)
                ],
            )
        )
    return found


def common_settings(cells: pd.DataFrame, chosen: Array, names: Sequence[str]) -> str:
    """Write the first of these settings that are equal in all chosen cells; empty without any."""
    if not chosen.any():
        return ""
    own = cells.loc[chosen]
    same = [name for name in names if not varying(own, [name])]
    return ", ".join(described(own.iloc[0], same[:MOST_COMMON]))


class Pairs(NamedTuple):
    """Per value of a setting: its pairs with cells that differ in nothing else; see Value."""

    kept: Array
    removed: Array
    unanswered: Array
    fall: Array
    has_pair: Array  # groups of cells that differ in the setting alone x values: are any kept or removed?
    group: Array  # of each cell; one more than the last group: no other cell is in its group


def pairs_of(cells: pd.DataFrame, state: Array, names: Sequence[str], name: str) -> Pairs:
    """Count for each value of a setting its pairs with cells that differ in nothing else of `names`.

    Pairs may differ in the PACE too, unless several cells would then be the same.
    """
    code = cell_of_rows(cells, [name])
    others = [each for each in names if each != name]
    for keys in ([each for each in others if each not in PACE], others):
        group = cell_of_rows(cells, keys)
        if not pd.DataFrame(dict(group=group, code=code)).duplicated().any():
            break
    several, place = np.bincount(group) > 1, np.cumsum(np.bincount(group) > 1) - 1
    group = np.where(several[group], place[group], several.sum())
    table = np.full((several.sum() + 1, code.max() + 1), -1)  # the last row stays empty
    is_paired = group < several.sum()
    table[group[is_paired], code[is_paired]] = state[is_paired]
    two_stage, another, silent = ((table == answer).astype(int) for answer in (TWO_STAGE, ANOTHER, NO_ANSWER))
    judged = two_stage + another

    def pairs(here: Array, there: Array) -> Array:
        """Count the pairs of such a cell with the value and such a cell with another value."""
        return here.T @ there.sum(axis=1) - (here * there).sum(axis=0)

    kept, removed, gained = pairs(two_stage, two_stage), pairs(another, two_stage), pairs(two_stage, another)
    total = pairs(judged, judged)
    return Pairs(
        *(kept, removed, pairs(silent, two_stage)),
        fall=np.where(total > 0, (removed - gained) / np.maximum(total, 1), np.nan),
        has_pair=(judged > 0) & (two_stage.sum(axis=1, keepdims=True) > two_stage),
        group=group,
    )


def removers(settings: Sequence[Setting], least: int = LEAST_PAIRS) -> list[Value]:
    """List the values that remove the stages in most of at least `least` pairs, the largest fall first."""
    values = [value for setting in settings for value in setting.values]
    found = [
        value
        for value in values
        if value.removed > value.kept and value.removed + value.kept >= least and value.fall > 0
    ]
    return sorted(found, key=lambda value: (-value.fall, -value.removed))


def pairs_text(value: Value) -> str:
    """Write a value with the share of its pairs in which it removes the stages."""
    more = f" and {value.unanswered} not judged" if value.unanswered else ""
    where = f", all with {value.where}" if value.where else ""
    return f"{value.words} ({value.removed} of {counted(value.removed + value.kept, 'pair')}{more}{where})"


def removal(settings: Sequence[Setting], two_stage: int, judged: int) -> str:
    """Say what removes the stages, what leaves no answer, and where settings only vary together."""
    if not two_stage:
        return "No judged cell is two-stage." if judged else "No cell is judged."
    values = [value for setting in settings for value in setting.values]
    named = removers(settings)
    weak = sorted((value for value in values if value.removed), key=lambda v: (-v.fall, -v.removed))
    pairs = sum(value.kept + value.removed for value in values)
    if named:
        text = f"{', '.join(map(pairs_text, named[:MOST_NAMED]))}."
    elif weak:
        is_rare = weak[0].removed > weak[0].kept
        text = f"{'Seen in few pairs:' if is_rare else 'Nothing in most pairs; most often'} "
        text += f"{pairs_text(weak[0])}."
    elif pairs:
        text = f"Nothing that varies, in {counted(pairs // 2, 'pair')} of cells."
    else:
        text = "Not known: no two judged cells differ in one setting only."
    lost = [value for value in values if value.unanswered >= LEAST_PAIRS]
    lost = [value for value in lost if value.unanswered > value.kept + value.removed and value not in named]
    lost.sort(key=lambda value: -value.unanswered)
    if lost:
        parts = [
            f"{value.words} ({value.unanswered} of {value.unanswered + value.kept + value.removed})"
            for value in lost[:MOST_NAMED]
        ]
        text += f" Not judged with {', '.join(parts)}."
    apart = [setting for setting in settings if not any(np.isfinite(v.fall) for v in setting.values)]
    apart = [own for own in apart if len(own.values) <= MOST_VALUES and difference(own) >= FAR_APART]
    if apart:
        parts = [shares(setting) for setting in sorted(apart, key=difference, reverse=True)[:MOST_NAMED]]
        text += f" Never varied alone: {'; '.join(parts)}."
    return text


def difference(setting: Setting) -> float:
    """Return the difference between the largest and the smallest share of two-stage cells; 0 without two."""
    found = [value.share for value in setting.values if value.judged]
    return max(found) - min(found) if len(found) > 1 else 0.0


def shares(setting: Setting) -> str:
    """Write the share of two-stage cells at each value of a setting."""
    parts = [f"{value.words} {value.two_stage} of {value.judged}" for value in setting.values if value.judged]
    return first_of(parts)


def draw(rows: Sequence[Row]) -> Picture:
    """Draw Theta of every judged cell, a line per view below the name of its run; counts are at the right."""
    from matplotlib.figure import Figure

    heads = [number for number, row in enumerate(rows) if not number or row.run != rows[number - 1].run]
    places = np.arange(len(rows)) + np.searchsorted(heads, np.arange(len(rows)), side="right")
    with style():
        figure = Figure(figsize=(WIDTH, 0.75 + 0.19 * (len(rows) + len(heads))))
        ax: Any = figure.subplots()
        for number, (place, row) in enumerate(zip(places, rows, strict=True)):
            dots = np.array(row.dots, float).reshape(-1, 2)
            dots = dots[np.linspace(0, len(dots) - 1, min(len(dots), MOST_DOTS)).astype(int)]
            shift = 0.5 * ((0.618 * np.arange(len(dots))) % 1 - 0.5)  # apart, the same in every drawing
            for is_two_stage, colour in ((1, PALETTE[0]), (0, PALETTE[1])):
                own = dots[:, 1] == is_two_stage
                ax.plot(
                    dots[own, 0], place + shift[own], "o", ms=3, mew=0, alpha=0.6, color=colour, clip_on=False
                )
            if np.isfinite(row.theta):
                ax.plot([row.theta] * 2, [place - 0.36, place + 0.36], color="black", lw=1.6, zorder=3)
            ax.text(1.03, place, f"{row.two_stage} of {row.judged}", va="center", fontsize=7.5)
            if number in heads:
                ax.axhline(place - 1.5, color="0.85", lw=0.7)
                ax.text(0.01, place - 1, row.run, va="center", fontsize=7.5, fontweight="bold")
        ax.set_yticks(places, [row.view for row in rows])
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(0, 1), ylim=(places[-1] + 0.6, -0.5), xlabel="Θ of a cell")
        ax.text(1.03, 0, "two-stage", va="center", fontsize=7.5)
        for colour, name in ((PALETTE[0], "two-stage"), (PALETTE[1], "judged, not two-stage")):
            ax.plot([], [], "o", ms=4, mew=0, color=colour, label=name)
        ax.plot([], [], color="black", lw=1.6, label="median")
        figure.legend(loc="outside lower center", ncols=3)
    cut = sum(len(row.dots) > MOST_DOTS for row in rows)
    caption = (
        "Θ of every judged cell (median over its trials) by run and view; at the right the number of "
        "two-stage cells among the judged ones."
    )
    caption += f" Rows with more than {MOST_DOTS} cells show that many ({cut})." if cut else ""
    return Picture(figure, "Θ by run and view", caption)


def setting_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Tabulate the answers at each value of every setting that varies, without those of very many values."""
    found = [
        {
            "run": row.run,
            "view": row.view,
            "setting": label(setting.name),
            "value": written(value.value),
            "two-stage": f"{value.two_stage} of {value.judged}",
            "not judged": value.cells - value.judged,
            "pairs kept": value.kept,
            "pairs removed": value.removed,
            "pairs not judged": value.unanswered,
        }
        for row in rows
        for setting in row.settings
        if len(setting.values) <= MOST_VALUES
        for value in setting.values
    ]
    return pd.DataFrame(found)


def summary_table(summary: Sequence[Summary]) -> pd.DataFrame:
    """Tabulate what each run says by each measure."""
    return pd.DataFrame([{"run": each.run, **each.answers} for each in summary])


def write_general(table: General, path: Path, say: Say = lambda text: None) -> list[Path]:
    """Write the page to this path, Markdown and the figure beside it; return the paths."""
    picture = draw(table.rows) if table.rows else None
    files = picture.save(path.with_suffix("")) if picture else []
    drawn = html.figure(picture, files, path.parent) if picture else ""
    if picture:
        picture.close()
    return [
        write_file(path, to_html(table, path.parent, drawn)),
        write_file(path.with_suffix(".md"), to_markdown(table, path)),
        *files,
    ]


def to_html(table: General, base: Path, drawn: str) -> str:
    """Write the page: answer, figure, table, how to read it, remarks; links are relative to `base`."""
    groups = [(name, [*own]) for name, own in groupby(table.rows, lambda row: row.experiment)]
    lead = html.items(table.answer, "answer")
    if table.summary:
        lead += html.table(summary_table(table.summary), "Two-stage cells by what is looked at.")
    if table.rows:
        linked = [(name, [(texts(row), relative(row.page, base)) for row in own]) for name, own in groups]
        lead += drawn + html.general_table(HEAD, linked) + html.items(READING)
        by_setting = setting_table(table.rows)
        lead += html.table(by_setting, "Every setting that varies.") if len(by_setting) else ""
    lead += html.items(table.remarks) if table.remarks else ""
    return html.page(TITLE, table.origin, lead, [])


def texts(row: Row) -> dict[str, str]:
    """Write the columns of a row."""
    others, not_judged = (
        ", ".join(f"{count} {name}" for name, count in found.items())
        for found in (row.others, row.not_judged)
    )
    out = row.cells - row.judged
    theta = f"{row.theta:.2f} ({row.theta_lowest:.2f} to {row.theta_highest:.2f})"
    return dict(
        run=row.run,
        view=row.view,
        words=row.words,
        count=f"{row.two_stage} of {row.judged}",
        others=others,
        not_judged=f"{out} of {counted(row.cells, 'cell')} not judged: {not_judged}" if out else "",
        theta=theta if np.isfinite(row.theta) else "-",
        agreement=f"{row.agreement:.0%}" if np.isfinite(row.agreement) else "-",
        removes=row.removes,
    )


def to_markdown(table: General, path: Path) -> str:
    """Write the same as Markdown."""
    lines = []
    for row in table.rows:
        own, to = texts(row), relative(row.page, path.parent)
        name = f"[{markdown_cell(own['run'])}]({to})" if to else markdown_cell(own["run"])
        beside = "; ".join(filter(None, (own["others"], own["not_judged"])))
        count = f"{own['count']} ({beside})" if beside else own["count"]
        cells = (count, own["theta"], own["agreement"], own["removes"])
        lines.append([f"{name}: {markdown_cell(own['view'])}", *map(markdown_cell, cells)])
    body = "\n".join(f"| {' | '.join(line)} |" for line in [list(HEAD), ["---"] * len(HEAD), *lines])
    first = f"{markdown_table(summary_table(table.summary))}\n\n" if table.summary else ""
    figure = f"![Θ of every judged cell by run and view]({path.with_suffix('.svg').name})\n\n"
    reading = "".join(f"- {text}\n" for text in (*READING, *map(markdown_cell, table.remarks)))
    by_setting = setting_table(table.rows) if table.rows else pd.DataFrame()
    below = f"\n## By setting\n\n{markdown_table(by_setting)}" if len(by_setting) else ""
    head = f"# {TITLE}\n\n{markdown_cell(' '.join(table.answer))} {table.origin}\n\n"
    return f"{head}{first}{figure * bool(lines)}{body}\n\n{reading}{below}"
