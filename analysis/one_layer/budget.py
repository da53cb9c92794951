"""Figure 4's edge: whether stage 2 is seen depends on learning rate x steps.

Under SGD attention leaves the saddle after a fixed learning rate x step, so the edge of a map of classes, at
a fixed number of steps, lies where that product crosses the budget.  Trials are scored again as if they had
ended earlier, to see which classes more steps change.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..frames import Frame, varying
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, WIDTH, Picture, described, sentences, style, written
from ..topic_model import aligned, settings_in, uses_softmax
from .onsets import onset_times
from .scores import score_trials, trains_both
from .stability import cut_at

NOT_YET = ("V-only", "unfinished", "stage 2 begun", "no-learning")  # classes that more steps may change
CONSTANT = 0.05  # relative spread of learning rate x onset over rates that counts as none
LEAST_RATES = 3
LEAST_SCALES = 3  # init scales of a slope
WITHIN = (
    "objective",
    "optimizer",
    "key_visibility",
    "init",
    "init_scale",
)  # onsets are compared within these
SHARES = (0.25, 0.5, 1.0)  # of the steps: budgets that are drawn


def sgd_onsets(run: Run) -> Frame:
    """Tabulate the onsets of SGD trials that train both parts, with softmax attention."""
    times: Any = onset_times(run)
    times = times[uses_softmax(times)]
    return times[(times["optimizer"] == "sgd") & trains_both(times) & (times["learning_rate"] > 0)]


def has_edge(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether SGD trials that differ in the learning rate have onsets."""
    if not trains_both(scores).any() or "sgd" not in set(run.trials["optimizer"]):
        return False
    times = sgd_onsets(run)
    return times.loc[times["outcome"] == "onset", "learning_rate"].nunique() >= LEAST_RATES


def edge_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate learning rate x onset step by start: median over seeds, then median and range over rates.

    spread is the relative range over rates, over_seeds the largest relative range over the seeds of a rate.
    """
    times = sgd_onsets(run)
    used, names = times[times["outcome"] == "onset"], [name for name in WITHIN if name in times]
    by_rate: Any = used.groupby([*names, "learning_rate"])["onset_time"]
    rates = by_rate.median()
    over_seeds: Any = ((by_rate.max() - by_rate.min()) / rates).groupby(level=names).max()
    grouped: Any = rates.groupby(level=names)
    table = pd.DataFrame(
        dict(rates=grouped.size(), onset_time=grouped.median(), least=grouped.min(), most=grouped.max())
    )
    trials: Any = times.groupby(names).size()
    onsets: Any = used.groupby(names).size()
    table = table.assign(
        trials=trials,
        onsets=onsets,
        spread=(table["most"] - table["least"]) / table["onset_time"],
        over_seeds=over_seeds,
    )
    return table.reset_index()


def kept_classes(run: Run, share: float = 0.5) -> Frame:
    """Score the run after a share of its steps and after all: class then and class now of each SGD trial."""
    run = aligned(run)
    steps = int(share * run.trials["steps"].to_numpy().max())
    then, now = score_trials(cut_at(run, steps)), score_trials(run)
    frame: Any = now[["trial_id", *settings_in(now), "class"]].assign(before=then["class"].to_numpy())
    is_used = (
        (frame["optimizer"] == "sgd") & trains_both(frame) & (frame["steps"] == run.trials["steps"].max())
    )
    return frame[is_used]


def edge_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw the onset step against the learning rate, the line of equal learning rate x steps, and budgets."""
    times = sgd_onsets(run)
    panels = list(times.groupby(["objective", "key_visibility"], sort=True))
    panels = [(name, own) for name, own in panels if (own["outcome"] == "onset").any()]
    table = edge_table(run, scores)
    with style():
        figure = Figure(figsize=(WIDTH, 0.7 + 2.7 * len(panels)))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for ax, (name, own) in zip(axes, panels, strict=True):
            scales = sorted(set(own.loc[own["outcome"] == "onset", "init_scale"]))
            rates = np.array([own["learning_rate"].min() / 1.2, own["learning_rate"].max() * 1.2])
            for colour, scale in zip(PALETTE, scales, strict=False):
                used = own[(own["init_scale"] == scale) & (own["outcome"] == "onset")]
                ax.plot(
                    used["learning_rate"], used["onset_step"], "o", color=colour, ms=3.5, mfc="none", mew=0.8
                )
                line = table[
                    (table["init_scale"] == scale)
                    & (table["objective"] == name[0])
                    & (table["key_visibility"] == name[1])
                ]
                if len(line):
                    ax.plot(rates, line["onset_time"].iloc[0] / rates, color=colour, lw=1)
            for share in SHARES:
                budget = share * own["steps"].max()
                ax.axhline(budget, color="0.5", lw=0.8, ls="--", zorder=1)
                ax.text(rates[1], budget, f"{budget:,.0f} steps ", ha="right", va="bottom", color="0.35")
            ax.set(
                xscale="log",
                yscale="log",
                xlim=rates,
                xlabel="learning rate",
                ylabel="onset step of attention",
            )
            ax.set_title(
                ", ".join(
                    described(
                        dict(zip(("objective", "key_visibility"), name, strict=True)),
                        ("objective", "key_visibility"),
                    )
                )
            )
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(plain))
                axis.set_minor_formatter(FuncFormatter(plain))
            marks = [
                Line2D(
                    [], [], color=colour, marker="o", mfc="none", ms=4, label=f"init scale {written(scale)}"
                )
                for colour, scale in zip(PALETTE, scales, strict=False)
            ]
            ax.legend(handles=marks, loc="lower left")
    censored = int((times["outcome"] == "censored").sum())
    parts = {
        "Step at which attention becomes topical (a_topic of 0.1), a ring per SGD trial.": True,
        "Lines have the slope of a constant learning rate x step. A map of classes at a fixed number of "
        "steps (dashed) calls a trial V-only right up to where its line crosses the budget.": True,
        f"{counted(censored, 'trial')} without an onset within the steps.": censored,
    }
    return Picture(figure, "Figure 4's edge is a budget of learning rate x steps", sentences(parts))


def plain(value: float, place: Any = None) -> str:
    """Label ticks at 1, 2 and 5 times powers of ten with plain numbers."""
    return f"{value:,g}" if f"{value:.0e}"[0] in "125" else ""


def per_decade(table: Frame) -> list[str]:
    """Say by how much a tenfold smaller init scale raises learning rate x onset, per kind of trial."""
    kinds: Any = table.groupby([name for name in WITHIN if name != "init_scale" and name in table])
    found = []
    for _, own in kinds:
        if own["init_scale"].nunique() >= LEAST_SCALES:
            slope = np.polyfit(-np.log10(own["init_scale"]), own["onset_time"], 1)[0]
            found.append(f"{slope:,.0f}")
    return found


def edge_is_a_budget(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that learning rate x onset is constant, and that more steps turn V-only into two-stage."""
    if not has_edge(run, scores):
        return Verdict(
            "undecided", f"Onsets at fewer than {LEAST_RATES} learning rates of SGD.", "such a run"
        )
    table = edge_table(run, scores)
    table = table[table["rates"] >= LEAST_RATES]
    if table.empty:
        return Verdict("undecided", "No start has onsets at enough learning rates.", "more steps")
    classes, steps = kept_classes(run), int(run.trials["steps"].to_numpy().max())
    waiting = classes[classes["before"].isin(NOT_YET)]
    turned = (waiting["class"] == "two-stage").to_numpy()
    still = waiting["class"].isin(NOT_YET).to_numpy()
    lost = classes[(classes["before"] == "two-stage") & (classes["class"] != "two-stage")]
    names = varying(table, WITHIN)
    cells = "; ".join(
        f"{', '.join(described(row, names)) or 'all'}: {row['onset_time']:,.0f} ({row['least']:,.0f} to "
        f"{row['most']:,.0f})"
        for row in table.to_dict("records")
    )
    spread = table["spread"].to_numpy(float)
    text = (
        f"Learning rate x onset step differs between learning rates by at most {100 * spread.max():.2g} %: "
        f"{cells}; medians over {counted(classes['seed'].nunique(), 'seed')}, which differ by at most "
        f"{100 * table['over_seeds'].max():.2g} %. After {steps // 2:,} steps {len(waiting)} of "
        f"{counted(len(classes), 'SGD trial')} have not shown stage 2; "
        f"after {steps:,} steps {turned.sum()} of them are two-stage, {still.sum()} still "
        f"have not, {len(waiting) - turned.sum() - still.sum()} are in another class."
    )
    constant = bool((spread < CONSTANT).all())
    if constant:
        text += (
            " The edge at fixed steps is a line learning rate x steps = constant: it moves with the steps."
        )
    slopes = per_decade(table)
    if slopes:
        text += f" A tenfold smaller init scale raises it by {' and '.join(slopes)}."
    other = len(waiting) - turned.sum() - still.sum()
    if constant and not turned.any() and not other:
        verdict = "undecided"
        text += " No trial crossed the edge in the second half of the steps."
    else:
        verdict = "holds" if constant and not other else "partly" if constant or turned.any() else "fails"
    change = (
        f"a spread above {CONSTANT:.0%}, or trials beyond the line that end in another class than two-stage; "
        "more steps, if none crossed it"
    )
    numbers = dict(spread=float(spread.max()), waiting=len(waiting), turned=int(turned.sum()), lost=len(lost))
    return Verdict(verdict, text, change, **numbers)


CLAIM = Claim(
    "Figure 4, its edge",
    "The edge of the two-stage region at SGD is a line in learning rate x steps, not a property of the "
    "model.",
    edge_is_a_budget,
    "our reading of Figure 4 and section 8.1",
    "budget",
)
