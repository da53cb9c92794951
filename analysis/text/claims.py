"""Claims about encoders on text: the shape of the paper's Figure 5, and whether context is used.

A cell (trials that differ only in the seed) counts by the most frequent shape of its trials; the loss of a
cell is the mean over its seeds, and its error that over held-out windows.
"""

from typing import Any

import pandas as pd

from topicjax.errors import counted
from topicjax.stages import HALF
from topicjax.store.reader import Run

from ..encoder.findings import count_of
from ..frames import Frame
from ..layers import telling_settings
from ..page.contract import Claim, Verdict
from ..pictures import described, first_of
from .scores import AROUND, ERRORS, FIGURE5, LEADS, LITTLE, STILL, text_cells


def figure5(run: Run, scores: Frame) -> Verdict:
    """Check that norms of V rise before those of K and Q in every layer, from near zero.

    Halves of a rise depend on where it ends, so that trainings of different lengths are reported apart.
    """
    layers = text_cells(run, scores)
    layers = layers.loc[~layers["shape"].isin(["diverged", STILL])]
    if layers.empty:
        why = "In no cell do the norms grow: the order of their rises means nothing."
        return Verdict("undecided", why, "a start near zero")
    shown, ahead = (count_of(layers["shape"] == kind) for kind in (FIGURE5, LEADS))
    texts = []
    for steps, own in layers.groupby("steps"):
        hits = (own["shape"] == FIGURE5).groupby(own["cell"]).mean()
        trials = trials_of(run, scores, own)
        texts.append(
            f"After {steps:,} steps V is first in {count_of(own['shape'] == FIGURE5)} of "
            f"{counted(len(own), 'layer')} whose norms grow, in every layer of {count_of(hits == 1)} of "
            f"{counted(len(hits), 'cell')}; in {count_of(own['shape'] == LEADS)} more layers V is ahead of K "
            f"and Q, but these have begun by then. V is half way at step "
            f"{ranged(trials['onset_v'], '{:,.0f}')}, K and Q at {ranged(trials['onset_a'], '{:,.0f}')} "
            f"(medians, and ranges over layers and seeds). The seeds agree in "
            f"{count_of(own['agreement'] == 1)} layers."
        )
    verdict = "holds" if shown == len(layers) else "partly" if shown + ahead else "fails"
    change = (
        f"the definition: V first means that K and Q have made less than {LITTLE:.0%} of their rise when V "
        f"has made {HALF:.0%} of its own."
    )
    return Verdict(verdict, " ".join(texts), change, layers=len(layers), first=shown, ahead=ahead)


def context(run: Run, scores: Frame) -> Verdict:
    """Check that the loss passes the unigram line by more than its error, in the longest trainings."""
    cells = models(run, longest(scores))
    if cells.empty:
        return Verdict("undecided", "All models diverged.", "a smaller learning rate")
    surely = cells["below"] > ERRORS * cells["below_se"]
    short = cells["below"] < -ERRORS * cells["below_se"]
    unclear = ~(surely | short)
    text = (
        f"After {cells['steps'].iloc[0]:,} steps the final loss is below the unigram line by more than "
        f"{ERRORS:g} standard errors in {count_of(surely)} of {counted(len(cells), 'cell')}, above it by as "
        f"much in {count_of(short)} (difference {-cells['below'].max():+.3f} to {-cells['below'].min():+.3f} "
        f"nats, standard error over held-out windows {cells['below_se'].median():.3f})."
    )
    passing = [
        passing_text(run, row, trials_of(run, scores, pd.DataFrame([row])))
        for row in cells.loc[surely & cells["passed_surely"].notna()].to_dict("records")
    ]
    if passing:
        text += f" It passes the line by that much (median and range over seeds): {first_of(passing, '; ')}."
    others = count_of(scores.groupby("trial_id")["steps"].first() < scores["steps"].max())
    if others:
        text += f" {counted(others, 'trial')} of fewer steps {'does' if others == 1 else 'do'} not count."
    verdict = (
        "holds" if surely.all() else "fails" if short.all() else "partly" if surely.any() else "undecided"
    )
    change = "more steps: a model above the line does not use context yet, whatever its norms do."
    if unclear.any():
        change += " More held-out windows, for cells within their error of the line."
    return Verdict(verdict, text, change, cells=len(cells), below=count_of(surely), above=count_of(short))


def passing_text(run: Run, row: dict[str, Any], trials: Frame) -> str:
    """Say when a cell passes the line, and how much of the loss below it uniform attention has in the end."""
    seeds = trials.drop_duplicates("trial_id")
    passed = seeds["passed_surely"].dropna()
    used = seeds.loc[seeds["below"] > ERRORS * seeds["below_se"]]
    share = used["uniform_below"] / used["below"]
    return (
        f"{title(run, row)} at step {ranged(passed, '{:,.0f}')} in {len(passed)} of "
        f"{counted(len(seeds), 'seed')}, in the end by {ranged(seeds['below'], '{:.3f}')} nats, of which "
        f"uniform attention has {ranged(share, '{:.2f}')}"
    )


def context_stages(run: Run, scores: Frame) -> Verdict:
    """Check that K and Q make half of their rise about when the loss passes the unigram line."""
    layers = text_cells(run, longest(scores))
    layers = layers.loc[(layers["shape"] != "diverged") & layers["passed_surely"].notna()]
    layers = layers.loc[layers["below"] > ERRORS * layers["below_se"]]
    if layers.empty:
        why = f"No cell is below the unigram line by more than {ERRORS:g} standard errors."
        return Verdict("undecided", why, "more steps")
    known = layers.loc[layers["onset_a"].notna()]
    ratio = known["onset_a"] / known["passed_surely"]
    near = ratio.between(1 / AROUND, AROUND)
    trials = trials_of(run, scores, layers)
    each = trials["onset_a"] / trials["passed_surely"]
    count = layers["cell"].nunique()
    text = (
        f"In {counted(count, 'cell')} that {'uses' if count == 1 else 'use'} context K and Q make half of "
        f"their rise within a factor {AROUND:g} of the step at which the line is passed in {count_of(near)} "
        f"of {counted(len(layers), 'layer')}, earlier in {count_of(ratio < 1 / AROUND)}, later in "
        f"{count_of(ratio > AROUND)}; by single seeds, in {count_of(each.between(1 / AROUND, AROUND))} of "
        f"{len(trials)}, at {ranged(each, '{:.2f}')} times that step. "
        f"At that step V has made {spread(layers['v_by_then'])} of its rise, K "
        f"and Q {spread(layers['a_by_then'])} (median and quartiles over layers); from half to twice of "
        f"it they make {spread(layers['v_around'])} and {spread(layers['a_around'])}. Of the loss below the "
        f"line uniform attention has {spread(layers['uniform_then'], '{:+.3f}')} nats then, trained "
        f"attention adds {spread(layers['trained_then'], '{:+.3f}')}."
    )
    verdict = "holds" if count_of(near) == len(layers) else "partly" if near.any() else "fails"
    change = (
        "a smaller learning rate, or a finer grid of held-out measurements: the step is known to one of them."
    )
    return Verdict(verdict, text, change, layers=len(layers), near=count_of(near))


def longest(scores: Frame) -> Frame:
    """Select the trials with the most steps: shorter ones may end before context can be used."""
    return scores.loc[scores["steps"] == scores["steps"].max()].reset_index(drop=True)


def trials_of(run: Run, scores: Frame, cells: Frame) -> Frame:
    """Select the rows of the single trials that did not diverge, of these cells and layers."""
    ok = scores.loc[scores["status"] == "ok"]
    names = [*telling_settings(run), "layer"]
    return ok.merge(cells[names], on=names)


def models(run: Run, scores: Frame) -> Frame:
    """Take one row per cell whose models did not diverge."""
    cells = text_cells(run, scores)
    return cells.loc[cells["shape"] != "diverged"].groupby("cell").first()


def title(run: Run, row: dict[str, Any]) -> str:
    """Write the settings that tell a cell from others."""
    return ", ".join(described(row, telling_settings(run))) or "all trials"


def ranged(values: pd.Series, form: str) -> str:
    """Write the median, and the range if there are several values."""
    low, middle, high = (form.format(value) for value in (values.min(), values.median(), values.max()))
    return f"{middle} ({low} to {high})" if values.count() > 1 else middle


def spread(values: pd.Series, form: str = "{:.0%}") -> str:
    """Write the median and the quartiles."""
    low, middle, high = (form.format(values.quantile(share)) for share in (0.25, 0.5, 0.75))
    return f"{middle} ({low} to {high})"


CLAIMS = (
    Claim(
        "Figure 5",
        "Near a zero start the norms of W^V rise first in all layers; those of W^K and W^Q "
        "follow much later.",
        figure5,
        "section 8.1",
        "figure5",
    ),
    Claim(
        "Context",
        "The model comes to predict better than the best predictor without context.",
        context,
        "Figure 5, continued",
        "text_losses",
    ),
    Claim(
        "Context stages",
        "The stages of Figure 5 are stages of learning from context: K and Q rise when context is used.",
        context_stages,
        "a reading of section 8.1",
        "context_stages",
    ),
)
