"""Findings of a run, in sentences: which of syntax and topics is learned first, and with what it changes."""

from collections.abc import Iterator

from topicjax.errors import counted
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, Status

from ..frames import Frame
from ..pictures import first_of, setting_text
from .claims import count_of, seed_words
from .scores import (
    CLASSES,
    DIVERGED,
    LEARNED,
    LEAST_SCORE,
    LITTLE,
    NEITHER,
    OTHER_RATIOS,
    RATIO,
    SIDES,
    SYNTAX,
    SYNTAX_ONLY,
    TOGETHER,
    TOPICS,
    TOPICS_ONLY,
    UNDECIDED,
    UNSCORED,
    V_ALONE,
    V_FIRST,
    V_FIRST_THETA,
    V_NOT_FIRST,
    cell_settings,
    syntax_cells,
)

WORDS = {  # word: (meaning, pattern of its uses)
    "syntax": (
        "the classes of words, which follow a Markov chain: what is learned about them is P of syntax, from "
        "0 (the frequencies of classes) to 1 (the best predictor that sees all classes)",
        r"syntax",
    ),
    "topics": (
        "the topics of content words: what is learned about them is P of topics, from 0 (all topics as "
        "likely) to 1 (the best predictor that sees all words)",
        r"topics",
    ),
    "progress": (
        "the held-out cross-entropy is the sum of a class part, a topic part and a word part (within a "
        "topic or class), and so are the reference losses. P of syntax is the share of class part "
        "that the model has gained between predicting class frequencies and the best predictor, on the same "
        "documents; P of topics the share of the topic part. The squared loss splits in the same way, but "
        "its topic part also depends on what is known of the class: without syntax P of topics stays below 1",
        r"progress",
    ),
    "half way": (
        "P of syntax or of topics is 0.5, on a fit over the steps that never falls",
        r"half way|half-way|half learned",
    ),
    f"{SYNTAX}, {TOPICS}": (
        f"the half-way step of the other is more than {RATIO:g} times as late. The tables have the classes "
        f"at ratios of {' and '.join(f'{ratio:g}' for ratio in OTHER_RATIOS.values())}",
        f"{SYNTAX}|{TOPICS}",
    ),
    TOGETHER: (f"half-way steps within a factor of {RATIO:g}", TOGETHER),
    f"{SYNTAX_ONLY}, {TOPICS_ONLY}": (
        f"the other is not half way by the last step, which is more than {RATIO:g} times as late: with more "
        "steps it may be",
        f"{SYNTAX_ONLY}|{TOPICS_ONLY}",
    ),
    UNDECIDED: (
        f"one of the two is half way, but less than a factor {RATIO:g} before the last step: the other may "
        "still follow in time",
        rf"\d {UNDECIDED}|{UNDECIDED} \d",
    ),
    "then lost": (
        "half way at some step, and below half of its best in the last tenth of the steps. Only the way up "
        "is scored",
        "then lost|lost again",
    ),
    NEITHER: ("neither of the two is half way by the last step", NEITHER),
    UNSCORED: ("without reference losses, or with nothing to gain in one of the two", UNSCORED),
    "reference losses": (
        "unigram knows nothing of a masked word, topics only all visible words for its topic, syntax all of "
        "them for its class, both uses them for both; within 1 and within 2 see one or two words per side",
        r"reference loss(?:es)?",
    ),
    "unigram line": (
        "the loss of predicting each word by its frequency. The loss has come to it when it has gone "
        f"{LEARNED:.0%} of the way from its first value",
        r"unigram line",
    ),
    "alpha": (
        "concentration of the topic shares of a document: the smaller, the fewer topics it has, and the more "
        "topics help to predict. It does not change what syntax can give",
        r"alpha",
    ),
    "bias gain κ": (
        "factor of the attention bias by distance: the larger, the faster a head comes to look at neighbours",
        r"[Bb]ias gain",
    ),
    "sharpness": (
        "share of transitions that follow the cycle of classes; the others are drawn by frequency",
        r"[Ss]harpness",
    ),
    "Θ (Theta)": (
        "how far the first of two curves had come when the second began: the maximum over the steps of "
        "min(first, 1 - second). 1: the first was done before; 0.5: both together",
        r"Θ",
    ),
    "lag": (
        "the factor in steps by which topics come after syntax, averaged over all levels of progress",
        r"lag",
    ),
    "±1": ("the word before and the word after the masked one", r"±1"),
    V_FIRST: (
        f"Θ of at least {V_FIRST_THETA:g} for the rise of the value map (the map from visible classes to "
        "the next or the previous one, in units of the ideal map; same topic minus different topics) before "
        "that of the attention scores that use it (the bias towards a neighbour at ±1; the score of content "
        "words minus function words). "
        f"{V_NOT_FIRST}: less. Of several layers and heads the largest value counts at each step",
        f"{V_FIRST}|{V_NOT_FIRST}",
    ),
    V_ALONE: (
        f"the part is half learned while those scores rise by less than {LEAST_SCORE:g}; by losses, while "
        f"attention adds less than {LITTLE:.0%} of what can be gained",
        V_ALONE,
    ),
    "by losses": (
        "V is the progress that is left when attention is made uniform, attention what it adds to that",
        r"[Bb]y losses",
    ),
    "changed models": (
        "uniform attention has neither scores nor bias; positional keeps the bias alone, content the scores "
        "alone; shuffled: visible words change places within a document; redrawn: visible content words are "
        "drawn anew with other topic shares",
        r"[Cc]hanged models",
    ),
    "cell": ("the trials that differ only in the seed; its class is the most frequent one", r"cells?"),
    "seed": ("the number that draws documents and initial weights", r"seeds?"),
}


def findings(run: Run, scores: Frame, cells: Frame, state: Status) -> Iterator[str]:
    """Yield the sentences of the answer, the main one first."""
    table = syntax_cells(run, scores)
    if not last_run(run.manifest).get("claims"):  # their verdicts say the same
        yield from answer(table)
    yield from by_setting(run, table)
    yield from doubts(table)


def answer(cells: Frame) -> Iterator[str]:
    """Count the cells by class, and with the other ratios."""
    judged = cells.loc[cells["side"] != ""]
    if judged.empty:
        late = count_of(cells["class"] == UNDECIDED)
        none = f"In none of {counted(len(cells), 'cell')} is syntax or are topics half way"
        yield f"{none}{f' early enough to tell which is first ({late} undecided)' * bool(late)}."
        return
    counts = judged["class"].value_counts()
    named = [f"{counts[kind]} {kind}" for kind in CLASSES if kind in counts]
    yield f"Which is learned first? Of {counted(len(judged), 'cell')} that learned: {', '.join(named)}."
    texts = []
    for end, ratio in OTHER_RATIOS.items():
        sides = judged[f"class{end}"].map(SIDES)
        split = ", ".join(f"{count_of(sides == side)} {side}" for side in ("syntax", "topics", TOGETHER))
        texts.append(f"{split} at {ratio:g}")
    yield f"First by half-way steps that differ by another ratio than {RATIO:g}: {'; '.join(texts)}."


def by_setting(run: Run, cells: Frame) -> Iterator[str]:
    """Count the cells by which is first for each value of each setting that varies."""
    judged = cells.loc[cells["side"] != ""]
    for name in cell_settings(run) if len(judged) else ():
        groups = list(judged.groupby(name, dropna=False))
        texts = []
        for value, own in groups:
            split = "/".join(str(count_of(own["side"] == side)) for side in ("syntax", TOGETHER, "topics"))
            texts.append(f"{setting_text(name, value)} {split}")
        if len(groups) > 1:
            yield f"Cells with syntax first / together / topics first: {first_of(texts)}."


def doubts(cells: Frame) -> Iterator[str]:
    """Say which cells are not judged, which depend on the number of steps, and whether seeds agree."""
    counts = cells["class"].value_counts()
    left = [f"{counts[kind]} {kind}" for kind in (UNDECIDED, NEITHER, UNSCORED, DIVERGED) if kind in counts]
    if left:
        yield f"Cells in which nothing is first: {', '.join(left)}."
    alone = count_of(cells["class"].isin((SYNTAX_ONLY, TOPICS_ONLY)))
    if alone:
        yield f"In {counted(alone, 'cell')} only one of the two is half way by the last step."
    lost = int(cells["then_lost"].sum())
    if lost:
        yield f"In {counted(lost, 'trial')} syntax or topics are lost again (then lost)."
    one = (cells["trials"] == 1).all()
    yield "Every cell has one seed, so this run cannot say how much it matters." if one else seed_words(cells)
