"""Claims about syntax and topics: statements of the literature that this language can test, and our own.

The literature speaks of natural language and of larger models, so a verdict says whether a statement holds
for this language and these models.  A cell (trials that differ only in the seed) counts by the most frequent
class of its trials.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..frames import Frame, cell_of_rows
from ..page.contract import Claim, Verdict
from ..pictures import label, written
from .scores import (
    LEARNED,
    LEAST_SCORE,
    LITTLE,
    OTHER_RATIOS,
    RATIO,
    SIDES,
    TOGETHER,
    V_ALONE,
    V_FIRST,
    V_FIRST_THETA,
    V_NOT_FIRST,
    cell_settings,
    syntax_cells,
)

LANGUAGE = (
    *("alpha", "sharpness", "stay", "topics", "words_per_topic", "classes", "words_per_class"),
    *("length_min", "length_max", "p_mask"),
)
MODEL = (
    *("bias_gain", "layers", "heads", "width", "relative_reach", "positions", "mlp", "output_projection"),
    *("residual", "layer_norm", "embedding", "head", "output_bias", "attention"),
)
NO_MATTER = ("init", "init_scale", "embedding_scale", "learning_rate", "sharpness")
BRIEF = 2.0  # syntax comes suddenly if it takes at most this factor in steps from 20 to 80 %
NEAR, BEYOND = 0.05, 0.01  # how far P_syntax may be from that of the two neighbours: below, above
WORDS = {"syntax": "syntax", "topic": "topics"}  # parts in sentences
VERBS = {"syntax": "is", "topics": "are"}


def learned_first(run: Run, scores: Frame, side: str) -> Verdict:
    """Check whether one of syntax and topics is half way first."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["side"] != ""]
    if judged.empty:
        return nothing_learned()
    other = "topics" if side == "syntax" else "syntax"
    hits, others = (count_of(judged["side"] == name) for name in (side, other))
    alone = count_of(judged["class"] == f"{side} only")
    sentence = (
        f"{side.capitalize()} first in {hits} of {counted(len(judged), 'cell')} (in {alone} of them {other} "
        f"{VERBS[other]} never half way), {other} first in {others}, together in "
        f"{count_of(judged['side'] == TOGETHER)}. "
        f"{ratio_words(judged)} {seed_words(judged)} {sensitivity_words(cells, side)}"
    )
    change = "another language or bias gain: see the claims on what the order depends on."
    return counted_verdict(hits, len(judged), sentence, change, cells=len(judged), first=hits)


def in_parallel(run: Run, scores: Frame) -> Verdict:
    """Check whether the later one has begun when the earlier one is half way."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[(cells["side"] != "") & cells["other_then"].notna()]
    if judged.empty:
        return nothing_learned()
    begun = count_of(judged["other_then"] >= LITTLE)
    sentence = (
        f"When the earlier of the two is half way, the later one has made at least {LITTLE:.0%} of its own "
        f"way in {begun} of {counted(len(judged), 'cell')} (median {judged['other_then'].median():.0%}, over "
        f"cells {judged['other_then'].min():.0%} to {judged['other_then'].max():.0%}); half-way steps are "
        f"within a factor {RATIO:g} of each other in {count_of(judged['side'] == TOGETHER)}. "
        f"{seed_words(judged)}"
    )
    change = f"the level: {LITTLE:.0%} is our reading of improving from the beginning."
    return counted_verdict(begun, len(judged), sentence, change, cells=len(judged), begun=begun)


def unigram_first(run: Run, scores: Frame) -> Verdict:
    """Check whether the loss comes to the unigram line before syntax or topics begin."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["begun_step"].notna()]
    if judged.empty:
        return nothing_learned()
    known = judged.loc[judged["unigram_step"].notna()]
    first = count_of(known["unigram_step"] < known["begun_step"])
    sentence = (
        f"The loss has gone {LEARNED:.0%} of the way to the unigram line before syntax or topics reach "
        f"{LITTLE:.0%} in {first} of {counted(len(judged), 'cell')}"
    )
    if len(known):
        sentence += (
            f" (medians over cells: step {known['unigram_step'].median():,.0f} against "
            f"{known['begun_step'].median():,.0f}). At that step topics have made "
            f"{known['topic_at_unigram'].median():.1%} of their way and syntax "
            f"{known['syntax_at_unigram'].median():.1%} (at most {known['topic_at_unigram'].max():.0%} and "
            f"{known['syntax_at_unigram'].max():.0%})"
        )
    change = (
        "finer records at the beginning. P of syntax is 0 by definition until the frequencies of classes are "
        "known, so what could contradict the claim is topics that begin before."
    )
    return counted_verdict(first, len(judged), f"{sentence}.", change, cells=len(judged), first=first)


def sudden_syntax(run: Run, scores: Frame) -> Verdict:
    """Check whether syntax comes in a brief window, together with attention to the neighbours."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["syntax_80"].notna() & cells["scores_50_syntax"].notna()]
    if judged.empty:
        why = "In no cell does syntax reach 80 % together with attention to the neighbours."
        return Verdict("undecided", why, "more steps, or a larger bias gain")
    window = judged["syntax_80"] / judged["syntax_20"]
    topics = (judged["topic_80"] / judged["topic_20"]).dropna()
    apart = judged["syntax_50"] / judged["scores_50_syntax"]
    brief, near = (window <= BRIEF), apart.between(1 / RATIO, RATIO)
    other = f" (topics: {topics.median():.2g})" if len(topics) else ""
    sentence = (
        f"From 20 to 80 % syntax takes a factor {spread(window)} in steps, median and range over "
        f"{counted(len(judged), 'cell')}{other}; at most {BRIEF:g} in {count_of(brief)}. Syntax is half way "
        f"{spread(apart)} times the step at which the bias towards a neighbour has made half of its rise, "
        f"within a factor {RATIO:g} in {count_of(near)}."
    )
    change = f"the definition: sudden means from 20 to 80 % within a factor {BRIEF:g} in steps."
    return counted_verdict(
        *(count_of(brief & near), len(judged), sentence, change), cells=len(judged), brief=count_of(brief)
    )


def syntax_in_steps(run: Run, scores: Frame) -> Verdict:
    """Check whether the neighbours on the two sides are learned one after the other."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["sides_ratio"].notna() & cells["syntax_50"].notna()]
    if judged.empty:
        why = "In no cell does attention come to look at both neighbours."
        return Verdict("undecided", why, "more steps, more heads, or a larger bias gain")
    apart = count_of(judged["sides_ratio"] > RATIO)
    left = count_of(judged["left_50"] < judged["right_50"])
    sentence = (
        f"The biases at -1 and +1 make half of their rises at steps that differ by more than a factor "
        f"{RATIO:g} in {apart} of {counted(len(judged), 'cell')} (factor {spread(judged['sides_ratio'])}, "
        f"median and range over cells); the left neighbour is the earlier one in {left}."
    )
    change = "one head: it cannot attend to both sides apart. Of several heads the strongest counts."
    return counted_verdict(apart, len(judged), sentence, change, cells=len(judged), steps=apart)


def one_neighbour(run: Run, scores: Frame) -> Verdict:
    """Check that P_syntax reaches what the two neighbours tell, and does not pass it."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["within_1"].notna() & cells["max_p_syntax"].notna()]
    above = judged["max_p_syntax"] - judged["within_1"]
    reached = judged.loc[above >= -NEAR]
    if reached.empty:
        best = f" (at most {judged['max_p_syntax'].max():.3f})" if len(judged) else ""
        why = f"In no cell does P of syntax come within {NEAR:g} of the predictor that sees ±1 only{best}."
        return Verdict("undecided", why, "more steps")
    passed, is_most = count_of(above > BEYOND), 2 * len(reached) > len(judged)
    sentence = (
        f"P of syntax comes within {NEAR:g} of that of the predictor that sees ±1 only, "
        f"{judged['within_1'].median():.3f}, in {len(reached)} of {counted(len(judged), 'cell')}, and passes "
        f"it by more than {BEYOND:g} in {passed} (difference {spread(above.loc[reached.index], '{:+.3f}')}, "
        "median and range over those cells)."
    )
    verdict = "holds" if not passed else "fails" if passed == len(reached) else "partly"
    if not is_most:  # the others say nothing about what lies beyond the neighbours
        verdict = "partly" if passed else "undecided"
    change = "more steps, or more layers, which can carry a class over several positions."
    return Verdict(verdict, sentence, change, cells=len(judged), reached=len(reached), passed=passed)


def level_by_level(run: Run, scores: Frame) -> Verdict:
    """Check whether the loss waits at the lines of predictors that see no word, and one word per side."""
    cells = syntax_cells(run, scores)
    judged = cells.loc[cells["passed_within_1"].notna()]
    if judged.empty:
        why = "In no cell does the loss pass that of the predictor that sees one word per side."
        return Verdict("undecided", why, "more steps")
    waits = {name: judged[f"wait_{name}"] for name in ("unigram", "within_1", "within_2")}
    hits = count_of((waits["unigram"] > RATIO) & (waits["within_1"] > RATIO))
    steps = [f"{judged[f'passed_{name}'].median():,.0f}" for name in ("unigram", "within_1")]
    further = judged["passed_within_2"].dropna()
    sentence = (
        f"The loss passes the lines of no word and of one word per side at steps {' and '.join(steps)} "
        f"(medians over {counted(len(judged), 'cell')}), that of two words per side in {len(further)}"
        + (f" (step {further.median():,.0f}). " if len(further) else ". ")
        + "From a tenth of the way before a line to a tenth beyond it takes "
        + ", ".join(
            f"a factor {spread(own.dropna())} in steps at {name.replace('_', ' ')}"
            for name, own in waits.items()
            if own.notna().any()
        )
        + f" (median and range); the loss waits, by more than {RATIO:g}, at both of the first two in {hits}."
    )
    change = (
        "a language in which words farther away tell more: here the lines of one and two words are close, "
        "and topics lower the loss between them."
    )
    return counted_verdict(hits, len(judged), sentence, change, cells=len(judged), levels=hits)


def v_before_attention(run: Run, scores: Frame, part: str) -> Verdict:
    """Check by losses that V is learned before attention."""
    cells, kind = syntax_cells(run, scores), f"class_loss_{part}"
    judged = cells.loc[cells[kind].isin((V_FIRST, V_NOT_FIRST))]
    known, alone = f"{WORDS[part]} {VERBS[WORDS[part]]}", count_of(cells[kind] == V_ALONE)
    rest = f"In {counted(alone, 'cell')} attention adds less than {LITTLE:.0%} of what can be gained."
    if judged.empty:
        why = rest if alone else f"In no cell {known} half way with uniform attention measured."
        return Verdict("undecided", why, "more steps, or smaller rare_every")
    hits, theta = count_of(judged[kind] == V_FIRST), judged[f"loss_theta_{part}"].dropna()
    gain = judged[f"loss_gain_{part}"]
    sentence = (
        f"V first in {hits} of {counted(len(judged), 'cell')} where {known} half learned and attention adds "
        f"at least {LITTLE:.0%} of what can be gained ({spread(gain)} of it, median and range); uniform "
        f"attention gains {spread(judged[f'loss_value_{part}'])} of it"
        + (f", Θ {spread(theta)}." if len(theta) else ".")
        + f" {rest}" * bool(alone)
    )
    change = "finer records: uniform attention is measured at every rare_every-th record."
    return counted_verdict(hits, len(judged), sentence, change, cells=len(judged), first=hits)


def v_before_scores(run: Run, scores: Frame, part: str) -> Verdict:
    """Check that V is learned before the scores that use it."""
    cells, kind = syntax_cells(run, scores), f"class_v_{part}"
    judged = cells.loc[cells[kind].isin((V_FIRST, V_NOT_FIRST))]
    alone = count_of(cells[kind] == V_ALONE)
    what = {"syntax": "bias towards a neighbour", "topic": "score of content words"}[part]
    known = f"{WORDS[part]} {VERBS[WORDS[part]]}"
    rest = f"In {counted(alone, 'cell')} {known} learned with V alone: "
    rest += f"no {what} rises by {LEAST_SCORE:g}."
    if judged.empty:
        why = rest if alone else f"In no cell {known} half way with both V and the {what} recorded."
        return Verdict("undecided", why, "more steps, or a larger bias gain")
    hits, theta = count_of(judged[kind] == V_FIRST), judged[f"v_theta_{part}"]
    wait = judged[f"scores_50_{part}"] / judged[f"v_50_{part}"]
    sentence = (
        f"V first in {hits} of {counted(len(judged), 'cell')} where {known} half learned and the "
        f"{what} rises by at least {LEAST_SCORE:g}: Θ {spread(theta)} (median and range; V first from "
        f"{V_FIRST_THETA:g}), half of the rise of the {what} at {spread(wait)} times the step of V. The "
        f"seeds agree in {count_of(judged[f'agreement_v_{part}'] == 1)} cells."
    )
    change = "smaller initial weights: by the paper's section 8.1 two stages need a start near zero."
    numbers = dict(cells=len(judged), first=hits, theta=float(theta.median()))
    return counted_verdict(hits, len(judged), sentence + f" {rest}" * bool(alone), change, **numbers)


def reversals(cells: Frame, name: str, names: Sequence[str]) -> Frame:
    """Compare cells that differ only in one setting: a row per group, its sides in order of the values.

    is_reversed: syntax is first at one value and topics at another; is_changed: the sides are not all
    the same.
    """
    judged = cells.loc[cells["side"] != ""].sort_values(name)
    group = cell_of_rows(judged, [other for other in names if other != name])
    rows = []
    for _, own in judged.groupby(group):
        if own[name].nunique() > 1:
            sides = own["side"].tolist()
            path = [f"{written(value)} {kind}" for value, kind in zip(own[name], own["class"], strict=True)]
            ends = own["log_lag"].iloc[[0, -1]].tolist()
            rows.append(({"syntax", "topics"} <= {*sides}, len({*sides}) > 1, ", ".join(path), *ends))
    return pd.DataFrame(rows, columns=["is_reversed", "is_changed", "path", "lag_at_first", "lag_at_last"])


def compared(cells: Frame, settings: Sequence[str], names: Sequence[str]) -> dict[str, Frame]:
    """Collect `reversals` for each of these settings that varies with all others equal."""
    found = {name: reversals(cells, name, names) for name in settings if name in names}
    return {name: rows for name, rows in found.items() if len(rows)}


def depends(run: Run, scores: Frame, settings: Sequence[str], what: str) -> Verdict:
    """Check whether the order reverses with settings while all others stay the same."""
    cells, names = syntax_cells(run, scores), cell_settings(run)
    found = compared(cells, settings, names)
    if not found:
        change = f"a sweep over {', '.join(map(label, settings[:3]))} and the like"
        return Verdict("undecided", f"No two cells that learned differ only in {what}.", change)
    shares = {name: float(rows["is_reversed"].mean()) for name, rows in found.items()}
    texts = [reversal_words(name, rows) for name, rows in found.items()]
    best = max(shares.values())
    verdict = "holds" if best == 1 else "partly" if best else "fails"
    change = "more values: the order is only known at those of the sweep."
    numbers = {f"reversed_by_{name}": share for name, share in shares.items()}
    return Verdict(verdict, f"{' '.join(texts)} {seed_words(cells)}", change, **numbers)


def no_matter(run: Run, scores: Frame) -> Verdict:
    """Check that the order does not reverse with start, learning rate and sharpness."""
    cells, names = syntax_cells(run, scores), cell_settings(run)
    found = compared(cells, NO_MATTER, names)
    if not found:
        why = "No two cells that learned differ only in start, learning rate or sharpness."
        return Verdict("undecided", why, "a sweep over them")
    every = pd.concat(found.values())
    hits, changed = count_of(every["is_reversed"]), count_of(every["is_changed"])
    texts = [reversal_words(name, rows) for name, rows in found.items()]
    verdict = "holds" if not hits else "fails" if hits == len(every) else "partly"
    change = "more values, above all near the border in alpha and bias gain, where little decides the order."
    return Verdict(
        *(verdict, f"{' '.join(texts)} {seed_words(cells)}", change),
        **dict(groups=len(every), reversed=hits, changed=changed),
    )


def reversal_words(name: str, rows: Frame) -> str:
    """Say how often the order reverses with a setting, with an example, and how the lag moves."""
    hits, changed = count_of(rows["is_reversed"]), count_of(rows["is_changed"] & ~rows["is_reversed"])
    text = (
        f"{label(name).capitalize()}: the order reverses in {hits} of {counted(len(rows), 'group')} of cells"
    )
    text += " that differ in nothing else"
    text += f", and changes to or from together in {changed} more" * bool(changed)
    first, last = (np.exp(rows[end].median()) for end in ("lag_at_first", "lag_at_last"))
    if np.isfinite([first, last]).all():
        text += f"; from its first to its last value the lag of topics goes from {first:.2g} to {last:.2g}"
    shown = rows.sort_values(["is_reversed", "is_changed"], ascending=False, kind="stable")["path"].iloc[0]
    return f"{text} (as in {shown})."


def ratio_words(cells: Frame) -> str:
    """Write the half-way step of topics divided by that of syntax, over cells in which both are half way."""
    known = cells["ratio"].dropna()
    if known.empty:
        return "In no cell are both half way."
    return (
        f"Half-way step of topics / of syntax: {spread(known)} (median and range over "
        f"{counted(len(known), 'cell')} with both)."
    )


def seed_words(cells: Frame) -> str:
    """Say in how many cells the seeds agree."""
    several = cells.loc[cells["trials"] > 1]
    if several.empty:
        return "Every cell has one seed."
    return f"The seeds agree in {count_of(several['agreement'] == 1)} of {counted(len(several), 'cell')}."


def sensitivity_words(cells: Frame, side: str) -> str:
    """Count the cells at the other ratios of half-way steps."""
    counts = {ratio: count_of(cells[f"class{end}"].map(SIDES) == side) for end, ratio in OTHER_RATIOS.items()}
    texts = [f"{count} at a ratio of {ratio:g}" for ratio, count in counts.items()]
    return f"Instead of the ratio {RATIO:g}: {', '.join(texts)}."


def nothing_learned() -> Verdict:
    """Give the verdict on a run in which nothing is half way."""
    return Verdict(
        "undecided", "In no cell is syntax or are topics half way.", "more steps, or a larger rate"
    )


def counted_verdict(hits: int, judged: int, sentence: str, change: str, **numbers: float) -> Verdict:
    """Give the verdict: holds in all judged cells, in some, or in none."""
    return Verdict("holds" if hits == judged else "partly" if hits else "fails", sentence, change, **numbers)


def spread(values: Any, form: str = "{:.2g}") -> str:
    """Write the median with the range."""
    low, high = form.format(values.min()), form.format(values.max())
    middle = form.format(values.median())
    return middle if low == high else f"{middle} ({low} to {high})"


def count_of(which: Any) -> int:
    """Count the true values."""
    return int(np.count_nonzero(np.asarray(which)))


CLAIMS = (
    Claim(
        "Syntax first",
        "Word classes are learned before topics.",
        partial(learned_first, side="syntax"),
        "Saphra & Lopez 2019: part of speech is learned earlier than topic",
        "square",
    ),
    Claim(
        "Topics first",
        "Topics are learned before word classes: uniform attention is enough for them.",
        partial(learned_first, side="topics"),
        "a reading of the paper's two stages (section 8.1), the first of which has uniform attention",
        "square",
    ),
    Claim(
        "In parallel",
        "What is learned last improves from the beginning.",
        in_parallel,
        "Evanson et al. 2023; Schulz et al. 2025 (subgrammars improve in parallel)",
        "square",
    ),
    Claim(
        "Unigram first",
        "Models first predict by the frequency of words, and use context later.",
        unigram_first,
        "Chang & Bergen 2022",
        "examples",
    ),
    Claim(
        "Sudden syntax",
        "Syntax is acquired in a brief window, together with attention to related words.",
        sudden_syntax,
        "Chen et al. 2024 (with a steep drop of the loss); Müller-Eberstein et al. 2023",
        "examples",
    ),
    Claim(
        "Order and language",
        "Which is learned first depends on the language.",
        partial(depends, settings=LANGUAGE, what="the language"),
        "the paper's conclusion (open question)",
        "order_ratio",
    ),
    Claim(
        "Order and model",
        "Which is learned first depends on the model, not on the language alone.",
        partial(depends, settings=MODEL, what="the model"),
        "the paper's conclusion (open question)",
        "order_ratio",
    ),
    Claim(
        "Order and training",
        "Start, learning rate and the sharpness of the chain do not matter for which is learned first.",
        no_matter,
        "our question",
        "half_way_steps",
    ),
    Claim(
        "V before scores, syntax",
        "V learns word classes before attention learns to look at the neighbours.",
        partial(v_before_scores, part="syntax"),
        "a reading of section 8.1, for this language",
        "v_before_scores",
    ),
    Claim(
        "V before scores, topics",
        "V learns topics before attention learns to look at content words.",
        partial(v_before_scores, part="topic"),
        "a reading of section 8.1, for this language",
        "v_before_scores",
    ),
    Claim(
        "V before attention, topics",
        "By losses: what uniform attention gains about topics comes before what attention adds.",
        partial(v_before_attention, part="topic"),
        "a reading of section 8.1, for this language",
        "v_before_scores",
    ),
    Claim(
        "V before attention, syntax",
        "By losses: what uniform attention gains about classes comes before what attention adds.",
        partial(v_before_attention, part="syntax"),
        "a reading of section 8.1, for this language",
        "v_before_scores",
    ),
    Claim(
        "Level by level",
        "Models pass from no context to one word per side and on to two, and wait at each level.",
        level_by_level,
        "Belrose et al. 2024; Edelman et al. 2024 (unigrams, then bigrams, in phases)",
        "half_way_steps",
    ),
    Claim(
        "Syntax in steps",
        "Syntax is learned one neighbour at a time.",
        syntax_in_steps,
        "our question",
        "examples",
    ),
    Claim(
        "One neighbour",
        "Models learn what the two nearest words tell about the class, and nothing from words farther away.",
        one_neighbour,
        "our question",
        "final_losses",
    ),
)
