"""The words of an answer, each with what it means, in the order in which a reader meets them."""

import html
import re
from collections.abc import Sequence

from topicjax.theory.progress import CUTS

ALWAYS = ("trial", "cell")  # the page below uses them even if the answer does not
TERMS = {  # what is written: word, meaning
    r"two-stage": (
        "two-stage",
        f"W^V learns the topics first, while attention is still uniform; then attention learns them: Θ of at "
        f"least {CUTS.two_stage:g}, and a stage 2 that happened.",
    ),
    r"trials?": ("trial", "one training run of one model, fully described by its settings."),
    r"V(?![-\w])": ("V", "the value matrix W^V, which predicts words from the mean of what is attended to."),
    r"keys (?:all|unmasked)": (
        "keys",
        "the positions that attention can look at: all, as in the paper's equation, or only the unmasked.",
    ),
    r"cells?": (
        "cell",
        "the trials that differ in nothing but the seed; its class is the most frequent one.",
    ),
    r"seeds?": ("seed", "the number that draws initial weights and documents."),
    r"Θ": (
        "Θ (Theta)",
        "how far V had come when attention set in: the largest, over the steps, of the smaller of progress "
        "of V and 1 - progress of attention. 1: V was done first; 0.5: both together.",
    ),
    r"loss view": (
        "loss view",
        "progress read from held-out losses: V by the loss with attention forced uniform, attention by what "
        "it takes off that loss, in units of what the topics can give.",
    ),
    r"norms": ("norms", "progress read from the sizes of W^V and of W^K and W^Q, as the paper does."),
    r"topical|by topic": (
        "topical",
        f"attention scores of word pairs of one topic are {CUTS.topical:g} or more above those of others.",
    ),
    r"V-only": ("V-only", "V is learned, attention has not moved in the steps given."),
    r"unfinished": ("unfinished", f"less than {CUTS.finished:.0%} of the way to the best loss of stage 1."),
    r"stage 2 begun": ("stage 2 begun", f"attention gained less than {CUTS.stage2:.0%} of what topics give."),
    r"compensated": ("compensated", "the loss gets there, but not with uniform attention."),
    r"simultaneous": ("simultaneous", "V and attention are learned together."),
    r"no-learning": (
        "no-learning",
        f"less than {CUTS.no_learning:.0%} of the way to the best loss of stage 1.",
    ),
    r"copying": ("copying", "in the end a word counts for itself more than for its topic."),
}


def definitions(sentences: Sequence[str]) -> str:
    """Return the words that these sentences use, each with its meaning, in order of appearance."""
    text = " ".join(sentences)
    first = {pattern: re.search(rf"\b(?:{pattern})", text) for pattern in TERMS}
    places = {pattern: found.start() for pattern, found in first.items() if found}
    places |= {pattern: places.get(pattern, len(text)) for pattern in TERMS if TERMS[pattern][0] in ALWAYS}
    entries = (TERMS[pattern] for pattern in sorted(places, key=lambda pattern: places[pattern]))
    inside = "\n".join(
        f"<dt><dfn>{html.escape(word)}</dfn></dt><dd>{html.escape(meaning)}</dd>" for word, meaning in entries
    )
    return f'<dl class="terms">\n{inside}\n</dl>\n'
