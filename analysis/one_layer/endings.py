"""Compare final held-out losses with the limit lines, and joint training with uniform attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import UserError, counted
from topicjax.settings import SEEDS
from topicjax.stages import Records
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS, units

from ..frames import column, varying
from ..pictures import WIDTH, Picture, described, evenly, label, sentences, style
from ..topic_model import MAIN_SETTINGS, SETTINGS, STAGE_LINES, aligned, settings_in
from .loss_curves import DOCUMENTS
from .scores import trains_both

QUARTILES = {"": 0.5, "_q25": 0.25, "_q75": 0.75}  # suffixes of the columns of a median and its quartiles
CONVERGED = 0.95  # share of the way to the stage-1 line
SETTLED = 0.01  # largest share of that way that the last tenth of the steps may add
LINES = ("line_stage1", "held_out_stage1", "line_stage2", "held_out_stage2", "line_bayes")
COLOURS = {"uniform": "#E69F00", "joint": "#0072B2"}
MARKS = {"uniform": "D", "joint": "o"}
OFFSETS = {"uniform": 0.17, "joint": -0.17}  # vertical offset from the middle of a row, in rows
MOST_ROWS = 24
LIMITS = {"stage1": ("stage 1", "-"), "stage2": ("stage 2", (0, (3, 1.5))), "bayes": ("Bayes", (0, (1, 1)))}
ROW = 0.34  # height in inches


def endings(run: Run) -> pd.DataFrame:
    """Tabulate for each trial its settings and limit lines, its final loss, and how far it has come.

    loss is the mean over the last tenth of the steps, on the held-out documents.  way is the share of the way
    from the uniform prediction to L1* that it has gone, and falls the part of it since the tenth before.
    gain = L1* - L2*.  All are NaN for trials that are not finite.  The way starts at the uniform prediction,
    not at L(0): common default weights start worse than that, and unlearning would look like learning.  L(0)
    replaces an unknown line.
    """
    run = aligned(run)
    trials, loss = run.trials, column(run.trajectories, "eval_loss")
    records = Records.of(run.trajectories["step"].to_numpy())
    last, last_fifth = records.last(CUTS.last), records.last(2 * CUTS.last)
    # A trial with a single record in its last fifth has no tenth before: it is compared with itself.
    is_single = records.spread(np.add.reduceat(last_fifth.astype(int), records.start) < 2)
    tenth_before = last_fifth & ~last | is_single
    # Sparse records may leave that tenth empty: then the record before the last tenth stands for it.
    is_empty = records.spread(~records.any(tenth_before))
    tenth_before |= is_empty & (np.arange(len(loss)) == records.spread(records.first(last)) - 1)
    end, before = records.mean(loss, last), records.mean(loss, tenth_before)
    lines = {name: column(trials, place) for name, place in STAGE_LINES.items() if place in trials}
    uniform = column(trials, "line_uniform")
    start = np.where(np.isfinite(uniform), uniform, loss[records.start])
    drop, gain = units(start, lines, CUTS.line_errors)
    is_bad = records.any(~np.isfinite(loss)) | (trials["status"] == "diverged").to_numpy()
    found = dict(loss=end, way=(start - end) / drop, falls=(before - end) / drop, gain=gain)
    kept = trials[["trial_id", *settings_in(trials), *lines_in(trials)]]
    return kept.assign(**{name: np.where(is_bad, np.nan, values) for name, values in found.items()})


def lines_in(frame: pd.DataFrame) -> list[str]:
    """List the limit lines that a table has as columns."""
    return [name for name in LINES if name in frame]


def joint_gains(run: Run) -> pd.DataFrame:
    """Pair the trials that differ only in attention, trained or uniform: one row per pair.

    joint and uniform are their final losses, saved = uniform - joint, and share is saved divided by what
    topical attention can gain.
    """
    ends: Any = endings(run)
    only_if_trained = ("attention", "mask_query_loss")
    keys = [name for name in settings_in(ends) if name not in only_if_trained]
    both = ends.loc[trains_both(ends)].rename(columns={"loss": "joint"})
    uniform = ends.loc[ends["attention"] == "uniform", [*keys, "loss"]]
    pairs = both.merge(uniform.rename(columns={"loss": "uniform"}), on=keys)
    saved = pairs["uniform"] - pairs["joint"]
    return pairs.assign(saved=saved, share=saved / pairs["gain"])


def pair_settings(pairs: pd.DataFrame) -> list[str]:
    """List the settings that distinguish pairs: objective, optimizer and all that vary except the seed."""
    others = [name for name in SETTINGS if name not in (*SEEDS, *MAIN_SETTINGS)]
    return [*MAIN_SETTINGS, *varying(pairs, others)]


def quartiles(frame: Any, keys: list[str], names: Sequence[str], known: Sequence[str] = ()) -> pd.DataFrame:
    """Summarise each combination of the keys: n, and the median and quartiles of each column.

    The `known` columns are constant for equal keys; their means are kept.
    """
    groups = frame.groupby(keys, dropna=False, sort=True)
    columns = {"n": groups[names[0]].count()}
    for name in names:
        columns |= {name + end: groups[name].quantile(share) for end, share in QUARTILES.items()}
    return pd.DataFrame(columns | {name: groups[name].mean() for name in known}).reset_index()


def joint_losses(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw the final losses of joint training and of uniform attention with the limit lines, in rows."""
    pairs = joint_gains(run)
    if pairs.empty:
        raise UserError("no two trials differ only in attention; allowed: attention trained and uniform")
    names = [name for name in pair_settings(pairs) if name != "objective"]
    objectives = sorted(pairs["objective"].unique())
    own = [pairs.loc[pairs["objective"] == name] for name in objectives]
    tables = [quartiles(part, names, ["joint", "uniform"], lines_in(part)) for part in own]
    shown = [table.iloc[evenly(len(table), MOST_ROWS)] for table in tables]
    with style():
        figure = Figure((WIDTH, 0.85 + sum(0.6 + ROW * len(table) for table in shown)))
        ratios = [0.4 + ROW * len(table) for table in shown]
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=ratios)[:, 0]
        named = varying(pd.concat(shown), names) or names[:1]
        for ax, table, objective in zip(axes, shown, objectives, strict=True):
            loss_panel(table, ax, named)
            ax.set(title=label(objective), xlabel="final held-out loss")
        figure.legend(handles=handles(pairs), loc="outside lower center", ncols=2)
    hidden = sum(map(len, tables)) - sum(map(len, shown))
    return Picture(
        figure,
        "Joint training against uniform attention",
        caption(pairs, hidden),
        "Final held-out losses of joint training and of uniform attention, "
        f"{counted(sum(map(len, shown)), 'row')}. " + " ".join(gains(pairs)),
    )


def loss_panel(table: pd.DataFrame, ax: Axes, names: list[str]) -> Axes:
    """Draw a row per setting: both losses with their quartiles, and the lines as ticks."""
    places = np.arange(len(table))[::-1]
    for place, row in zip(places, table.to_dict("records"), strict=True):
        for limit, (_, line) in LIMITS.items():
            for name, colour in ((f"line_{limit}", "black"), (f"held_out_{limit}", DOCUMENTS)):
                value = row.get(name, np.nan)
                ax.plot([value, value], [place - 0.42, place + 0.42], color=colour, ls=line, lw=1.1)
    for kind, colour in COLOURS.items():
        middle, low, high = (table[kind + end].to_numpy(float) for end in ("", "_q25", "_q75"))
        spread = np.abs(np.stack([middle - low, high - middle]))
        ax.errorbar(
            middle, places + OFFSETS[kind], xerr=spread, fmt=MARKS[kind], color=colour, ms=4, elinewidth=1.4
        )
    texts = [", ".join(described(row, names)) for row in table.to_dict("records")]
    ax.set_yticks(places, [two_lines(text) for text in texts])
    ax.set_ylim(-0.6, len(table) - 0.4)
    return ax


def two_lines(text: str) -> str:
    """Break a long text of several parts into two lines."""
    parts = text.split(", ")
    half = (len(parts) + 1) // 2
    return text if len(text) < 22 else f"{', '.join(parts[:half])}\n{', '.join(parts[half:])}"


def handles(pairs: Any) -> list[Any]:
    """Make the legend: markers of both ways to train, and limit lines."""
    words = {"uniform": "W^V alone, uniform attention", "joint": "W^K, W^Q, W^V jointly"}
    marks: list[Any] = [
        Line2D([], [], color=COLOURS[name], marker=MARKS[name], ls="", ms=4, label=text)
        for name, text in words.items()
    ]
    sources = {
        "line_": ("black", "all documents"),
        "held_out_": (DOCUMENTS, "held-out documents"),
    }
    for begin, (colour, where) in sources.items():
        for limit, (text, line) in LIMITS.items():
            if begin + limit in pairs and pairs[begin + limit].notna().any():
                marks.append(Line2D([], [], color=colour, ls=line, lw=1.1, label=f"{text}, {where}"))
    return [*marks, Line2D([], [], color="0.4", lw=1.4, label="bar: quartiles over seeds")]


def gains(pairs: Any) -> list[str]:
    """Say how much lower joint training ends, as a share of what topical attention can gain.

    For several settings, give the smallest and the largest of their medians over seeds.
    """
    table: Any = quartiles(pairs, pair_settings(pairs), ["saved", "share"])
    found = []
    for kind, own in table.groupby(list(MAIN_SETTINGS), sort=True):
        text = f"{', '.join(map(label, kind))}: lower by {span(own['saved'], 4)}"
        if own["share"].notna().any():
            text += f", {span(own['share'], 2)} of what topical attention can gain"
            if len(own) == 1:
                text += f" (quartiles {own['share_q25'].iloc[0]:.2f} to {own['share_q75'].iloc[0]:.2f})"
        found.append(f"{text}; {counted(own['n'].sum(), 'pair')} in {counted(len(own), 'setting')}.")
    return found


def span(values: Any, decimals: int) -> str:
    """Write the smallest and largest number with these decimals; one number if they look the same."""
    low, high = (f"{value:.{decimals}f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def caption(pairs: Any, hidden: int) -> str:
    """Say how much lower joint training ends, what is drawn and what is not."""
    lost = pairs[["joint", "uniform"]].isna().any(axis=1).sum()
    parts = {
        "Held-out loss, mean over the last tenth of the steps; median and quartiles over seeds. How much "
        "lower joint training ends than W^V alone with the same seed:": True,
        " ".join(gains(pairs)): True,
        "What topical attention can gain is stage 1 - stage 2 on these documents; stage 2 keeps the W^V of "
        "stage 1, so training both can go lower.": True,
        f"Not drawn: {counted(hidden, 'more row')}.": hidden,
        f"{counted(lost, 'pair')} left out: a trial is not finite.": lost,
    }
    return sentences(parts)
