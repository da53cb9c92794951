"""Findings of a run of deeper models, in sentences: which layers are two-stage, and in which order."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status
from topicjax.theory.progress import CUTS

from ..frames import Frame
from ..layers import ALL, LEAVES_UNIFORM, WHOLE, telling_settings
from ..pictures import first_of, setting_text
from .scores import DIRECTIONS, EVERY, LAYER_CLASSES, SOME, layer_cells, models

COMPARED = (
    "layers",
    "heads",
    "residual",
    "layer_norm",
    "mlp",
    "output_projection",
    "init",
    "init_scale",
    "optimizer",
)
NOT_JUDGED = ("diverged", "no-learning", "unfinished")  # of a whole model
WORDS = {  # word: (meaning, pattern of its uses)
    "P and Q": (
        "what values add when attention is forced uniform, compared with attention silenced (P), and what "
        f"trained attention adds on top (Q), in nats of held-out loss; '{WHOLE}': of the whole model. While "
        "the outputs of uniform attention grow from 0 to 1 in all layers at once, the loss falls by P; each "
        "layer gets the part of it that comes through its own output. The same with scores gives Q. So the "
        "layers add up to the whole. Layer norms keep their scales of uniform attention while outputs grow. "
        "Without residual connections every layer has the same P, so only that of the whole model says "
        "anything",
        r"P and Q|P|Q",
    ),
    "Θ (Theta)": (
        "the maximum over the steps of min(F_V, 1 - F_A), where F_V and F_A are the monotone rises of P and "
        "Q from 0 to 1 on the way up (to the lowest loss): 1 if V was done before attention began",
        r"Θ",
    ),
    "two-stage": (f"Θ of at least {CUTS.two_stage:g}", r"[Tt]wo-stage"),
    "stage 2 begun": (
        f"Θ of at least {CUTS.two_stage:g}, but the attention of all layers together gained less than "
        f"{CUTS.stage2:.0%} of what topics give a one-layer model",
        r"stage 2 begun",
    ),
    "reversed": ("attention first", r"reversed"),
    "simultaneous": (f"Θ and its reverse are below {CUTS.simultaneous:g}", r"simultaneous"),
    "V leads, attention leads": (
        "between two-stage and simultaneous, and between reversed and simultaneous",
        r"V leads|attention leads",
    ),
    "V-only, attention-only": (
        f"the other adds nothing: less than {CUTS.attention:.0%} of what topics give a one-layer model, or "
        "no more than the noise of the records or, for attention that neither follows nor avoids the topics, "
        "than the error over held-out documents",
        r"V-only|attention-only",
    ),
    "silent": ("the layer adds nothing at all", r"silent"),
    "unscored": (
        "the gain from values or from attention only falls from its initial value, as can happen with the "
        "default initialisation; by the norms: a norm only falls",
        r"unscored",
    ),
    "unfinished": (
        f"the loss came less than {CUTS.finished:.0%} of the way to the best loss of uniform attention in "
        "one layer",
        r"unfinished",
    ),
    "no-learning": (f"the same, less than {CUTS.no_learning:.0%}", r"no-learning"),
    "by the norms": (
        "the same score for the rises of |W^V| and of (|W^K| + |W^Q|) / 2, as plotted in the paper's figures",
        r"[Bb]y the norms",
    ),
    "attention leaves its start": (
        f"its entropy is {LEAVES_UNIFORM:g} nats lower than at step 0",
        r"attention leaves its start",
    ),
}


def findings(run: Run, scores: Frame, cells: Frame, state: Status) -> Iterator[str]:
    """Yield the sentences of the answer, the main one first."""
    table, layers = models(run, scores), layer_cells(run, scores)
    if not last_run(run.manifest).get("claims"):  # their verdicts say the same
        yield from answer(table)
        yield from by_setting(run, table)
        yield from topics(layers, table)
    yield from by_layer(layers)
    yield from order(table)
    yield from norms(layers)
    yield from doubts(table, layers)


def answer(table: Frame) -> Iterator[str]:
    """Count the cells with two stages in every layer, in some, in none."""
    deep = table.loc[table["depth"] > 1]
    judged = deep.loc[~deep["class"].isin(NOT_JUDGED)]
    if len(judged):
        every, some = (count_of(judged["holds"] == kind) for kind in (EVERY, SOME))
        word = "Yes" if every == len(judged) else "No" if every == 0 else "Not always"
        yield (
            f"Do all layers behave like the one-layer model? {word}: of {counted(len(judged), 'cell')} with "
            f"several layers that learned, {every} {are(every)} two-stage (V first, then attention) in every "
            f"layer, {some} in some, {len(judged) - every - some} in none."
        )
        whole = judged["class"] == "two-stage"
        hidden = count_of(whole & (judged["holds"] != EVERY))
        yield (
            f"Scored as a whole, {count_of(whole)} of these models are two-stage"
            + (f", {hidden} of them without being so in every layer." if hidden else ".")
        )
    elif len(deep):
        yield f"None of {counted(len(deep), 'cell')} with several layers learned enough to be scored."
    single = table.loc[table["depth"] <= 1]
    if len(single):
        hits = count_of(single["class"] == "two-stage")
        yield f"Of {counted(len(single), 'cell')} with one layer, {hits} {are(hits)} two-stage."


def by_setting(run: Run, table: Frame) -> Iterator[str]:
    """Count the cells with two stages in every layer (in some) for each setting that varies."""
    deep = table.loc[(table["depth"] > 1) & ~table["class"].isin(NOT_JUDGED)]
    parts = []
    for name in (name for name in COMPARED if name in telling_settings(run)):
        groups = list(deep.groupby(name, dropna=False))
        if len(groups) < 2:
            continue
        texts = [
            f"{setting_text(name, value)} {count_of(own['holds'] == EVERY)}"
            f" (+{count_of(own['holds'] == SOME)}) of {len(own)}"
            for value, own in groups
        ]
        parts.append(first_of(texts))
    if parts:
        yield f"Two stages in every layer (+ only in some), by setting: {'; '.join(parts)}."


def by_layer(cells: Frame) -> Iterator[str]:
    """Count how often each layer of the deepest models has each class."""
    depth = cells.groupby("cell")["layer"].transform("max")
    deepest = cells.loc[(depth == depth.max()) & (cells["layer"] != ALL)]
    deepest = deepest.loc[~deepest["class"].isin(NOT_JUDGED)]
    if depth.max() < 2 or deepest.empty:
        return
    texts = []
    for layer, own in deepest.groupby("layer"):
        counts = own["class"].value_counts()
        named = [f"{counts[kind]} {kind}" for kind in LAYER_CLASSES if kind in counts]
        texts.append(f"layer {layer}: {', '.join(named)}")
    yield f"In models of {counted(int(depth.max()), 'layer')}, {first_of(texts, '; ')}."


def order(table: Frame) -> Iterator[str]:
    """Say in which order attention and V start."""
    judged = table.loc[~table["class"].isin(NOT_JUDGED)]
    for column, what in (("direction", "Attention leaves its start"), ("direction_v", "V gets half way")):
        known = judged.loc[judged[column] != "", column].value_counts()
        if len(known):
            texts = [f"{kind} in {known[kind]}" for kind in DIRECTIONS if kind in known]
            yield f"{what}: {', '.join(texts)} of {counted(int(known.sum()), 'cell')}."


def norms(cells: Frame) -> Iterator[str]:
    """Say where the norms are misleading."""
    judged = cells.loc[(cells["layer"] != ALL) & ~cells["class"].isin(NOT_JUDGED)]
    if judged.empty:
        return
    loss, norm = judged["class"] == "two-stage", judged["class_norm"] == "two-stage"
    differ = count_of(judged["class"] != judged["class_norm"])
    if not differ:
        yield f"Norms and loss give all {counted(len(judged), 'layer')} the same class."
        return
    wrong = judged.loc[norm & ~loss, "class"].value_counts()
    named = ", ".join(f"{count} {kind}" for kind, count in wrong.items())
    yield (
        f"Norms are misleading: they disagree with the loss on the class of {differ} of "
        f"{counted(len(judged), 'layer')}. They call {count_of(norm)} two-stage, {count_of(norm & ~loss)} of "
        f"them wrongly{f' ({named})' if named else ''}, and miss {count_of(loss & ~norm)} of the "
        f"{count_of(loss)} that are two-stage by the loss."
    )


def topics(cells: Frame, table: Frame) -> Iterator[str]:
    """Say how closely the final attention and embeddings follow the topics."""
    single = cells.loc[(cells["layer"] != ALL) & np.isfinite(cells["topic_shift"])]
    if len(single):
        shift, cut = single["topic_shift"], CUTS.attention
        low, middle, high = np.percentile(single["topic_ratio"], [25, 50, 75])
        yield (
            f"At the end, {count_of(shift >= cut)} of {counted(len(single), 'layer')} attend to words of the "
            f"same topic more than at step 0, relative to other topics, {count_of(shift <= -cut)} less, and "
            f"in {count_of(shift.abs() < cut)} the ratio has changed by less than {cut:.0%} (same / "
            f"different: median {middle:.2f}, quartiles {low:.2f} and {high:.2f}{by_depth(single)})."
        )
    block = table["e_block"].dropna() if "e_block" in table else pd.Series(dtype=float)
    if len(block):
        yield (
            f"Embeddings are closer within a topic than between topics in {count_of(block > 0)} of "
            f"{counted(len(block), 'cell')} (difference of inner products: median {block.median():.2f})."
        )


def by_depth(single: Frame) -> str:
    """Write the median ratio of each layer of the deepest models; empty if they have one layer."""
    depth = single.groupby("cell")["layer"].transform("max")
    medians = single.loc[depth == depth.max()].groupby("layer")["topic_ratio"].median()
    texts = [f"layer {layer} {ratio:.2f}" for layer, ratio in medians.items()]
    return f"; in the deepest models {first_of(texts)}" if len(texts) > 1 else ""


def doubts(table: Frame, cells: Frame) -> Iterator[str]:
    """Say what was not scored, and whether seeds agree."""
    counts = table["class"].value_counts()
    left = [f"{counts[kind]} {kind}" for kind in NOT_JUDGED if kind in counts]
    if left:
        yield f"Cells that are not scored: {', '.join(left)}."
    begun = count_of(cells.loc[cells["layer"] != ALL, "class"].isin(["stage 2 begun", "V-only"]))
    if begun:
        yield (
            f"More steps could change the class of {counted(begun, 'layer')} that are V-only or have just "
            "begun stage 2."
        )
    several = cells.loc[cells["trials"] > 1]
    if several.empty:
        yield "Every cell has one seed, so this run cannot say how much the seed matters."
    else:
        split = count_of(several["agreement"] < 1)
        yield f"The seeds disagree on the class in {split} of {len(several)} squares of the map."


def count_of(which: Iterable[bool]) -> int:
    """Count the true values."""
    return int(np.count_nonzero(np.asarray(which)))


def are(count: int) -> str:
    """Choose "is" or "are"."""
    return "is" if count == 1 else "are"
