"""Claims about deeper encoders on topic documents: are their layers like the one-layer model?

A cell (trials that differ only in the seed) counts by the most frequent class of its trials.  Cells that
diverged, did not learn or did not finish are not judged.
"""

import numpy as np

from topicjax.errors import counted
from topicjax.store.reader import Run
from topicjax.theory.progress import CUTS

from ..frames import Frame
from ..layers import ALL
from ..page.contract import Claim, Verdict
from ..pictures import first_of
from .findings import NOT_JUDGED, by_setting, count_of
from .scores import EVERY, SOME, layer_cells, models

CHANGE = (
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
        f"layer, {some} in some layers and {len(judged) - every - some} in none; the seeds "
        "agree on the whole "
        f"model in {count_of(judged['agreement'] == 1)}. {settings}"
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
    others = judged["class"][~whole].value_counts()
    named = ", ".join(f"{count} {kind}" for kind, count in others.items())
    text = (
        f"All layers together are two-stage in {whole.sum()} of {counted(len(judged), 'cell')} with several "
        f"layers that learned{spread}" + (f"; the others are {named}." if named else ".")
    )
    verdict = "holds" if whole.all() else "partly" if whole.any() else "fails"
    return Verdict(verdict, text, CHANGE, cells=len(judged), two_stage=int(whole.sum()))


def attention_by_layer(run: Run, scores: Frame) -> Verdict:
    """Check that attention of every layer of deeper models comes to favour words of the same topic."""
    cells = layer_cells(run, scores)
    deep = cells.groupby("cell")["layer"].transform("max") > 1
    single = cells.loc[(cells["layer"] != ALL) & deep & np.isfinite(cells["topic_shift"])]
    if single.empty:
        why = "No model with several layers has a measured attention by topic."
        return Verdict("undecided", why, "a run of depth")
    shift, ratio = single["topic_shift"].to_numpy(float), single.groupby("layer")["topic_ratio"]
    more, less = shift >= CUTS.attention, shift <= -CUTS.attention
    medians, low, high = ratio.median(), ratio.quantile(0.25), ratio.quantile(0.75)
    parts = [
        f"layer {layer} {medians[layer]:.2f} (quartiles over cells {low[layer]:.2f} to {high[layer]:.2f})"
        for layer in medians.index
    ]
    text = (
        f"Attention to the same topic, relative to other topics, rises by at least {CUTS.attention:.0%} in "
        f"{more.sum()} of {counted(len(single), 'layer')}, falls by as much in {less.sum()}, and stays in "
        f"{len(single) - more.sum() - less.sum()}; same / other topic at the end: {first_of(parts)}."
    )
    verdict = "holds" if more.all() else "partly" if more.any() else "fails"
    change = (
        "[MASK] queries apart from word queries: only words that are kept or random attend as words here."
    )
    return Verdict(verdict, text, change, layers=len(single), more=int(more.sum()), less=int(less.sum()))


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
        "Attention by layer",
        "Trained attention of every layer favours words of the same topic.",
        attention_by_layer,
        "Table 3, for deeper models",
        "layer_topics",
    ),
)
