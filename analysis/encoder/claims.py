"""Claims about deeper encoders on topic documents: are their layers like the one-layer model?

A cell (trials that differ only in the seed) counts by the most frequent class of its trials.  Cells that
diverged, did not learn or did not finish are not judged.
"""

import numpy as np

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..frames import Frame, cell_of_rows
from ..layers import ALL, telling_settings
from ..page.contract import Claim, Verdict
from ..pictures import first_of, setting_text
from .findings import NOT_JUDGED, by_setting, count_of
from .scores import EVERY, SOME, layer_cells, models

CHANGE = (  # what would change a verdict
    "more steps, where the gain by attention still rises; the threshold of Θ "
    f"({CUTS.two_stage:g}); more seeds where they disagree."
)


def every_layer(run: Run, scores: Frame) -> Verdict:
    """Check that every layer of models with several layers is two-stage."""
    judged = deep_models(run, scores)
    if judged.empty:
        return Verdict("undecided", "No model with several layers learned enough to be judged.", "more steps")
    every, some = (count_of(judged["holds"] == kind) for kind in (EVERY, SOME))
    settings = first_of([*by_setting(run, judged)], " ")
    text = (
        f"Of {counted(len(judged), 'cell')} with several layers that learned, {every} are two-stage in every "
        f"layer, {some} in some layers and {len(judged) - every - some} in none; the seeds agree on the "
        f"whole model in {count_of(judged['agreement'] == 1)}. {settings}"
    )
    verdict = "holds" if every == len(judged) else "fails" if every == 0 else "partly"
    return Verdict(verdict, text.strip(), CHANGE, cells=len(judged), every=every, some=some)


def whole_model(run: Run, scores: Frame) -> Verdict:
    """Check that models with several layers are two-stage as a whole."""
    judged = deep_models(run, scores)
    if judged.empty:
        return Verdict("undecided", "No model with several layers learned enough to be judged.", "more steps")
    whole = (judged["class"] == "two-stage").to_numpy()
    theta = judged["theta"].to_numpy(float)
    known = theta[np.isfinite(theta)]
    spread = f"; median Θ {known.min():.2f} to {known.max():.2f}" if len(known) else ""
    spans = (judged["theta_low"] < CUTS.two_stage) & (judged["theta_high"] >= CUTS.two_stage)
    others = judged["class"][~whole].value_counts()
    named = ", ".join(f"{count} {kind}" for kind, count in others.items())
    text = (
        f"All layers together are two-stage in {whole.sum()} of {counted(len(judged), 'cell')} with several "
        f"layers that learned{spread}"
        + (f"; the others are {named}." if named else ".")
        + f" Two standard errors over documents could move Θ across {CUTS.two_stage:g} in {count_of(spans)}."
    )
    verdict = "holds" if whole.all() else "partly" if whole.any() else "fails"
    return Verdict(verdict, text, CHANGE, cells=len(judged), two_stage=int(whole.sum()))


def layer_norm(run: Run, scores: Frame) -> Verdict:
    """Check that models with layer norms are not two-stage where the same models without them are."""
    judged = deep_models(run, scores)
    names = [name for name in telling_settings(run) if name != "layer_norm"]
    if "layer_norm" not in judged or judged["layer_norm"].nunique() < 2:
        return Verdict("undecided", "The run has no models with and without layer norms.", "a run of depth")
    is_two_stage = judged["class"] == "two-stage"
    cell = cell_of_rows(judged, names)
    without = judged["layer_norm"] == "none"
    has_stages = {own for own, staged in zip(cell[without], is_two_stage[without], strict=True) if staged}
    compared = judged.loc[~without & np.isin(cell, [*has_stages])]
    if compared.empty:
        return Verdict("undecided", "No model without layer norms is two-stage as a whole.", "more steps")
    kept = compared["class"] == "two-stage"
    texts = [
        f"{setting_text('layer_norm', norm)} {count_of(own['class'] == 'two-stage')} of {len(own)} "
        f"(median Θ {own['theta'].median():.2f})"
        for norm, own in compared.groupby("layer_norm")
    ]
    base = judged.loc[without & np.isin(cell, [*has_stages]), "theta"].median()
    text = (
        f"Where the same model without layer norms is two-stage as a whole (median Θ {base:.2f}), those with "
        f"them are two-stage in: {', '.join(texts)}."
    )
    verdict = "holds" if not kept.any() else "fails" if kept.all() else "partly"
    return Verdict(verdict, text, CHANGE, cells=len(compared), two_stage=int(kept.sum()))


def attention_by_layer(run: Run, scores: Frame) -> Verdict:
    """Check that attention of every layer of deeper models comes to favour words of the same topic.

    Queries of [MASK] decide, where they are recorded: nearly all predictions are theirs.
    """
    cells = layer_cells(run, scores)
    deep = cells.groupby("cell")["layer"].transform("max") > 1
    single = cells.loc[(cells["layer"] != ALL) & deep & np.isfinite(cells["topic_shift"])]
    if single.empty:
        why = "No model with several layers has a measured attention by topic."
        return Verdict("undecided", why, "a run of depth")
    texts, counts = [], {}
    for queries, who in (("mask_", "[MASK] queries"), ("", "word queries")):
        own = single.loc[np.isfinite(single[f"{queries}topic_shift"])]
        if own.empty:
            continue
        shift, ratio = (
            own[f"{queries}topic_shift"].to_numpy(float),
            own.groupby("layer")[f"{queries}topic_ratio"],
        )
        more, less = int((shift >= CUTS.attention).sum()), int((shift <= -CUTS.attention).sum())
        medians, low, high = ratio.median(), ratio.quantile(0.25), ratio.quantile(0.75)
        parts = [
            f"layer {layer} {medians[layer]:.2f} (quartiles over cells {low[layer]:.2f} to {high[layer]:.2f})"
            for layer in medians.index
        ]
        texts.append(
            f"{who}: attention to the same topic, relative to other topics, rises by at least "
            f"{CUTS.attention:.0%} in {more} of {counted(len(own), 'layer')}, falls by as much in {less} and "
            f"stays in {len(own) - more - less}; same / other topic at the end: {first_of(parts)}."
        )
        counts |= {f"{queries}layers": len(own), f"{queries}more": more, f"{queries}less": less}
    first = "mask_" if "mask_layers" in counts else ""
    more, layers = counts[f"{first}more"], counts[f"{first}layers"]
    verdict = "holds" if more == layers else "partly" if more else "fails"
    text = " ".join(text[0].upper() + text[1:] for text in texts)
    change = "more steps, where attention still moves; documents without kept and random words (p_keep = 0)."
    return Verdict(verdict, text, change, **counts)


def deep_models(run: Run, scores: Frame) -> Frame:
    """Select the cells of models with several layers that can be judged."""
    table = models(run, scores)
    return table.loc[(table["depth"] > 1) & ~table["class"].isin(NOT_JUDGED)].reset_index(drop=True)


CLAIMS = (
    Claim(
        "Every layer",
        "Every layer of a deeper model learns in two stages, V first and then attention.",
        every_layer,
        "section 8.1 and Figure 5, on topic documents",
        "layer_map",
    ),
    Claim(
        "Whole model",
        "A deeper model as a whole learns in two stages, V first and then attention.",
        whole_model,
        "section 8.1 and Figure 5, on topic documents",
        "layer_map",
    ),
    Claim(
        "Layer norm",
        "Layer norms remove the two stages of a deeper model.",
        layer_norm,
        "an earlier reading of the sweep depth",
        "layer_map",
    ),
    Claim(
        "Attention by layer",
        "Trained attention of every layer favours words of the same topic.",
        attention_by_layer,
        "Table 3, for deeper models",
        "layer_topics",
    ),
)
