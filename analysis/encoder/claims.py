"""Claims about deeper encoders on topic documents: how their layers compare with the one-layer model.

A cell (trials that differ only in the seed) counts by the most frequent class of its trials.  Cells that
diverged, did not learn or did not finish are not judged.  Undecided cells are counted apart: a claim about
all cells fails at cells that contradict it, and it holds only if none is undecided.
"""

import numpy as np

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows
from ..layers import ALL, telling_settings
from ..page.contract import Claim, Verdict
from ..pictures import first_of, setting_text
from .findings import NOT_JUDGED, by_setting, count_of, pairs
from .scores import EVERY, LAYER_CUTS, SOME, UNDECIDED, WHOLE_ONLY, layer_cells, models

CHANGE = (  # what would change a verdict
    "more steps, where the gain by attention still rises; more held-out documents, where Θ is undecided; the "
    f"threshold of Θ ({LAYER_CUTS.two_stage:g}); more seeds where they disagree."
)
CONTROL = "p_keep"  # without kept and random words all predictions are made by [MASK] queries


def verdict_of(supporting: int, contradicting: int, undecided: int) -> str:
    """Judge a claim about all cells by how many support it, contradict it, and are undecided."""
    if contradicting:
        return "partly" if supporting else "fails"
    return "undecided" if undecided or not supporting else "holds"


def every_layer(run: Run, scores: Frame) -> Verdict:
    """Check that every layer of models with several layers is two-stage."""
    judged = deep_models(run, scores)
    judged = judged.loc[judged["holds"] != WHOLE_ONLY]
    if judged.empty:
        return Verdict("undecided", "No model whose layers can be told apart learned enough.", "more steps")
    every, some, unsure = (count_of(judged["holds"] == kind) for kind in (EVERY, SOME, UNDECIDED))
    none = len(judged) - every - some - unsure
    verdict = verdict_of(every, some + none, unsure)
    settings = first_of([*by_setting(run, judged)], " ")
    text = (
        f"Of {counted(len(judged), 'cell')} with several layers and residual connections that learned, "
        f"{every} are two-stage in every layer, {some} in some layers, {none} in none and {unsure} undecided "
        "(every layer is two-stage or undecided); the seeds agree on the whole model in "
        f"{count_of(judged['agreement'] == 1)}. {settings}"
    )
    return Verdict(verdict, text.strip(), CHANGE, cells=len(judged), every=every, some=some, undecided=unsure)


def whole_model(run: Run, scores: Frame) -> Verdict:
    """Check that models with several layers are two-stage as a whole."""
    judged = deep_models(run, scores)
    if judged.empty:
        return Verdict("undecided", "No model with several layers learned enough to be judged.", "more steps")
    whole, unsure = (count_of(judged["class"] == kind) for kind in ("two-stage", UNDECIDED))
    theta = judged["theta"].to_numpy(float)
    known = theta[np.isfinite(theta)]
    spread = f" (median Θ of all {known.min():.2f} to {known.max():.2f})" if len(known) else ""
    others = judged["class"][~judged["class"].isin(["two-stage", UNDECIDED])].value_counts()
    named = ", ".join(f"{count} {kind}" for kind, count in others.items())
    text = (
        f"All layers together are two-stage in {whole} of {counted(len(judged), 'cell')} with several layers "
        f"that learned and undecided in {unsure}{spread}" + (f"; the others are {named}." if named else ".")
    )
    verdict = verdict_of(whole, len(judged) - whole - unsure, unsure)
    return Verdict(verdict, text, CHANGE, cells=len(judged), two_stage=whole, undecided=unsure)


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
        why = "No model without layer norms is two-stage as a whole and has one with them."
        return Verdict("undecided", why, "more steps")
    kept, unsure = (count_of(compared["class"] == kind) for kind in ("two-stage", UNDECIDED))
    texts = [
        f"{setting_text('layer_norm', norm)} {count_of(own['class'] == 'two-stage')} of {len(own)}, "
        f"{count_of(own['class'] == UNDECIDED)} undecided (median Θ {own['theta'].median():.2f})"
        for norm, own in compared.groupby("layer_norm")
    ]
    base = judged.loc[without & np.isin(cell, [*has_stages]), "theta"].median()
    text = (
        f"Where the same model without layer norms is two-stage as a whole (median Θ {base:.2f}), those with "
        f"them are two-stage in: {'; '.join(texts)}."
    )
    verdict = verdict_of(len(compared) - kept - unsure, kept, unsure)
    return Verdict(verdict, text, CHANGE, cells=len(compared), two_stage=kept, undecided=unsure)


def attention_by_layer(run: Run, scores: Frame) -> Verdict:
    """Check that attention of every layer of deeper models comes to favour words of the same topic.

    Queries of [MASK] decide, where they are recorded: nearly all predictions are theirs.  Documents without
    kept and random words are a control: they are told apart and do not count towards the verdict.
    """
    cells = layer_cells(run, scores)
    deep = cells.groupby("cell")["layer"].transform("max") > 1
    single = cells.loc[(cells["layer"] != ALL) & deep & np.isfinite(cells["topic_shift"])]
    if single.empty:
        why = "No model with several layers has a measured attention by topic."
        return Verdict("undecided", why, "a run of depth")
    is_control = (single[CONTROL] == 0) if CONTROL in single else np.zeros(len(single), bool)
    judged = single.loc[~is_control] if not is_control.all() else single
    texts: list[str] = []
    counts: dict[str, int] = {}
    for queries, who in (("mask_", "[MASK] queries"), ("", "word queries")):
        own = judged.loc[np.isfinite(judged[f"{queries}topic_shift"])]
        if own.empty:
            continue
        more, less, moves = moves_of(own, queries)
        ratio = own.groupby("layer")[f"{queries}topic_ratio"]
        medians, low, high = ratio.median(), ratio.quantile(0.25), ratio.quantile(0.75)
        parts = [
            f"layer {layer} {medians[layer]:.2f} (quartiles over cells {low[layer]:.2f} to {high[layer]:.2f})"
            for layer in medians.index
        ]
        texts.append(
            f"{who}: attention to the same topic, relative to other topics, {moves}; same / other topic at "
            f"the end: {first_of(parts)}."
        )
        counts |= {f"{queries}layers": len(own), f"{queries}more": more, f"{queries}less": less}
    first = "mask_" if "mask_layers" in counts else ""
    more, layers = counts[f"{first}more"], counts[f"{first}layers"]
    control, numbers = without_kept_words(run, single, first)
    verdict = "holds" if more == layers else "partly" if more else "fails"
    text = " ".join([text[0].upper() + text[1:] for text in texts] + control)
    change = "more steps, where attention still moves"
    change += "." if control else "; documents without kept and random words (p_keep = 0)."
    return Verdict(verdict, text, change, **counts, **numbers)


def without_kept_words(run: Run, single: Frame, queries: str) -> tuple[list[str], dict[str, int]]:
    """Compare layers of models without kept and random words with those of the same models with them."""
    if CONTROL not in single:
        return [], {}
    known = single.loc[np.isfinite(single[f"{queries}topic_shift"])]
    for value, control, usual in pairs(run, known, CONTROL):
        if value != 0:
            continue
        more, less, moves = moves_of(control, queries)
        _, usual_less, usual_moves = moves_of(usual, queries)
        ratios = [own[f"{queries}topic_ratio"].median() for own in (control, usual)]
        who = "[MASK] queries" if queries else "word queries"
        text = (
            f"Control without kept and random words, {who}: {moves} (same / other topic {ratios[0]:.2f}, "
            f"median); in the same models with them: {usual_moves} ({ratios[1]:.2f})."
        )
        counts = dict(
            layers=len(control), more=more, less=less, usual_layers=len(usual), usual_less=usual_less
        )
        return [text], {f"control_{name}": count for name, count in counts.items()}
    return [], {}


def moves_of(layers: Frame, queries: str) -> tuple[int, int, str]:
    """Count the layers whose attention to the same topic rises and falls, and say it."""
    shift = layers[f"{queries}topic_shift"].to_numpy(float)
    more, less = count_of(shift >= LAYER_CUTS.attention), count_of(shift <= -LAYER_CUTS.attention)
    words = (
        f"rises by at least {LAYER_CUTS.attention:.0%} in {more} of {counted(len(layers), 'layer')}, falls "
        f"by as much in {less} and stays in {len(layers) - more - less}"
    )
    return more, less, words


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
