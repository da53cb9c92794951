"""Findings of a run on text, in sentences: the shape of the paper's Figure 5, and the use of context."""

from collections.abc import Iterator
from typing import Any

from topicjax.errors import counted
from topicjax.stages import HALF
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status

from ..encoder.findings import count_of
from ..frames import Frame
from ..layers import telling_settings
from ..pictures import described, first_of, setting_text
from .scores import AROUND, ERRORS, FIGURE5, GROWTH, LEADS, LITTLE, SHAPES, STILL, TOGETHER, text_cells

WORDS = {  # word: (meaning, pattern of its uses)
    FIGURE5: (
        f"the shape of the paper's Figure 5, by norms: when |W^V| has made {HALF:.0%} of its rise, "
        f"(|W^K| + |W^Q|)/2 has made less than {LITTLE:.0%} of its own",
        FIGURE5,
    ),
    LEADS: ("V is half way earlier than K and Q, but these have begun", LEADS),
    TOGETHER: ("K and Q are half way no later than V", TOGETHER),
    STILL: (
        f"a norm grows by less than a factor of {GROWTH:g}, as it does from the usual initial weights, so "
        "the order of the rises means nothing",
        STILL,
    ),
    "unigram line": (
        "the loss of predicting each word by its frequency in the training documents, on the same held-out "
        "words as the losses. A model above it does not use context yet, whatever its norms do",
        r"unigram line|unigram",
    ),
    "context": (
        f"it is surely used from the step at which the loss is {ERRORS:g} standard errors below the unigram "
        f"line; norms around this step are those from it divided by {AROUND:g} to it times {AROUND:g}",
        r"context",
    ),
    "held-out loss": (
        "measured on documents never trained on, at positions that show [MASK]; uniform: attention forced "
        "uniform in all layers; silenced: its output set to zero, with the scales that layer norms have "
        "under uniform attention",
        r"[Hh]eld-out loss(?:es)?",
    ),
    "cell": ("a combination of settings; its shape is the most frequent one among its seeds", r"cells?"),
}


def findings(run: Run, scores: Frame, cells: Frame, state: Status) -> Iterator[str]:
    """Yield the sentences of the answer, the main one first."""
    layers = text_cells(run, scores)
    layers = layers.loc[layers["shape"] != "diverged"]
    claims = last_run(run.manifest).get("claims")  # their verdicts say the same
    yield from () if claims else answer(layers)
    yield from by_setting(run, layers)
    yield from by_layer(layers)
    yield from () if claims else context(layers)
    yield from gains(run, scores)
    yield from doubts(layers)


def answer(cells: Frame) -> Iterator[str]:
    """Count the cells in which all, some or no layers have Figure 5's shape."""
    if cells.empty:
        yield "All models diverged."
        return
    hits = (cells["shape"] == FIGURE5).groupby(cells["cell"]).mean()
    every, some = count_of(hits == 1), count_of((hits > 0) & (hits < 1))
    word = "Yes" if every == len(hits) else "No" if every + some == 0 else "In part"
    yield (
        f"Does the shape of the paper's Figure 5 appear (V first, then K and Q, by norms)? {word}: in every "
        f"layer of {every} of {counted(len(hits), 'cell')}, in some layers of {some}, in none of "
        f"{len(hits) - every - some}. V is ahead of K and Q, but these have begun by then, in "
        f"{count_of(cells['shape'] == LEADS)} of {counted(len(cells), 'layer')}."
    )
    context_used = cells.groupby("cell")["seeds_passed"].max() > 0
    early = cells.loc[cells["shape"].isin([FIGURE5, LEADS])]
    if len(early):
        before = count_of(early["seeds_before"] > early["trials"] / 2)
        never = count_of(~context_used.reindex(early["cell"]).to_numpy())
        yield (
            f"Before or after context is used? In {before} of these {counted(len(early), 'layer')} K and Q "
            f"are half way before the loss passes the unigram line ({never} of them in cells that never pass "
            "it): there the norms say nothing about context."
        )


def by_setting(run: Run, cells: Frame) -> Iterator[str]:
    """Count the layers with the shape for each value of each setting that varies."""
    parts = []
    for name in telling_settings(run):
        groups = list(cells.groupby(name, dropna=False))
        texts = [
            f"{setting_text(name, value)} {count_of(own['shape'] == FIGURE5)} of {len(own)}"
            for value, own in groups
        ]
        parts += [first_of(texts)] if len(groups) > 1 else []
    if parts:
        yield f"Layers with that shape, by setting: {'; '.join(parts)}."


def by_layer(cells: Frame) -> Iterator[str]:
    """Count how often each layer has each shape."""
    texts = []
    for layer, own in cells.groupby("layer"):
        counts = own["shape"].value_counts()
        named = [f"{counts[kind]} {kind}" for kind in SHAPES if kind in counts]
        texts.append(f"layer {layer}: {', '.join(named)}")
    if len(texts) > 1:
        yield f"By layer, {first_of(texts, '; ')}."


def context(cells: Frame) -> Iterator[str]:
    """Say where and when the loss passes the unigram line."""
    models = cells.groupby("cell").first()
    passing = models.loc[models["seeds_passed"] > 0]
    sentence = f"The loss passes the unigram line in {len(passing)} of {counted(len(models), 'cell')}"
    if len(passing):
        steps = passing["passed"]
        sentence += f", at step {steps.min():.0f} to {steps.max():.0f} (medians over seeds)"
    surely = count_of(models["below"] > ERRORS * models["below_se"])
    yield (
        f"{sentence}; at the end it is below it in {count_of(models['below'] > 0)}, in {surely} by more than "
        f"{ERRORS:g} standard errors over held-out windows ({models['below_se'].median():.3f} nats)."
    )


def gains(run: Run, scores: Frame) -> Iterator[str]:
    """Say what the best cell learned from context, and how much of it through uniform attention."""
    ok = run.trials.loc[run.trials["status"] == "ok"]
    names = telling_settings(run)
    if ok.empty:
        return
    lines: Any = scores.groupby("trial_id")["unigram"].first()
    ok = ok.assign(unigram=ok["trial_id"].map(lines))
    columns = [*(f"final_eval_loss{end}" for end in ("", "_uniform", "_silent")), "unigram"]
    table = (ok.groupby(names, dropna=False) if names else ok.groupby(lambda row: 0))[columns].mean()
    best = table[columns[0]].to_numpy().argmin()
    loss, uniform, silent, line = table.iloc[best]
    row = table.iloc[[best]].reset_index().iloc[0].to_dict()
    where = ", ".join(described(row, names)) if names else "all trials"
    yield (
        f"The lowest final loss is {loss:.3f} ({where}; mean over seeds), {abs(line - loss):.3f} nats "
        f"{'below' if loss < line else 'above'} the unigram line of {line:.3f}; with attention forced "
        f"uniform it is {uniform:.3f}, with attention silenced {silent:.3f}: of the gain from attention, "
        f"{share(silent - uniform, silent - loss)} comes from uniform attention."
    )


def share(part: float, whole: float) -> str:
    """Write a share in per cent; a dash if the whole is not positive."""
    return f"{part / whole:.0%}" if whole > 0 else "-"


def doubts(cells: Frame) -> Iterator[str]:
    """Say whether seeds agree."""
    if (cells["trials"] == 1).all():
        yield "Every cell has one seed, so this run cannot say how much the seed matters."
        return
    split = count_of(cells["agreement"] < 1)
    yield f"The seeds disagree on the shape of {split} of {counted(len(cells), 'layer')}."
