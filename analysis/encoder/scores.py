"""Score and classify every layer of every trial, and summarise cells of trials that differ only in the seed.

P is what the values of a layer add under uniform attention, Q what its trained attention adds on top: its
shares of the gains of all layers together, which are layer 0, in nats of held-out loss.  F_V and F_A
are isotonic fits of P and Q on the way up (to the step of the lowest loss), each from 0 to 1, because layers
have no limit lines of their own.  Without residual connections every layer has the same P by construction,
so only the whole model is scored.  Names of classes are those of the one-layer model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from topicjax.pace import PER_DECADE, Gap
from topicjax.stages import (
    Array,
    Records,
    compare,
    lowest_record,
    recession,
    share_of_rise,
    steady,
    steady_maximum,
    sure_maximum,
)
from topicjax.store.reader import Run
from topicjax.theory.progress import Cuts, Units, units

from ..frames import Frame, cell_of_rows, column
from ..layers import (
    ALL,
    OF_TOPICS,
    Rises,
    layer_curves,
    leaves_uniform,
    norm_progress,
    part_name,
    telling_settings,
)
from ..maps.cells import majority
from ..scores import join_flags
from ..topic_model import HELD_OUT_LINES, LINES, limit_lines

LAYERS_FILE = "layers.parquet"
UNDECIDED, WHOLE_ONLY = "undecided", "whole only"
LAYER_CLASSES = (  # in the order of legends; in a tie between seeds the earlier one wins
    *("diverged", "no-learning", "unfinished", WHOLE_ONLY, "silent", "V-only", "attention-only", "unscored"),
    *(UNDECIDED, "two-stage", "stage 2 begun", "reversed", "simultaneous", "V leads", "attention leads"),
)
HAS_THETA = LAYER_CLASSES[LAYER_CLASSES.index(UNDECIDED) :]
ENDS = ("entropy_deficit", *OF_TOPICS)
DOCUMENT_ERRORS = 2.0  # standard errors over held-out documents by which P and Q are shifted
ONSETS = ("onset_v", "onset_attention", "onset_entropy")
MEDIANS = (
    *("theta", "theta_reversed", "log_lag", "theta_norm", "max_p", "max_q", *ONSETS),
    *(f"end_{name}" for name in ENDS),
    *("topic_ratio", "topic_shift", "mask_topic_ratio", "mask_topic_shift"),
    *("theta_low", "theta_high", "e_block"),
)
OF_GAINS = ("max_p", "max_q", "end_p", "end_q")
QUARTILES = ("theta", *ONSETS, *(f"end_{name}" for name in OF_TOPICS))
EVERY, SOME, NONE = "every layer", "some layers", "no layer"  # which layers of a model are two-stage
DIRECTIONS = ("first layer first", "last layer first", "together", "mixed")


@dataclass(frozen=True)
class LayerCuts(Cuts):
    """Thresholds of layers: those of the one-layer model, and when the gain of a part counts."""

    moved_errors: float = 3.0  # the largest gain of a part that moved exceeds this many standard errors
    moved_share: float = 0.05  # and this share of the same gain of all layers together


LAYER_CUTS = LayerCuts()


def score_layers(run: Run, cuts: LayerCuts = LAYER_CUTS) -> Frame:
    """Score every trial and layer (0: all layers together): settings, scores, class, onsets, final values.

    Columns of the view by norms end in _norm.  theta, theta_reversed and log_lag are NaN where V or attention
    did not move.  theta_low and theta_high are the smallest and largest theta when P and Q are shifted up or
    down by two standard errors over documents; losses of single documents are not recorded, so there is no
    bootstrap interval.  Onsets are NaN where they were not reached.
    """
    return classified(measured(run, cuts), cuts)


def classified(scores: Frame, cuts: LayerCuts = LAYER_CUTS) -> Frame:
    """Add the classes of both views to what `measured` returns, and blank what is meaningless in them."""
    classes = {"class": classify(scores, "", cuts), "class_norm": classify(scores, "_norm", cuts)}
    return with_blanks(scores.assign(**classes))


def measured(run: Run, cuts: LayerCuts = LAYER_CUTS) -> Frame:
    """Measure every trial and layer: the table of `score_layers` without classes and without blanks."""
    every = layer_curves(run)
    curves = every.loc[every["is_measured"]].reset_index(drop=True)
    records, all_records = (Records.of(table["step"].to_numpy()) for table in (curves, every))
    first = curves.iloc[records.start]
    trials: Any = run.trials.take(first["trial"].to_numpy()).reset_index(drop=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = scales(records, curves, trials, run)
        columns = maxima(records, curves, scale, cuts) | ends(all_records, every)
        columns |= {f"end_{name.lower()}": last_finite(records, curves, name) for name in ("P", "Q")}
        losses = column(curves, "on") + column(curves, "P") + column(curves, "Q")
        columns["is_finite"] = ~records.any(~np.isfinite(losses)) & (trials["status"] == "ok").to_numpy()
        up = loss_progress(records, curves)
        for end, view in (("", up), ("_norm", norm_progress(all_records, every))):
            columns |= {name + end: values for name, values in view_scores(view, cuts).items()}
        columns["theta_low"], columns["theta_high"] = theta_range(records, curves, cuts)
        columns["onset_entropy"] = leaves_uniform(all_records, every)
        columns["flags"] = join_flags(flags(records, curves, up, columns, cuts), columns["is_finite"])
    columns |= {"e_block": last_finite(all_records, every, "e_block")} if "e_block" in every else {}
    settings = trials[["trial_id", *run.setting_names, "status"]]
    layer = first["layer"].to_numpy(int)
    names = dict(layer=layer, part=[part_name(number) for number in layer])
    return settings.assign(**names, **columns, gain_unit=scale.gain)


def scales(records: Records, curves: Frame, trials: Frame, run: Run) -> Units:
    """Compute the units of each curve's losses from the limit lines of its documents where they are known."""
    found = limit_lines(run.replace(trials=trials))
    names = {**{name: f"line_{name}" for name in LINES}, **{name: name for name in HELD_OUT_LINES}}
    names |= {f"{name}_se": f"line_{name}_se" for name in LINES}
    initial = column(curves, "on")[records.start]
    return units(initial, {name: found[place] for name, place in names.items()})


def maxima(records: Records, curves: Frame, scale: Units, cuts: LayerCuts) -> dict[str, Array]:
    """Find the largest gains in nats on the way up, with their errors.

    max_*_se is the standard error over held-out documents at the record of the largest gain, max_*_all the
    largest gain of all layers together, and sure_* the part of the gain beyond the noise between neighbouring
    records.  max_total is the share of L(0) - L1* that the model gained; without that line it is 1 if the
    gain exceeds its error, else 0.
    """
    loss = column(curves, "on")
    gained = records.spread(loss[records.start]) - loss
    error = cuts.line_errors * np.nan_to_num(column(curves, "eval_loss_se"))
    shares = steady_maximum(records, gained / records.spread(scale.drop))
    total = np.where(np.isfinite(scale.drop), shares, steady_maximum(records, gained - error) > 0)
    kept, up = records.up_to(lowest_record(records, loss))
    own = curves.loc[kept]
    whole = dict(P=column(own, "silent") - column(own, "uniform"), Q=column(own, "Q_all"))
    columns = dict(max_total=total)
    for name, error in (("P", "value_se"), ("Q", "gain_se")):
        gain, part = column(own, name), f"max_{name.lower()}"
        largest = lowest_record(up, -steady(up, gain))
        columns[part] = steady_maximum(up, gain)
        columns[f"{part}_se"] = np.nan_to_num(column(own, error))[largest]
        columns[f"{part}_all"] = steady_maximum(up, whole[name])
        columns[f"sure_{name.lower()}"] = sure_maximum(up, gain, cuts.noise)
    return columns


def topic_shift(records: Records, curves: Frame, queries: str = "") -> Array:
    """Measure the change since step 0 of ln(attention to the same topic / to other topics).

    Of words, or with "mask_" of positions that show [MASK].  The ratio of uniform attention is not 1, because
    documents of different lengths differ in their topics.
    """
    same, other = (column(curves, f"attn_{queries}{kind}_topic") for kind in ("same", "diff"))
    ratio = np.log(same / other)
    return ratio - records.spread(ratio[records.start])


def loss_progress(records: Records, curves: Frame, off_by: tuple[float, float] = (0.0, 0.0)) -> Rises:
    """Compute F_V and F_A from the loss on the way up, with P and Q off by so many standard errors."""
    kept, up = records.up_to(lowest_record(records, column(curves, "on")))
    gains = [
        column(curves, name) + (errors * np.nan_to_num(column(curves, error)) if errors else 0.0)
        for name, error, errors in zip(("P", "Q"), ("value_se", "gain_se"), off_by, strict=True)
    ]
    return Rises(up, *(share_of_rise(up, gain[kept]) for gain in gains))


def theta_range(records: Records, curves: Frame, cuts: Cuts) -> tuple[Array, Array]:
    """Compute the range of Theta when P and Q are each shifted by some standard errors over documents.

    All records are measured on the same documents, so their errors go the same way.
    """
    corners = [
        (p, q) for p in (-DOCUMENT_ERRORS, DOCUMENT_ERRORS) for q in (-DOCUMENT_ERRORS, DOCUMENT_ERRORS)
    ]
    found = [
        compare(*loss_progress(records, curves, corner), cuts.onset)["theta"]
        for corner in [(0.0, 0.0), *corners]
    ]
    return np.fmin.reduce(found), np.fmax.reduce(found)


def view_scores(view: Rises, cuts: Cuts) -> dict[str, Array]:
    """Score both curves of each layer in one view: Theta both ways, log lag, onsets and rises."""
    records, F_V, F_A = view
    found = compare(records, F_V, F_A, cuts.onset)
    found["onset_v"], found["onset_attention"] = found.pop("onset_first"), found.pop("onset_second")
    return found | dict(rise_v=F_V[records.end], rise_attention=F_A[records.end])


def ends(records: Records, curves: Frame) -> dict[str, Array]:
    """Read attention at the last record."""
    found = {f"end_{name.lower()}": last_finite(records, curves, name) for name in ENDS}
    for queries in ("", "mask_"):
        same, other = (found[f"end_attn_{queries}{kind}_topic"] for kind in ("same", "diff"))
        found[f"{queries}topic_ratio"] = same / other
        found[f"{queries}topic_shift"] = topic_shift(records, curves, queries)[records.end]
    return {**found, "last_step": records.step[records.end]}


def last_finite(records: Records, curves: Frame, name: str) -> Array:
    """Read a column at the last record; NaN if not finite."""
    values = column(curves, name)[records.end]
    return np.where(np.isfinite(values), values, np.nan)


def flags(
    records: Records, curves: Frame, up: Rises, columns: dict[str, Array], cuts: Cuts
) -> dict[str, Array]:
    """Flag doubts about each curve: gains at step 0, P that falls again, an onset in the last tenth."""
    P, Q = column(curves, "P"), column(curves, "Q")
    largest = steady_maximum(records, np.maximum(P, 0))
    late = (1 - cuts.last) * records.step[records.end]
    return {
        "v_at_start": P[records.start] > cuts.at_start * columns["max_p"],
        "attention_at_start": Q[records.start] > np.maximum(cuts.at_start * columns["max_q"], 1e-6),
        "v_recedes": recession(records, P / records.spread(np.where(largest > 0, largest, 1))) > cuts.recedes,
        "censored_attention": columns["onset_attention"] > late,
    }


def has_moved(scores: Frame, part: str, cuts: LayerCuts) -> pd.Series:
    """Tell whether a part ("p": values, "q": attention) gained more than its errors and enough of the whole.

    What noise between records can explain does not count towards the share of the whole.
    """
    whole = scores[f"max_{part}_all"].clip(lower=0)
    beyond_errors = scores[f"max_{part}"] > cuts.moved_errors * scores[f"max_{part}_se"]
    return beyond_errors & (scores[f"sure_{part}"] > cuts.moved_share * whole)


def classify(scores: Frame, end: str = "", cuts: LayerCuts = LAYER_CUTS) -> Array:
    """Classify each row in a view ("": loss, "_norm": norms) by the first rule that it satisfies."""
    theta_, swapped, lag = (scores[name + end] for name in ("theta", "theta_reversed", "log_lag"))
    never = scores["is_finite"] & False
    if end:  # norms measure no gain and have no error over documents: a part has moved if its norm rose
        V_moved, A_moved = (scores[f"rise_{part}{end}"] > 0 for part in ("v", "attention"))
        unscored = scores[f"rise_v{end}"].isna() | scores[f"rise_attention{end}"].isna()
        silent = begun = spans = whole_only = never
    else:
        V_moved, A_moved = has_moved(scores, "p", cuts), has_moved(scores, "q", cuts)
        unscored, silent = V_moved & A_moved & theta_.isna(), ~(V_moved | A_moved)
        begun = scores["max_q_all"] < cuts.stage2 * scores["gain_unit"]
        spans = (scores["theta_low"] < cuts.two_stage) & (scores["theta_high"] >= cuts.two_stage)
        whole_only = ~scores["residual"].astype(bool) & (scores["layer"] != ALL) & (scores["layers"] > 1)
    rules = [
        ("diverged", ~scores["is_finite"]),
        ("no-learning", scores["max_total"] < cuts.no_learning),
        ("unfinished", scores["max_total"] < cuts.finished),
        (WHOLE_ONLY, whole_only),
        ("unscored", unscored),
        ("silent", silent),
        ("V-only", ~A_moved),
        ("attention-only", ~V_moved),
        (UNDECIDED, spans),
        ("stage 2 begun", (theta_ >= cuts.two_stage) & begun),
        ("two-stage", theta_ >= cuts.two_stage),
        ("reversed", swapped >= cuts.two_stage),
        ("simultaneous", (theta_ < cuts.simultaneous) & (swapped < cuts.simultaneous)),
        ("V leads", lag.fillna(theta_ - swapped) >= 0),
    ]
    names, conditions = zip(*rules, strict=True)
    return np.select([np.asarray(holds, bool) for holds in conditions], names, "attention leads")


def with_blanks(scores: Frame) -> Frame:
    """Blank meaningless scores: of classes without a Theta, of layers without own P, of diverged trials."""
    scored = ("theta", "theta_reversed", "log_lag")
    blank = {
        name + end: scores[name + end].where(scores["class" + end].isin(HAS_THETA))
        for end in ("", "_norm")
        for name in scored
    }
    for name in ("theta_low", "theta_high"):
        blank[name] = scores[name].where(scores["class"].isin(HAS_THETA))
    onsets = ("onset_v", "onset_attention", "onset_entropy", "onset_v_norm", "onset_attention_norm")
    known = dict.fromkeys(onsets, scores["is_finite"])
    known |= dict.fromkeys(OF_GAINS, scores["class"] != WHOLE_ONLY)
    known["onset_v"] = known["onset_v"] & ~scores["class"].isin([WHOLE_ONLY, "silent", "attention-only"])
    known["onset_attention"] = known["onset_attention"] & ~scores["class"].isin(
        [WHOLE_ONLY, "silent", "V-only"]
    )
    return scores.assign(**blank, **{name: scores[name].where(mask) for name, mask in known.items()})


def layer_cells(run: Run, scores: Frame) -> Frame:
    """Summarise each cell and layer: majority classes, medians and quartiles over the seeds.

    Diverged trials are left out of medians, and cells of a class without a Theta have none.  *_reached counts
    the trials that have an onset.
    """
    names = telling_settings(run)
    cell = cell_of_rows(scores, names)
    place = 1000 * cell + scores["layer"].to_numpy()  # no model has 1000 layers
    keys, number, size = np.unique(place, return_inverse=True, return_counts=True)
    first = np.unique(place, return_index=True)[1]
    table = scores[[*names, "layer", "part"]].iloc[first].reset_index(drop=True)
    columns: dict[str, Any] = dict(cell=keys // 1000, trials=size)
    columns["diverged"] = np.bincount(number, scores["class"] == "diverged").astype(int)
    for end in ("", "_norm"):
        kinds = majority(number, scores["class" + end].to_numpy(), LAYER_CLASSES)
        columns["class" + end], columns["agreement" + end] = kinds
    values = scores[[name for name in MEDIANS if name in scores]].where(scores["is_finite"])
    groups = values.groupby(number)
    columns |= {str(name): median.to_numpy() for name, median in groups.median().items()}
    for share, end in ((0.25, "_q25"), (0.75, "_q75")):
        found = groups[list(QUARTILES)].quantile(share)
        columns |= {f"{name}{end}": found[name].to_numpy() for name in QUARTILES}
    for name in (name for name in columns if name.startswith(("theta", "log_lag"))):
        own = columns["class_norm" if name.endswith("_norm") else "class"]
        columns[name] = np.where(np.isin(own, HAS_THETA), columns[name], np.nan)
    columns |= {f"{name}_reached": groups[name].count().to_numpy() for name in ONSETS}
    return table.assign(**columns)


def models(run: Run, scores: Frame) -> Frame:
    """Summarise each cell: which of its layers are two-stage, and in which order they start.

    `holds` uses the majority class of each layer: EVERY, SOME or NONE is two-stage; UNDECIDED if some are
    undecided and all others two-stage; WHOLE_ONLY if layers have no P of their own.  `direction` uses the
    median over seeds of `rank_order`, by the step at which attention leaves uniform; `direction_v` is the
    same for V.  `order` lists the layers by median onset.
    """
    names, cells = telling_settings(run), layer_cells(run, scores)
    whole, single = cells.loc[cells["layer"] == ALL], cells.loc[cells["layer"] != ALL]
    kinds = single.groupby("cell")["class"]
    counts = {
        f"{kind}_layers": (single["class"] == name).groupby(single["cell"]).sum()
        for kind, name in (("two_stage", "two-stage"), ("undecided", UNDECIDED), ("unsplit", WHOLE_ONLY))
    }
    table = whole.drop(columns=["layer", "part"]).set_index("cell").assign(depth=kinds.size(), **counts)
    whole_numbers = ["depth", *counts]
    table[whole_numbers] = table[whole_numbers].fillna(0).astype(int)
    depth, found, unsure, unsplit = (table[name] for name in whole_numbers)
    has_layers = depth > 0
    rules = {
        WHOLE_ONLY: has_layers & (unsplit == depth),
        EVERY: has_layers & (found == depth),
        UNDECIDED: has_layers & (found + unsure == depth),
        SOME: found > 0,
    }
    table["holds"] = np.select(list(rules.values()), list(rules), NONE)
    cell = pd.Series(cell_of_rows(scores, names), scores.index).groupby(scores["trial_id"]).first()
    record_every, rare_every, per_decade = (
        column(run.trials, name).max() if name in run.trials else default
        for name, default in (("record_every", 0.0), ("rare_every", 1.0), (PER_DECADE, 0.0))
    )
    gaps = (Gap.of(record_every, per_decade), Gap.of(record_every, per_decade, rare_every))
    for onset, end, gap in (("onset_entropy", "", gaps[0]), ("onset_v", "_v", gaps[1])):
        rank = rank_order(scores, onset, gap)
        median = rank.groupby(cell.reindex(rank.index)).median()
        table["direction" + end] = [direction(value) for value in median.reindex(table.index)]
        onsets = single.pivot(index="cell", columns="layer", values=onset).reindex(table.index)
        rows = zip(onsets.to_numpy(float), table["depth"], strict=True)
        table["order" + end] = [order_text(row[:layers], gap) for row, layers in rows]
    table["order_v"] = table["order_v"].where(table["holds"] != WHOLE_ONLY, "-")
    return table.reset_index()


def rank_order(scores: Frame, onset: str, gap: Gap) -> pd.Series:
    """Score the order in which the layers of each trial start: +1 from first to last, -1 from last to first.

    The score is the mean over pairs of layers; a pair counts 0 if both start within one record.  A layer that
    never starts comes after all others.  NaN if none starts, or if there is only one layer.
    """
    single = scores.loc[(scores["layer"] != ALL) & scores["is_finite"]]
    there = single.assign(start=single[onset].fillna(np.inf)).pivot(
        index="trial_id", columns="layer", values="start"
    )
    start = there.to_numpy(float)
    pairs = [pair_signs(one, other, gap) for one, other in combinations(start.T, 2)]
    signs = np.column_stack(pairs) if pairs else np.full((len(start), 1), np.nan)
    known = np.isfinite(signs).sum(axis=1)
    mean = np.nansum(signs, axis=1) / np.where(known > 0, known, np.nan)
    return pd.Series(np.where(np.isfinite(start).any(axis=1), mean, np.nan), there.index)


def pair_signs(one: Array, other: Array, gap: Gap) -> Array:
    """Return +1 where the first starts earlier, -1 where later, 0 within one record; inf means never."""
    with np.errstate(invalid="ignore"):
        apart = other - one  # NaN where both never start
        is_apart = np.abs(apart) > gap.at(np.minimum(one, other))
    sign = np.where(is_apart, np.sign(apart), 0.0)
    return np.where(np.isnan(one) | np.isnan(other), np.nan, sign)


def direction(rank: float) -> str:
    """Put a rank order into words; empty if there is none."""
    if not np.isfinite(rank):
        return ""
    if rank == 0:
        return "together"
    return "mixed" if abs(rank) < 0.5 else DIRECTIONS[0 if rank > 0 else 1]


def order_text(onsets: Sequence[float], gap: Gap) -> str:
    """Write the layers in the order of their onsets: "2 < 1 ≈ 3; never 4"; ≈ is within one record."""
    start = sorted((step, layer) for layer, step in enumerate(onsets, 1) if np.isfinite(step))
    text = "".join(
        str(layer)
        if not place
        else f" {'≈' if step - start[place - 1][0] <= gap.at(start[place - 1][0]) else '<'} {layer}"
        for place, (step, layer) in enumerate(start)
    )
    never = [str(layer) for layer, step in enumerate(onsets, 1) if not np.isfinite(step)]
    return "; ".join([text] * bool(text) + [f"never {', '.join(never)}"] * bool(never)) or "-"
