"""Draw the square of syntax and topics, trainings of clear cells, changed models, and the ratio of steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator

from topicjax.errors import UserError, counted
from topicjax.store.reader import Run

from ..figures.any_run import DASHES, PANELS, coloured, is_ok, left_out, rows_of
from ..figures.step_panels import (
    ACROSS,
    ENDS,
    HALF,
    QUARTILES,
    is_cut_short,
    panel_grid,
    shared_legend,
    step_axis,
    thinned,
    title_lines,
)
from ..frames import Frame, bands, cell_of_rows, column
from ..pictures import PALETTE, Picture, described, evenly, label, sentences, setting_text, style
from ..topic_model import PART_COLOURS
from .scores import (
    CLASSES,
    KEYS,
    PARTS,
    RATIO,
    cell_settings,
    line,
    prepared,
    strongest,
    syntax_cells,
)
from .tables import CHANGED, changed_progress

BLUE, ORANGE, GREEN, RED, SKY, PINK, _ = PALETTE
MOST_SINGLE = 8  # lines in a panel of the square; with more, seeds are drawn as their median
MOST_LOOKS = 4  # line styles in a panel
MOST_EXAMPLES = 4
SHARES = {0.2: 2.5, 0.5: 4.0, 0.8: 5.5}  # of the steps: size of the dot in the square, in points
P_SYNTAX, P_TOPICS = "$P$ of syntax", "$P$ of topics"
SYNTAX_LOOK: dict[str, Any] = dict(color=BLUE)
TOPIC_LOOK: dict[str, Any] = dict(color=RED)
DOTTED, DASHED = (0, (1, 1.2)), (0, (3, 2))
NORMS = ("norm_v", "norm_k", "norm_q", "norm_bias")
FARTHER = ("bias_left_2", "bias_right_2")
Looks = dict[str, tuple[str, dict[str, Any]]]  # column: its name in the legend, and how it is drawn
REFERENCES: Looks = {  # lines of the held-out loss, from the highest to the lowest
    "held_out_unigram": ("unigram line", dict(color="0.55", ls=DOTTED)),
    "held_out_topics": ("topics line", dict(color=RED, ls=DOTTED)),
    "held_out_within_1": ("within 1", dict(color=SKY, ls=(0, (1, 3)))),
    "held_out_within_2": ("within 2", dict(color=GREEN, ls=(0, (1, 3)))),
    "held_out_syntax": ("syntax line", dict(color=BLUE, ls=DOTTED)),
    "held_out_both": ("line of both", dict(color="black", ls=DOTTED)),
}
ROWS: dict[str, Looks] = {  # panels of the examples from top to bottom
    "held-out loss": {"eval_loss": ("loss", dict(color="black"))},
    "progress": {"p_syntax": (P_SYNTAX, SYNTAX_LOOK), "p_topic": (P_TOPICS, TOPIC_LOOK)},
    "norm": {
        "norm_v": (r"$\|W^V\|_F$", dict(color=PART_COLOURS["norm_v"])),
        "norm_k": (r"$\|W^K\|_F$", dict(color=PART_COLOURS["norm_k"])),
        "norm_q": (r"$\|W^Q\|_F$", dict(color=PART_COLOURS["norm_q"], ls=DASHED)),
        "norm_bias": ("norm of the bias", dict(color=PINK)),
    },
    "value map": {
        "v_class": ("V: next or previous class", SYNTAX_LOOK),
        "v_topic": ("V: same - other topic", TOPIC_LOOK),
    },
    "attention score": {
        "bias_left_1": ("bias at -1", dict(color=BLUE)),
        "bias_right_1": ("bias at +1", dict(color=BLUE, ls=DASHED)),
        "bias_left_2": ("bias at -2", dict(color=SKY)),
        "bias_right_2": ("bias at +2", dict(color=SKY, ls=DASHED)),
        "content_score": ("content - function words", dict(color=RED)),
    },
}
HEIGHTS = {"held-out loss": 1.35}
CHANGED_LOOKS = {  # how a changed model is drawn
    "trained": dict(color="black"),
    "uniform": dict(color=ORANGE),
    "positional": dict(color=BLUE),
    "content": dict(color=RED),
    "shuffled": dict(color=GREEN, ls=DASHED),
    "redrawn": dict(color=PINK, ls=DASHED),
}
LOWEST = -0.5  # progress drawn below 0: changed models can be far worse than the unigram predictor


def square(run: Run, scores: Frame) -> Picture:
    """Draw trainings as curves in the square of P_syntax and P_topic, a panel per alpha."""
    run = prepared(run)
    names, ok = cell_settings(run), is_ok(run)
    if not ok.any():
        raise UserError("every trial diverged")
    panel = next((name for name in ("alpha", *names) if name in names), None)
    colour, dashes = looks_of(run, [name for name in names if name != panel])
    panels = panel_values(run, panel, ok)
    cell = cell_of_rows(run.trials, names)
    place = np.zeros(len(ok), int) if panel is None else np.searchsorted(panels, run.trials[panel])
    own = rows_of(run, run.trajectories, ok)
    frame = thinned(own, ["p_syntax", "p_topic"])
    busiest = max(np.bincount(place[ok]))
    is_single = busiest <= MOST_SINGLE
    group = np.arange(len(ok)) if is_single else cell
    curves = medians(frame, group, ["p_syntax", "p_topic"])
    shown = panels[evenly(len(panels), PANELS)] if panel else panels
    titles = [[setting_text(panel, value)] if panel else [""] for value in shown]
    with style():
        figure, columns = panel_grid(titles, ACROSS, {P_TOPICS: 2.05})
        every = [ax for (ax,) in columns]
        for ax in every:
            ax.plot([0, 1], [0, 1], color="0.7", lw=0.8, ls=DOTTED, zorder=0)
            ax.set(xlim=(-0.04, 1.08), ylim=(-0.04, 1.08), aspect="equal", xlabel=P_SYNTAX)
            ax.set_xticks([0, 0.5, 1])
            ax.set_yticks([0, 0.5, 1])
        values = run.trials.loc[ok, colour] if colour else None
        first: Any = pd.Series(np.arange(len(ok))[ok]).groupby(group[ok]).first()
        drawn = first.index if values is None else run.trials[colour].iloc[first]
        shades = dict(zip(first.index, coloured(figure, every, values, drawn), strict=True))
        styles = line_styles(run, dashes)
        for value, ax in zip(shown, every, strict=True):
            inside = first if panel is None else first[(run.trials[panel].iloc[first] == value).to_numpy()]
            for number, row in inside.items():
                ls = styles.get(run.trials[dashes].iloc[row], "-") if dashes else "-"
                draw_path(ax, curves.loc[curves["group"] == number], shades[number], ls)
        handles = [
            Line2D([], [], ls="", marker="o", ms=size, color="0.4", label=f"{share:.0%} of the steps")
            for share, size in SHARES.items()
        ]
        handles += [
            Line2D([], [], color="0.4", ls=ls, label=setting_text(dashes or "", value))
            for value, ls in styles.items()
        ]
        shared_legend(figure, columns, more=handles)
    others = [label(name) for name in names if name not in (panel, colour, dashes)]
    parts = {
        "Every record of a training is a point: how much of what can be learned about the classes of words "
        "(syntax) and about topics has been learned.": True,
        "Below the diagonal syntax is ahead, above it topics.": True,
        "Each line is one trial.": is_single,
        "Each line is the median over the seeds of a cell.": not is_single,
        f"Lines of one colour{' and style' * bool(dashes)} differ in {', '.join(others)}.": others,
        f"Shown: {len(shown)} of {len(panels)} values of {label(panel)}.": len(shown) < len(panels),
        left_out(run): not ok.all(),
    }
    alt = f"P of topics against P of syntax, with a curve per training, {counted(len(shown), 'panel')}."
    return Picture(figure, "Which is learned first: syntax or topics", sentences(parts), alt)


def looks_of(run: Run, names: Sequence[str]) -> tuple[str | None, str | None]:
    """Choose the setting that colours lines, and one with few values for their style."""
    colour = next((name for name in ("bias_gain", *names) if name in names), None)
    trials: Frame = run.trials
    few = [name for name in names if name != colour and trials[name].nunique(dropna=False) <= MOST_LOOKS]
    words = [name for name in few if isinstance(trials[name].iloc[0], str)]
    return colour, next(iter([*words, *few]), None)


def line_styles(run: Run, name: str | None) -> dict[Any, Any]:
    """Give each value of a setting a line style."""
    return dict(zip(sorted(run.trials[name].unique()), DASHES, strict=False)) if name else {}


def panel_values(run: Run, panel: str | None, ok: np.ndarray) -> Any:
    """List the values of the setting that separates panels, among trials that did not diverge."""
    return np.array([0]) if panel is None else np.unique(run.trials.loc[ok, panel].to_numpy())


def medians(frame: Frame, group: np.ndarray, names: Sequence[str]) -> Frame:
    """Take the median of each column over the trials of a group at each step; a group number per row."""
    own = frame.assign(group=group[frame["trial_id"].to_numpy(int)])
    return own.groupby(["group", "step"])[[*names]].median().reset_index()


def draw_path(ax: Axes, own: Frame, colour: Any, ls: Any) -> None:
    """Draw one training in the square, with dots at shares of its steps."""
    x, y, step = (column(own, name) for name in ("p_syntax", "p_topic", "step"))
    ax.plot(x, y, color=colour, ls=ls, lw=1.0)
    for share, size in SHARES.items():
        at = np.abs(step - share * step[-1]).argmin()
        ax.plot(x[at], y[at], "o", color=colour, ms=size, mew=0)


def example_cells(cells: Frame, most: int = MOST_EXAMPLES) -> Frame:
    """Choose cells: one of each class, then a second one, those with the clearest order first."""
    known = cells.loc[cells["side"] != ""] if (cells["side"] != "").any() else cells
    known = known.loc[known["diverged"] < known["trials"]]
    order = known.sort_values(["agreement", "order"], ascending=False, kind="stable")
    turn = order.groupby("class").cumcount()
    rank = order["class"].map(CLASSES.index)
    return order.iloc[np.lexsort((rank, turn))[:most]]


def examples(run: Run, scores: Frame) -> list[Picture]:
    """Draw losses, progress, norms, value maps and scores of some cells over the steps."""
    run = prepared(run)
    chosen, cells = chosen_cells(run, scores)
    frame = run.trajectories.merge(layers_together(run), on=KEYS, how="left")
    rows = {
        name: own
        for name, looks in ROWS.items()
        if (own := {c: look for c, look in looks.items() if c in frame and np.isfinite(frame[c]).any()})
    }
    heights = {name: HEIGHTS.get(name, 1.0) for name in rows}
    pictures = []
    for at in range(0, len(chosen), ACROSS):
        part = chosen.iloc[at : at + ACROSS]
        with style():
            figure, columns = panel_grid(titles_of(run, part), ACROSS, heights)
            cut_short = False
            for (_, cell), axes in zip(part.iterrows(), columns, strict=True):
                mine = rows_of(run, frame, trials_of(run, cell))
                for ax, looks in zip(axes, rows.values(), strict=True):
                    cut_short |= draw_columns(ax, mine, looks)
                    mark_half_way(ax, cell)
                draw_lines(axes[0], mean_lines(run, cell))
            for row in zip(*columns, strict=True):
                share_height(row)
            used = {c: look for c, look in REFERENCES.items() if np.isfinite(line(run, c)).any()}
            shared_legend(figure, columns, more=[*handles_of(used), *quartiles_of(part)])
        remarks = {
            "Medians over seeds.": (part["trials"] > 1).any(),
            "Vertical lines: P of syntax and P of topics are half way.": True,
            "Norms are over all layers; of the value map, the bias and the score of content words the "
            "largest of all layers and heads is drawn.": "attention score" in rows,
            shown_words(chosen, cells): not at,
            ENDS: cut_short,
        }
        alt = "Held-out loss, progress, norms, value maps and attention scores over the steps."
        pictures.append(Picture(figure, "Trainings over the steps", sentences(remarks), alt))
    return pictures


def changed(run: Run, scores: Frame) -> list[Picture]:
    """Draw what is left of syntax and topics in some cells when scores or words are changed."""
    run = prepared(run)
    chosen, cells = chosen_cells(run, scores)
    frame = changed_progress(run)
    frame = frame.assign(trial_id=run.trials["trial_id"].to_numpy()[frame["trial"].to_numpy(int)])
    rows = {
        text: {f"{part}_{name}": (name, CHANGED_LOOKS[name]) for name in CHANGED.values()}
        for part, text in zip(PARTS, (P_SYNTAX, P_TOPICS), strict=True)
    }
    rows = {text: {c: look for c, look in own.items() if c in frame} for text, own in rows.items()}
    pictures = []
    for at in range(0, len(chosen), ACROSS):
        part = chosen.iloc[at : at + ACROSS]
        with style():
            figure, columns = panel_grid(titles_of(run, part), ACROSS, dict.fromkeys(rows, 1.5))
            for (_, cell), axes in zip(part.iterrows(), columns, strict=True):
                mine = rows_of(run, frame, trials_of(run, cell))
                for ax, looks in zip(axes, rows.values(), strict=True):
                    draw_columns(ax, mine, looks)
                    for height in (0, 1):
                        ax.axhline(height, color="0.6", lw=0.8, ls=DOTTED, zorder=0)
                    low, high = ax.get_ylim()
                    ax.set_ylim(max(low, LOWEST), max(high, 1.05))
            shared_legend(figure, columns, more=quartiles_of(part))
        remarks = {
            "P of syntax and of topics when attention or the visible words are changed; 0: the unigram line, "
            "1: the best predictor of that part.": True,
            f"The panels end at {LOWEST:g}; a changed model can be worse.": True,
            shown_words(chosen, cells): not at,
        }
        alt = "P of syntax and of topics over the steps, as trained and with attention or words changed."
        pictures.append(Picture(figure, "What the model uses", sentences(remarks), alt))
    return pictures


def order_ratio(run: Run, scores: Frame) -> list[Picture]:
    """Draw the half-way step of topics divided by that of syntax, against alpha and against bias gain."""
    names = cell_settings(run)
    axes = [name for name in ("alpha", "bias_gain") if name in names]
    if not axes:  # some other setting that is a number
        numbers = [name for name in names if not isinstance(run.trials[name].iloc[0], str)]
        axes = sorted(numbers, key=lambda name: -run.trials[name].nunique())[:1]
    return [ratio_figure(run, scores, axis, names) for axis in axes]


def ratio_figure(run: Run, scores: Frame, axis: str, names: Sequence[str]) -> Picture:
    """Draw the ratio against one setting: a dot per trial, lines of equal other settings through medians."""
    others = [name for name in names if name != axis]
    colour = next((name for name in ("bias_gain", "alpha", *others) if name in others), None)
    apart = [name for name in others if name != colour]
    trials: Frame = scores.loc[np.isfinite(bounded_ratio(scores))].copy()
    trials["bounded"], trials["is_bound"] = bounded_ratio(trials), trials["ratio"].isna()
    panel = cell_of_rows(trials, apart)
    values_in = trials.groupby(panel)[axis].nunique()
    found = values_in.index[values_in > 1] if (values_in > 1).any() else values_in.index  # curves, not dots
    shown = found[evenly(len(found), PANELS)]
    drawn = trials.loc[np.isin(panel, shown)]
    titles = [title_lines(described(trials.loc[panel == n].iloc[0], apart), ACROSS) or [""] for n in shown]
    with style():
        figure, columns = panel_grid(titles, ACROSS, {"half-way step,\ntopics / syntax": 1.7})
        every = [ax for (ax,) in columns]
        values = trials[colour] if colour else None
        lines = np.unique(trials[colour]) if colour else np.array([0])
        shades = dict(zip(lines.tolist(), coloured(figure, every, values, lines), strict=True))
        for number, ax in zip(shown, every, strict=True):
            ax.axhspan(1 / RATIO, RATIO, color="0.92", lw=0, zorder=0)
            ax.axhline(1, color="0.6", lw=0.8, ls=DOTTED, zorder=0)
            for value, shade in shades.items():
                inside = panel == number
                mine = trials.loc[inside & (trials[colour] == value) if colour else inside]
                draw_ratio(ax, mine, axis, shade)
            ax.set(xscale="log" if trials[axis].gt(0).all() else "linear", yscale="log", xlabel=label(axis))
            ax.minorticks_off()
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ticks = np.unique(trials[axis])
            ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
        share_height(every)
        handles = [
            Patch(fc="0.92", lw=0, label=f"together: within a factor {RATIO:g}"),
            *(bound_handle(is_late) for is_late in (True, False) if has_bound(drawn, is_late)),
        ]
        shared_legend(figure, columns, more=handles)
    never = len(scores) - len(trials)
    parts = {
        "Above 1 syntax is half way first, below 1 topics; a dot per trial, lines through the medians of the "
        "seeds.": True,
        "Triangles are bounds: one of the two is not half way by the last step.": drawn["is_bound"].any(),
        f"Settings with one value of {label(axis)} are left out.": len(found) < len(values_in),
        f"Not drawn: {counted(never, 'trial')} in which neither is half way, or that diverged.": never,
        f"Shown: {len(shown)} of {len(found)} panels.": len(shown) < len(found),
    }
    alt = f"Half-way step of topics divided by that of syntax against {label(axis)}."
    return Picture(figure, f"Half-way steps against {label(axis)}", sentences(parts), alt)


def bounded_ratio(scores: Frame) -> np.ndarray:
    """Divide the half-way steps; the last step stands for one that is not reached, NaN if neither is."""
    syntax, topic, last = (column(scores, name) for name in ("syntax_50", "topic_50", "last_step"))
    known = np.isfinite(syntax) | np.isfinite(topic)
    known &= (scores["class"] != "unscored").to_numpy()
    ratio = np.where(np.isnan(topic), last, topic) / np.where(np.isnan(syntax), last, syntax)
    return np.where(known, ratio, np.nan)


def draw_ratio(ax: Axes, own: Frame, axis: str, shade: Any) -> None:
    """Draw the trials of one line as dots, bounds as triangles, and a line through the medians."""
    if own.empty:
        return
    middle = own.groupby(axis)["bounded"].median()
    ax.plot(middle.index, middle, color=shade, lw=1)
    late = own["bounded"] > 1
    for marker, mask in (
        ("o", ~own["is_bound"]),
        ("^", own["is_bound"] & late),
        ("v", own["is_bound"] & ~late),
    ):
        mine = own.loc[mask]
        ax.plot(
            mine[axis],
            mine["bounded"],
            marker,
            color=shade,
            ms=3.5,
            mew=0.6,
            mfc=shade if marker == "o" else "white",
        )


def has_bound(trials: Frame, is_late: bool) -> bool:
    """Tell whether topics (or else syntax) are not half way in any of these trials."""
    return bool((trials["is_bound"] & ((trials["bounded"] > 1) == is_late)).any())


def bound_handle(is_late: bool) -> Line2D:
    """Make the legend entry of a bound."""
    what = "topics are never half way: at least" if is_late else "syntax is never half way: at most"
    return Line2D([], [], ls="", marker="^" if is_late else "v", color="0.4", mfc="white", ms=4, label=what)


def chosen_cells(run: Run, scores: Frame) -> tuple[Frame, Frame]:
    """Return the cells to draw over the steps, and all cells."""
    cells = syntax_cells(run, scores)
    chosen = example_cells(cells)
    if chosen.empty:
        raise UserError("every trial diverged")
    return chosen, cells


def shown_words(chosen: Frame, cells: Frame) -> str:
    """Say which cells are drawn."""
    if len(chosen) == len(cells):
        return ""
    return f"Shown: {len(chosen)} of {counted(len(cells), 'cell')}, the clearest of each class first."


def titles_of(run: Run, cells: Frame) -> list[list[str]]:
    """Write the settings and the class of each cell, split into lines."""
    names = cell_settings(run)
    rows = cells.to_dict("records")
    texts = [described(row, names) or ["all trials"] for row in rows]
    return [[*title_lines(text, ACROSS), row["class"]] for text, row in zip(texts, rows, strict=True)]


def trials_of(run: Run, cell: Any) -> np.ndarray:
    """Mask the trials of a cell that did not diverge."""
    return is_ok(run) & (cell_of_rows(run.trials, cell_settings(run)) == cell["cell"])


def layers_together(run: Run) -> Frame:
    """Combine layers and heads: norms over all layers' weights, the largest of what is scored."""
    details: Frame = run.details
    norms = [name for name in NORMS if name in details]
    more = [name for name in FARTHER if name in details]
    table = strongest(run).drop(columns="neighbour")
    if len(details):
        layer = details.groupby([*KEYS, *(["layer"] if "layer" in details else [])])[norms].first() ** 2
        table = table.merge((layer.groupby(KEYS).sum(min_count=1) ** 0.5).reset_index(), on=KEYS)
        table = table.merge(details.groupby(KEYS)[more].max().reset_index(), on=KEYS)
    return table


def draw_columns(ax: Axes, own: Frame, looks: Mapping[str, tuple[str, dict[str, Any]]]) -> bool:
    """Draw medians and quartiles over the trials of each column; return whether any line ends early."""
    frame = thinned(own, list(looks))
    cut_short = False
    for name, (text, look) in looks.items():
        band = bands(frame, name, least=HALF)
        cut_short |= is_cut_short(band)
        band = band.loc[band["q50"].notna()]
        ax.plot(band["step"], band["q50"], label=text, lw=1.1, **look)
        ax.fill_between(band["step"], band["q25"], band["q75"], color=look["color"], alpha=0.15, lw=0)
    step_axis(ax, own["step"])
    return cut_short


def mean_lines(run: Run, cell: Any) -> dict[str, float]:
    """Average the reference losses over the trials of a cell; all seeds have the same held-out documents."""
    own = trials_of(run, cell)
    return {name: float(np.mean(line(run, name)[own])) for name in REFERENCES}


def draw_lines(ax: Axes, lines: Mapping[str, float]) -> None:
    """Draw the reference losses."""
    for name, height in lines.items():
        if np.isfinite(height):
            ax.axhline(height, lw=0.9, zorder=0, **REFERENCES[name][1])


def mark_half_way(ax: Axes, cell: Any) -> None:
    """Mark the half-way steps of syntax and of topics."""
    for part, look in (("syntax", SYNTAX_LOOK), ("topic", TOPIC_LOOK)):
        if np.isfinite(cell[f"{part}_50"]):
            ax.axvline(cell[f"{part}_50"], lw=0.7, alpha=0.6, zorder=0, **look)


def share_height(axes: Sequence[Axes]) -> None:
    """Give panels the same vertical axis."""
    limits = np.array([ax.get_ylim() for ax in axes])
    for ax in axes:
        ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())


def handles_of(looks: Looks) -> list[Line2D]:
    """Make the legend entries of some lines."""
    return [Line2D([], [], lw=0.9, label=text, **look) for text, look in looks.values()]


def quartiles_of(cells: Frame) -> list[Any]:
    """Explain bands if any cell has several trials."""
    return [QUARTILES] if (cells["trials"] > 1).any() else []


def has_ratios(run: Run, scores: Frame) -> bool:
    """Tell whether anything is half way in a run of several cells."""
    return bool(cell_settings(run)) and bool(np.isfinite(bounded_ratio(scores)).any())


def has_scored(run: Run, scores: Frame) -> bool:
    """Tell whether any trial did not diverge."""
    return bool(is_ok(run).any())
