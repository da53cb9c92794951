"""Findings of a run of deeper models, in sentences: which layers are two-stage, and in which order."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status

from ..frames import Frame, cell_of_rows
from ..layers import ALL, LEAVES_UNIFORM, WHOLE, telling_settings
from ..pictures import first_of, setting_text
from .scores import (
    DIRECTIONS,
    DOCUMENT_ERRORS,
    EVERY,
    LAYER_CLASSES,
    LAYER_CUTS,
    SOME,
    UNDECIDED,
    WHOLE_ONLY,
    classified,
    layer_cells,
    measured,
    models,
)

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
    "p_keep",
    "batch_size",
    "width",
)
CONTROLS = ("p_keep", "batch_size", "width", "mlp")  # changed one at a time, with all other settings equal
NOT_JUDGED = ("diverged", "no-learning", "unfinished")  # of a whole model
NOT_OF_LAYERS = (*NOT_JUDGED, WHOLE_ONLY)
VARIED = {  # cut: (other values, how they are written, in units of)
    "moved_errors": ((2.0, 4.0), "moved beyond {:g} standard errors", 1.0),
    "moved_share": ((0.025, 0.1), "moved beyond {:g} % of the whole", 0.01),
    "two_stage": ((0.85, 0.95), "two-stage from Θ {:g} on", 1.0),
}
WORDS = {  # word: (meaning, pattern of its uses)
    "P and Q": (
        "what values add when attention is forced uniform, compared with attention silenced (P), and what "
        f"trained attention adds on top (Q), in nats of held-out loss; '{WHOLE}': of the whole model. While "
        "the outputs of uniform attention grow from 0 to 1 in all layers at once, the loss falls by P; each "
        "layer gets the part of it that comes through its own output. The same with scores gives Q. So the "
        "layers add up to the whole. Layer norms keep their scales of uniform attention while outputs grow",
        r"P and Q|P|Q",
    ),
    "Θ (Theta)": (
        "the maximum over the steps of min(F_V, 1 - F_A), where F_V and F_A are the monotone rises of P and "
        "Q from 0 to 1 on the way up (to the lowest loss): 1 if V was done before attention began",
        r"Θ",
    ),
    "two-stage": (f"Θ of at least {LAYER_CUTS.two_stage:g}", r"[Tt]wo-stage"),
    "stage 2 begun": (
        f"Θ of at least {LAYER_CUTS.two_stage:g}, but the attention of all layers together gained less than "
        f"{LAYER_CUTS.stage2:.0%} of what topics give a one-layer model",
        r"stage 2 begun",
    ),
    "reversed": ("attention first", r"reversed"),
    "simultaneous": (f"Θ and its reverse are below {LAYER_CUTS.simultaneous:g}", r"simultaneous"),
    "V leads, attention leads": (
        "between two-stage and simultaneous, and between reversed and simultaneous",
        r"V leads|attention leads",
    ),
    "undecided": (
        f"the range of Θ reaches across {LAYER_CUTS.two_stage:g}. The range is found by shifting P and Q up "
        f"or down by {DOCUMENT_ERRORS:g} standard errors over held-out documents, at all records alike; it "
        "is not a bootstrap interval, because losses of single documents are not recorded",
        r"undecided",
    ),
    "V-only, attention-only": (
        "the other did not move: a part moved if the largest value of its P or Q exceeds "
        f"{LAYER_CUTS.moved_errors:g} standard errors over held-out documents and, beyond the noise between "
        f"records, {LAYER_CUTS.moved_share:.0%} of that of all layers together",
        r"V-only|attention-only",
    ),
    "silent": ("neither values nor attention moved", r"silent"),
    WHOLE_ONLY: (
        "a layer of a model without residual connections: there every layer has the same P by construction, "
        "so only the whole model has a class",
        WHOLE_ONLY,
    ),
    "unscored": (
        "the gain from values or from attention only falls from its initial value, as can happen with the "
        "default initialisation; by the norms: a norm only falls",
        r"unscored",
    ),
    "unfinished": (
        f"the loss came less than {LAYER_CUTS.finished:.0%} of the way to the best loss of uniform attention "
        "in one layer",
        r"unfinished",
    ),
    "no-learning": (f"the same, less than {LAYER_CUTS.no_learning:.0%}", r"no-learning"),
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
    yield from controls(run, table)
    yield from order(table)
    yield from norms(layers)
    yield from doubts(table, layers)
    yield from sensitivity(run, table, layers)


def answer(table: Frame) -> Iterator[str]:
    """Count the cells with two stages in every layer, in some, in none."""
    deep = table.loc[table["depth"] > 1]
    judged = deep.loc[~deep["class"].isin(NOT_JUDGED)]
    if len(judged):
        split = judged.loc[judged["holds"] != WHOLE_ONLY]
        every, some, unsure = (count_of(split["holds"] == kind) for kind in (EVERY, SOME, UNDECIDED))
        word = "Yes" if every == len(split) else "No" if every + unsure == 0 else "Not always"
        if len(split):
            yield (
                f"Do all layers behave like the one-layer model? {word}: of {counted(len(split), 'cell')} "
                f"with several layers that learned, {every} {are(every)} two-stage (V first, then attention) "
                f"in every layer, {some} in some, {len(split) - every - some - unsure} in none, {unsure} "
                f"{are(unsure)} undecided."
            )
        whole = judged["class"] == "two-stage"
        hidden = count_of(whole & (judged["holds"] != EVERY))
        yield (
            f"Scored as a whole, {count_of(whole)} of {counted(len(judged), 'such model')} are two-stage and "
            f"{count_of(judged['class'] == UNDECIDED)} undecided"
            + (f"; {hidden} of those that are two-stage are not so in every layer." if hidden else ".")
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
    deep = deep.loc[deep["holds"] != WHOLE_ONLY]
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
    deepest = deepest.loc[~deepest["class"].isin(NOT_OF_LAYERS)]
    if depth.max() < 2 or deepest.empty:
        return
    texts = []
    for layer, own in deepest.groupby("layer"):
        counts = own["class"].value_counts()
        named = [f"{counts[kind]} {kind}" for kind in LAYER_CLASSES if kind in counts]
        texts.append(f"layer {layer}: {', '.join(named)}")
    yield f"In models of {counted(int(depth.max()), 'layer')}, {first_of(texts, '; ')}."


def controls(run: Run, table: Frame) -> Iterator[str]:
    """Compare models in which one thing is changed with those that differ in it alone."""
    judged = table.loc[(table["depth"] > 1) & ~table["class"].isin(NOT_JUDGED)]
    parts = []
    for name in (name for name in CONTROLS if name in telling_settings(run)):
        for value, changed, usual in pairs(run, judged, name):
            texts = [
                f"{count_of(own['class'] == 'two-stage')} two-stage, {count_of(own['class'] == UNDECIDED)} "
                f"undecided (median Θ {own['theta'].median():.2f})"
                for own in (changed, usual)
            ]
            parts.append(
                f"{setting_text(name, value)}: {texts[0]} of {len(changed)}, without the change {texts[1]}"
            )
    if parts:
        yield f"One thing changed at a time, whole models: {first_of(parts, '; ')}."


def pairs(run: Run, table: Frame, name: str) -> Iterator[tuple[Any, Frame, Frame]]:
    """Pair cells with each rarer value of a setting with those at its most frequent value, all else equal."""
    key = cell_of_rows(table, [other for other in telling_settings(run) if other != name])
    keyed = table.assign(key=key)
    is_usual = keyed[name] == keyed[name].mode().max()
    usual = keyed.loc[is_usual]
    for value, own in keyed.loc[~is_usual].groupby(name):
        both = own.loc[own["key"].isin(usual["key"])], usual.loc[usual["key"].isin(own["key"])]
        if len(both[0]):
            yield value, *both


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
    left_out = (*NOT_OF_LAYERS, UNDECIDED)
    judged = cells.loc[(cells["layer"] != ALL) & ~cells["class"].isin(left_out)]
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
        shift, cut = single["topic_shift"], LAYER_CUTS.attention
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
    several = cells.loc[(cells["trials"] > 1) & (cells["class"] != WHOLE_ONLY)]
    if (cells["trials"] == 1).all():
        yield "Every cell has one seed, so this run cannot say how much the seed matters."
    else:
        split = count_of(several["agreement"] < 1)
        yield f"The seeds disagree on the class in {split} of {len(several)} squares of the map."


def sensitivity(run: Run, table: Frame, cells: Frame) -> Iterator[str]:
    """Count the whole models and single layers whose class changes with each cut, changed alone."""
    judged = table.loc[(table["depth"] > 1) & ~table["class"].isin(NOT_JUDGED), "cell"]
    is_judged = cells["cell"].isin(judged) & (cells["class"] != WHOLE_ONLY)
    whole, single = is_judged & (cells["layer"] == ALL), is_judged & (cells["layer"] != ALL)
    if not whole.any():
        return
    found, parts = measured(run), []
    for name, (values, form, unit) in VARIED.items():
        used = form.format(getattr(LAYER_CUTS, name) / unit)
        texts = []
        for value in values:
            varied = layer_cells(run, classified(found, replace(LAYER_CUTS, **{name: value})))
            changes = varied["class"] != cells["class"]
            texts.append(
                f"with {value / unit:g}: {count_of(changes & whole)} and {count_of(changes & single)}"
            )
        parts.append(f"{used} ({', '.join(texts)})")
    yield (
        f"Sensitivity to the cuts, as the numbers of {counted(count_of(whole), 'whole model')} and of "
        f"{counted(count_of(single), 'single layer')} whose class changes: {'; '.join(parts)}."
    )


def count_of(which: Iterable[bool]) -> int:
    """Count the true values."""
    return int(np.count_nonzero(np.asarray(which)))


def are(count: int) -> str:
    """Choose "is" or "are"."""
    return "is" if count == 1 else "are"
