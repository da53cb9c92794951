"""Remark 1: norms that grow without bound under cross-entropy, and settle with L2 or squared loss.

A norm that approaches a limit adds less and less with each doubling of the steps; one that grows like ln t
adds the same.  Under uniform attention on infinite documents the rate without L2, and the norm with it, are
known (topicjax.theory.margins).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.stages import Records
from topicjax.store.reader import Run
from topicjax.theory.documents import DataModel, is_enumerated
from topicjax.theory.margins import margin_direction, norm, penalised_optimum

from ..frames import Array, Frame, column, distinct
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, WIDTH, Picture, label, sentences, style, written
from ..topic_model import aligned, settings_in
from .trained_models import has_data_model

SETTLED = 0.01  # share of the norm that the last doubling of the steps may add
STEADY = 0.5  # share of the doubling before that the last one must add to count as growth without end
LEAST_RECORDS = 40  # so that a quarter of the steps has ten
KIND = ("attention", "documents", "objective", "l2")
GROWS, SETTLES, BETWEEN = "grows", "settles", "in between"


def has_penalties(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether cross-entropy was trained long enough with and without L2."""
    trials: Any = run.trials
    records: Any = run.trajectories.groupby("trial_id").size()
    used = trials[(trials["objective"] == "cross_entropy") & (trials["status"] == "ok")]
    return len(records) > 0 and bool(records.max() >= LEAST_RECORDS) and {0.0} < {*used["l2"]}


def growth(run: Run) -> Frame:
    """Tabulate each trial: settings, norm of W^V at a quarter, half and all of its steps, and predictions."""
    run = aligned(run)
    frame, records = run.trajectories, Records.of(run.trajectories["step"].to_numpy())
    found: list[dict[str, float]] = []
    for start, end, row in zip(records.start, records.end, run.trials.to_dict("records"), strict=True):
        own = frame.iloc[start : end + 1]
        values: Any = own.reindex(columns=["norm_v", "norm_k", "norm_q"]).to_numpy(float)
        total = np.sqrt((values**2).sum(axis=1)) if row["attention"] == "trained" else values[:, 0]
        step = own["step"].to_numpy()
        last = step[-1]
        at = [float(total[np.argmin(np.abs(step - share * last))]) for share in (0.25, 0.5, 1.0)]
        found.append(dict(quarter=at[0], half=at[1], norm=at[2]) | predictions(row))
    table: Any = run.trials[["trial_id", *settings_in(run.trials), "status"]].reset_index(drop=True)
    table = table.join(pd.DataFrame(found))
    table = table[table["status"] == "ok"]
    before, after = table["half"] - table["quarter"], table["norm"] - table["half"]
    kind = np.select(
        [np.abs(after) < SETTLED * table["norm"], (after > 0) & (after >= STEADY * before)],
        [SETTLES, GROWS],
        BETWEEN,
    )
    return table.assign(before=before, after=after, per_efold=after / np.log(2), kind=kind)


def predictions(row: dict[Any, Any]) -> dict[str, float]:
    """Predict the growth of the norm per e-folding without L2, or the norm with it; NaN if not known."""
    none = dict(predicted_rate=np.nan, predicted_norm=np.nan)
    data = DataModel.of(row) if has_data_model(row) else None
    if data is None or not is_enumerated(data) or row["attention"] != "uniform":
        return none
    if row["objective"] != "cross_entropy" or row["embedding"] != "one_hot" or row["output_bias"] != "zero":
        return none
    if row["l2"] > 0:
        return none | dict(predicted_norm=norm(data, penalised_optimum(data, row["l2"])[0]))
    return none | dict(predicted_rate=norm(data, margin_direction(data)))


def growth_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate the growth of the norms by kind of trial: medians over seeds."""
    table = growth(run)
    columns = ["quarter", "half", "norm", "per_efold", "predicted_rate", "predicted_norm"]
    grouped: Any = table.groupby(list(KIND), sort=True)
    kinds = grouped["kind"].agg(lambda kinds: kinds.mode().iloc[0])
    return grouped[columns].median().assign(seeds=grouped.size(), norms=kinds).reset_index()


def growth_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw the norms against the steps, on a logarithmic scale: a straight line grows without bound."""
    run = aligned(run)
    table = growth(run)
    number, kinds = distinct(table, ["attention", "documents", "objective"])
    records = Records.of(run.trajectories["step"].to_numpy())
    place = {trial: index for index, trial in enumerate(run.trials["trial_id"])}
    with style():
        figure = Figure(figsize=(WIDTH, 0.6 + 2.1 * len(kinds)))
        axes = figure.subplots(len(kinds), 1, squeeze=False)[:, 0]
        for ax, kind in zip(axes, range(len(kinds)), strict=True):
            own = table[number == kind]
            levels = sorted(set(own["l2"]))
            for row in own.to_dict("records"):
                index = place[row["trial_id"]]
                part = run.trajectories.iloc[records.start[index] + 1 : records.end[index] + 1]
                ax.plot(part["step"], total_norm(part, row), color=PALETTE[levels.index(row["l2"])], lw=0.8)
            for level in levels:
                predicted = own.loc[own["l2"] == level, "predicted_norm"].iloc[0]
                if np.isfinite(predicted):
                    ax.axhline(predicted, color=PALETTE[levels.index(level)], lw=0.8, ls=":")
            draw_rate(ax, own, run, records, place)
            ax.set(xscale="log", xlabel="step", ylabel="norm of the weights")
            settings = kinds.iloc[kind]
            what = (
                "W^V alone, infinite documents"
                if settings["attention"] == "uniform"
                else "joint, LDA documents"
            )
            ax.set_title(f"{what}, {label(settings['objective'])}")
            handles = [
                Line2D([], [], color=PALETTE[place_], lw=1, label=f"L2 {written(float(level))}")
                for place_, level in enumerate(levels)
            ]
            ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0)  # beside
    parts = {
        "Norm of W^V (of all weights in joint training) against the steps, a line per seed.": True,
        "Dotted: the norm that minimises eq. (2); dashed: growth at the rate of the largest margin.": (
            table[["predicted_norm", "predicted_rate"]].notna().to_numpy().any()
        ),
    }
    return Picture(figure, "Do norms grow without bound?", sentences(parts))


def total_norm(part: Frame, row: dict[Any, Any]) -> Array:
    """Compute the norm of the trained matrices."""
    names = ["norm_v", "norm_k", "norm_q"] if row["attention"] == "trained" else ["norm_v"]
    return np.sqrt((part[names].to_numpy(float) ** 2).sum(axis=1))


def draw_rate(ax: Any, own: Frame, run: Run, records: Records, place: dict[str, int]) -> None:
    """Draw the predicted growth without L2, through the last point of the first seed."""
    known = own[own["predicted_rate"].notna()]
    if len(known):
        row = known.iloc[0]
        last = float(records.step[records.end[place[row["trial_id"]]]])
        step = np.geomspace(last / 30, last, 2)
        ax.plot(step, row["norm"] + row["predicted_rate"] * np.log(step / last), "k--", lw=1)


def norms_have_no_bound(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that cross-entropy's norms grow to the last step without L2, and settle with it."""
    if not has_penalties(run, scores):
        return Verdict("undecided", "Cross-entropy was not trained with and without L2.", "a run of remark1")
    table = growth(run)
    table = table[(column(table, "norm") > 0)]
    free = table[(table["objective"] == "cross_entropy") & (table["l2"] == 0)]
    held = table[~table["trial_id"].isin(free["trial_id"])]
    if free.empty:
        return Verdict("undecided", "No trial of cross-entropy without L2 has finished.", "such a run")
    grows, settles = (free["kind"] == GROWS).to_numpy(), (held["kind"] == SETTLES).to_numpy()
    rate = (free["per_efold"] / free["predicted_rate"]).dropna()
    reached = (held["norm"] / held["predicted_norm"]).dropna()
    share = 100 * free["after"] / free["norm"]
    parts = {
        f"Without L2 the norms of cross-entropy still grow in {grows.sum()} of "
        f"{counted(len(free), 'trial')}: the last doubling of the steps adds {share.min():.2g} to "
        f"{share.max():.2g} % of the norm, and {(free['after'] / free['before']).min():.2f} to "
        f"{(free['after'] / free['before']).max():.2f} of what the doubling before added (1: growth like ln "
        "t).": True,
        f"For W^V alone the growth per e-folding is {rate.min():.3f} to {rate.max():.3f} of the predicted "
        f"one.": (len(rate)),
        f"With L2 or squared loss they settle in {settles.sum()} of {counted(len(held), 'trial')}.": len(
            held
        ),
        f"With L2, W^V alone ends at {reached.min():.3f} to {reached.max():.3f} of the norm that minimises "
        "eq. (2).": len(reached),
    }
    if not len(held):
        return Verdict("undecided", sentences(parts), "trials with L2 or squared loss")
    all_hold, none = grows.all() and settles.all(), not grows.any()
    verdict = "holds" if all_hold else "fails" if none else "partly"
    change = (
        f"a norm without L2 whose last doubling adds less than {SETTLED:.0%}, or one with L2 that has not "
        "settled with more steps; finite training can show growth, not that it has no end"
    )
    numbers = dict(grows=int(grows.sum()), of=len(free), settles=int(settles.sum()), of_held=len(held))
    return Verdict(verdict, sentences(parts), change, **numbers)


CLAIM = Claim(
    "Remark 1",
    "With cross-entropy the optimal logits are often at infinity: norms grow without bound, unless L2 holds "
    "them; with squared loss they are finite.",
    norms_have_no_bound,
    "Remark 1",
    "remark1",
)
