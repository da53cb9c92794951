"""Split the spread over seeds by its cause: documents, initial weights, or both together.

Trials are crossed: every seed of the documents with every seed of the weights.  The value of document seed i
and weight seed j is mean + d_i + w_j + e_ij, with independent random parts (a two-way analysis of variance
without replication); the remainder e is what depends on the combination.  Training has no other randomness,
so there is no noise of measurement in it, except that onsets are interpolated between records.

Estimates of a variance can be negative and count as 0 in shares.  Errors come from the jackknife: each seed
of the documents is left out in turn, then each seed of the weights, and the two variances are added.  With
6 x 6 seeds the share of the larger part has a standard error of about 0.15, and intervals of 2 errors hold
the true share in about 9 of 10 grids (tested on simulated grids).
"""

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.store.reader import Run

from ..frames import Array, Frame, column, distinct, varying
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, SMALL, WIDTH, Picture, described, evenly, label, sentences, style
from ..topic_model import MAIN_SETTINGS, settings_in
from .onsets import LEVEL, onset_times

CAUSES = ("documents", "weights", "remainder")
MEASURES = {  # what is split: its name for readers
    "onset_step": f"a_topic reaches {LEVEL:g}",
    "onset_attention": "attention has half of its gain",
    "theta": "Θ",
}
ONSETS = ("onset_step", "onset_attention")  # two definitions of the onset of stage 2: both are judged
LEAST_SEEDS = 4  # of either kind: errors from fewer mean little
ERRORS = 2.0  # standard errors of an interval
PREDICTED = (0.80, 0.86)  # share of the documents in the variance of onsets of SGD, by a prototype
COLOURS = dict(zip(CAUSES, (PALETTE[0], PALETTE[1], "0.75"), strict=True))
TITLE_WIDTH = 18  # characters per line
MOST_PANELS = 4  # of onsets by seed; settings beyond are evenly spaced
EXACT = 1e-9  # relative standard deviation below which values are equal: rounding
Statistic = Callable[[Array], Array]  # grids (..., documents, weights) -> (...) or (..., causes)


def variance_components(grids: Array) -> Array:
    """Estimate the variances by cause of grids (..., documents, weights), unbiased: they can be negative."""
    rows, columns = grids.shape[-2:]
    row, mean = grids.mean(axis=-1, keepdims=True), grids.mean(axis=(-2, -1), keepdims=True)
    column_ = grids.mean(axis=-2, keepdims=True)
    rest = ((grids - row - column_ + mean) ** 2).sum(axis=(-2, -1)) / ((rows - 1) * (columns - 1))
    documents = ((row - mean) ** 2).sum(axis=(-2, -1)) / (rows - 1) - rest / columns
    weights = ((column_ - mean) ** 2).sum(axis=(-2, -1)) / (columns - 1) - rest / rows
    return np.stack([documents, weights, rest], axis=-1)


def deviations(grids: Array) -> Array:
    """Compute the standard deviation by cause."""
    return np.sqrt(np.maximum(variance_components(grids), 0))


def shares(grids: Array) -> Array:
    """Compute the share of each cause in the variance; NaN if all values are equal."""
    parts = np.maximum(variance_components(grids), 0)
    size = np.abs(grids).max(axis=(-2, -1))
    total = parts.sum(axis=-1)
    total = np.where(total > (EXACT * size) ** 2, total, np.nan)
    return parts / total[..., None]


def jackknife(statistic: Statistic, grids: Array) -> Array:
    """Estimate the standard error of a statistic when both kinds of seeds are samples."""
    variance: Any = 0.0
    for axis in (-2, -1):
        count = grids.shape[axis]
        left_out = np.stack([statistic(np.delete(grids, place, axis)) for place in range(count)])
        variance = variance + (count - 1) / count * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    return np.sqrt(variance)


def weight_seeds(trials: Frame) -> Array:
    """Return the seed of each trial's weights: init_seed, or the seed of its documents if that is -1."""
    own = column(trials, "init_seed")
    return np.where(own < 0, column(trials, "seed"), own).astype(int)


def seed_grids(run: Run, scores: pd.DataFrame) -> list[tuple[dict[str, Any], Frame]]:
    """Sort the trials by setting: the settings of each kind that has crossed seeds, and its trials.

    Trials of a kind fill a grid, and have the columns document_seed and weight_seed.
    """
    if "init_seed" not in scores or (weight_seeds(scores) == scores["seed"].to_numpy()).all():
        return []  # the common case, checked before the onsets, which take long
    times: Any = onset_times(run).set_index("trial_id")
    frame: Any = scores.assign(
        onset_step=times.loc[scores["trial_id"], "onset_step"].to_numpy(float),
        document_seed=scores["seed"].to_numpy(),
        weight_seed=weight_seeds(scores),
    )
    names = [name for name in settings_in(frame) if name not in SEEDS]
    number, _ = distinct(frame, names)
    shown = [*MAIN_SETTINGS, *varying(frame, [name for name in names if name not in MAIN_SETTINGS])]
    found = []
    for place in range(number.max(initial=-1) + 1):
        own = frame[number == place].drop_duplicates(["document_seed", "weight_seed"])
        rows, columns = own["document_seed"].nunique(), own["weight_seed"].nunique()
        if min(rows, columns) >= LEAST_SEEDS and len(own) == rows * columns:
            found.append(({name: own[name].iloc[0] for name in shown}, own))
    return found


def is_crossed(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether seeds of documents and of weights are crossed anywhere."""
    return len(seed_grids(run, scores)) > 0


def grid_of(own: Frame, name: str) -> Array:
    """Return a score as a grid, documents x weights."""
    return own.pivot(index="document_seed", columns="weight_seed", values=name).to_numpy(float)


def spread_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate mean and spread of each score by cause: a row per setting and score, with standard errors.

    Where a trial has no such score (no onset, say) the row has none: leaving out trials would favour some
    seeds.
    """
    rows = []
    for settings, own in seed_grids(run, scores):
        for name in MEASURES:
            grid = grid_of(own, name)
            row: dict[str, Any] = settings | dict(measure=name)
            row |= dict(document_seeds=grid.shape[0], weight_seeds=grid.shape[1])
            row["without"] = int((~np.isfinite(grid)).sum())
            grid = np.where(row["without"], np.nan, grid)
            row |= dict(mean=grid.mean(), mean_se=jackknife(lambda own: own.mean(axis=(-2, -1)), grid))
            for text, statistic in (("sd", deviations), ("share", shares)):
                values, errors = statistic(grid), jackknife(statistic, grid)
                for cause, value, error in zip(CAUSES, values, errors, strict=True):
                    row |= {f"{text}_{cause}": value, f"{text}_{cause}_se": error}
            rows.append(row)
    return pd.DataFrame(rows)


def delay_per_decade(run: Run, scores: pd.DataFrame, name: str) -> tuple[float, float]:
    """Fit an onset of SGD over the decades by which the init scale is smaller: slope and its error.

    A line is fitted for each pair of seeds.  NaN unless there is one such row of init scales.
    """
    kinds = [pair for pair in seed_grids(run, scores) if pair[0]["optimizer"] == "sgd"]
    scales = np.array([own["init_scale"].iloc[0] for _, own in kinds], float)
    if len(set(scales)) < 2 or len(set(scales)) < len(scales) or (scales <= 0).any():
        return np.nan, np.nan
    grids = [grid_of(own, name) for _, own in kinds]
    if len({grid.shape for grid in grids}) > 1:
        return np.nan, np.nan
    decades = -np.log10(scales) + np.log10(scales).mean()
    slopes = np.tensordot(decades, np.stack(grids), axes=1) / (decades @ decades)
    return float(slopes.mean()), float(jackknife(lambda own: own.mean(axis=(-2, -1)), slopes))


def spread_figure(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw onsets by seed of documents and of weights, and the share of each cause by setting."""
    kinds, table = seed_grids(run, scores), spread_table(run, scores)
    chosen = [kinds[place] for place in evenly(len(kinds), MOST_PANELS)]
    texts = [", ".join(named(settings, kinds)) for settings, _ in kinds]
    drawn = [
        name for name in MEASURES if table.loc[table["measure"] == name, "share_documents"].notna().any()
    ]
    height = 0.5 + 0.2 * len(kinds)
    with style():
        figure = Figure(figsize=(WIDTH, 2.6 + height))
        halves: Any = figure.subfigures(2, 1, height_ratios=(2.2, height + 0.4))
        upper, lower = halves
        axes = upper.subplots(1, len(chosen), squeeze=False)[0]
        for ax, (settings, own) in zip(axes, chosen, strict=True):
            onset_panel(own, ax)
            ax.set_title("\n".join(named(settings, kinds)), fontsize=SMALL)
        axes[0].set_ylabel("onset - mean (steps)")
        panels = lower.subplots(1, max(len(drawn), 1), squeeze=False, sharey=True)[0]
        for ax, name in zip(panels, drawn, strict=False):
            share_panel(table[table["measure"] == name], ax)
            ax.set_xlabel("share of the variance", fontsize=SMALL)
            ax.set_title(textwrap.fill(MEASURES[name], TITLE_WIDTH), fontsize=SMALL)
        panels[0].set_yticks(-np.arange(len(kinds)), texts, fontsize=SMALL)
        handles: list[Any] = [Patch(color=COLOURS[cause], label=cause) for cause in CAUSES]
        handles += [Line2D([], [], color="0.3", ls="", marker="o", ms=3, mfc="none", label="a trial")]
        lower.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    rows, columns = (
        max(own[name].nunique() for _, own in kinds) for name in ("document_seed", "weight_seed")
    )
    parts = {
        f"Every one of {rows} seeds of the documents with every one of {columns} seeds of the initial "
        "weights.": True,
        f"Above: the step at which {MEASURES[ONSETS[0]]}, less its mean, by seed of the documents (ordered "
        "by their means, bars); a ring per seed of the weights.  Where documents decide, rings of a column "
        "lie together.": True,
        f"Below: share of each cause in the variance, with {ERRORS:g} jackknife standard errors of the "
        "documents' share.": True,
        f"Above {len(chosen)} of {len(kinds)} settings.": len(chosen) < len(kinds),
        "Settings with a trial without the score have no bar.": bool((table["without"] > 0).any()),
    }
    return Picture(figure, "Spread over seeds by its cause", sentences(parts))


def named(settings: dict[str, Any], kinds: list[tuple[dict[str, Any], Frame]]) -> list[str]:
    """Write the settings that tell a kind from the others; its optimizer if there is only one kind."""
    several = varying(pd.DataFrame([own for own, _ in kinds]), settings)
    for name in list(several):  # a learning rate that follows from the optimizer says nothing more
        others = [other for other in several if other != name]
        frame: Any = pd.DataFrame([own for own, _ in kinds])
        if name not in MAIN_SETTINGS and others and len(frame.drop_duplicates(others)) == len(frame):
            several.remove(name)
    return described(settings, several or ["optimizer"])


def onset_panel(own: Frame, ax: Any) -> None:
    """Draw the onsets of a kind less their mean, a column of rings per seed of the documents."""
    grid = grid_of(own, ONSETS[0])
    grid = grid[np.argsort(np.nanmean(grid, axis=1))] - np.nanmean(grid) if np.isfinite(grid).any() else grid
    for place, values in enumerate(grid):
        ax.plot(np.full(len(values), place), values, "o", color="0.3", ms=2.5, mfc="none", mew=0.6)
        ax.plot([place - 0.35, place + 0.35], [values.mean()] * 2, color=COLOURS["documents"])
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.set_xticks([])
    ax.set_xlabel("documents", fontsize=SMALL)
    ax.tick_params(axis="y", labelsize=SMALL)


def share_panel(table: Frame, ax: Any) -> None:
    """Draw a bar per setting, divided by cause."""
    place, left = -np.arange(len(table)), np.zeros(len(table))
    for cause in CAUSES:
        share = np.nan_to_num(column(table, f"share_{cause}"))
        ax.barh(place, share, left=left, height=0.7, color=COLOURS[cause])
        left = left + share
    value, error = column(table, "share_documents"), ERRORS * column(table, "share_documents_se")
    low, high = np.minimum(error, value), np.minimum(error, 1 - value)
    ax.errorbar(
        value, place, xerr=np.nan_to_num([low, high]), fmt="none", ecolor="black", elinewidth=0.8, capsize=2
    )
    ax.set(xlim=(0, 1), xticks=(0, 0.5, 1))
    ax.tick_params(axis="x", labelsize=SMALL)


def documents_cause_the_spread(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that documents, not initial weights, cause most of the variance of the onset of stage 2."""
    kinds = seed_grids(run, scores)
    if not kinds:
        why = "No setting crosses seeds of the documents with seeds of the weights."
        return Verdict("undecided", why, "a run of seed_causes")
    table = spread_table(run, scores)
    onsets = table[table["measure"].isin(ONSETS) & (table["optimizer"] == "sgd")]
    known = onsets[onsets["share_documents"].notna()]
    if known.empty:
        why = "No setting of SGD has an onset, with a spread, in every trial."
        return Verdict("undecided", why, "more steps, or trials of SGD")
    value, error = column(known, "share_documents"), ERRORS * column(known, "share_documents_se")
    most, least = value - error > 0.5, value + error < 0.5
    fits = (value + error >= PREDICTED[0]) & (value - error <= PREDICTED[1])
    row: Any = known.iloc[0]
    slopes = {name: delay_per_decade(run, scores, name) for name in ONSETS}
    parts = {
        f"Documents cause more than half of the variance of the onset, by {ERRORS:g} standard errors, in "
        f"{most.sum()} of {counted(len(known), 'estimate')} (median share {np.median(value):.0%}), less than "
        f"half in {least.sum()}: SGD, {row['document_seeds']} x {row['weight_seeds']} seeds, jackknife "
        "errors.": True,
        **{onset_text(name, known[known["measure"] == name], *slopes[name]): True for name in ONSETS},
        f"The predicted {PREDICTED[0]:.0%} to {PREDICTED[1]:.0%} lie within {ERRORS:g} standard errors in "
        f"{fits.sum()} of {len(known)}.": True,
        other_text(table): True,
        f"{counted(len(onsets) - len(known), 'estimate')} left out: a trial without an onset.": (
            len(onsets) > len(known)
        ),
    }
    verdict = "holds" if most.all() else "fails" if least.all() else "partly" if (most | least).any() else ""
    change = (
        f"a share of the documents that is not above one half by {ERRORS:g} standard errors; settings share "
        "their seeds, so they are not independent: more seeds narrow the errors, more settings do not"
    )
    numbers = dict(share=float(np.median(value)), error=float(np.median(error)) / ERRORS)
    numbers |= {f"per_decade_{name}": slope for name, (slope, _) in slopes.items() if np.isfinite(slope)}
    counts = dict(estimates=len(known), most=int(most.sum()), least=int(least.sum()), fits=int(fits.sum()))
    return Verdict(verdict or "undecided", sentences(parts), change, **counts, **numbers)


def onset_text(name: str, known: Frame, slope: float, error: float) -> str:
    """Describe the spread of one onset by cause, by setting, and how it depends on the init scale."""
    if known.empty:
        return ""
    text = (
        f"Step at which {MEASURES[name]} ({known['mean'].min():.0f} to {known['mean'].max():.0f}): documents "
        f"cause {shares_text(known, 'documents')} of the variance, weights {shares_text(known, 'weights')}, "
        f"the combination {shares_text(known, 'remainder')}; standard deviations "
        f"{steps_text(known, 'documents')}, {steps_text(known, 'weights')} and "
        f"{steps_text(known, 'remainder')} steps"
    )
    if np.isfinite(slope):
        text += f"; it comes {slope:.1f} +- {error:.1f} steps later per decade of init scale"
    return f"{text}."


def other_text(table: Frame) -> str:
    """Say which share documents have in Theta, and in onsets of other optimizers."""
    texts = []
    for (name, optimizer), own in table.groupby(["measure", "optimizer"], sort=False):
        own = own[own["share_documents"].notna()]
        if len(own) and (optimizer != "sgd" or name not in ONSETS):
            texts.append(f"{label(optimizer)}, {MEASURES[name]}: {shares_text(own, 'documents')}")
    return f"Share of the documents elsewhere: {'; '.join(texts)}." if texts else ""


def shares_text(table: Frame, cause: str) -> str:
    """Write the shares of a cause, with their errors."""
    value, error = column(table, f"share_{cause}"), column(table, f"share_{cause}_se")
    return ", ".join(f"{100 * own:.0f} +- {100 * se:.0f} %" for own, se in zip(value, error, strict=True))


def steps_text(table: Frame, cause: str) -> str:
    """Write the range of the standard deviation by a cause."""
    value = column(table, f"sd_{cause}")
    return f"{value.min():.1f} to {value.max():.1f}"


CLAIM = Claim(
    "Cause of the spread",
    "The onset of stage 2 varies from seed to seed because of the documents, not of the initial weights.",
    documents_cause_the_spread,
    source="our question",
    shown_by="seed_causes",
)
