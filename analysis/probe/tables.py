"""Tables 1 and 2 of the paper for the probed models, and the paper's own numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..frames import Frame
from ..tables import ERROR

LEAST, MOST = 2, 6  # decimals
THRESHOLDS = (0.0005, 0.001, 0.002)
PAPER = {  # Table 1: ratio same topic / different topics of cosine, dot product, attention, by threshold
    "BERT": ((1.21, 1.13, 1.11), (1.19, 1.15, 1.13), (1.32, 1.28, 1.22)),
    "ALBERT": ((5.64, 4.18, 3.24), (6.29, 3.74, 2.93), (1.33, 1.28, 1.22)),
    "BART": ((2.80, 1.95, 1.63), (2.67, 1.92, 1.62), (1.35, 1.31, 1.23)),
    "ELECTRA": ((5.98, 7.70, 7.46), (5.37, 7.35, 8.08), (2.14, 2.09, 1.95)),
    "RoBERTa": ((6.44, 5.73, 5.24), (6.81, 6.31, 5.30), (1.40, 1.31, 1.22)),
    "BERT, random": (
        (1.00080, 0.99974, 1.00016),
        (1.00063, 1.00036, 1.00027),
        (0.99943, 0.99996, 1.00007),
    ),
}
TOPICS_PER_WORD = {"one": "one", "several": "one or several"}
HEADERS = {
    "what": "what it is",
    "pairing": "topics per word",
    "per_topic": "words per topic",
    "words": "words in total",
    "split": "split into pieces",
    "shared": "in several topics",
    "cosine_difference": "cosine: same - different topics",
    "cosine_same": "same topic",
    "cosine_different": "different topics",
    "cosine_ratio": "ratio",
    "dot_difference": "dot product: same - different topics",
    "dot_same": "same topic ",  # with a space: names of columns must differ
    "dot_different": "different topics ",
    "dot_ratio": "ratio ",
    "difference": "attention: same - different topics",
    "matched_difference": "the same at equal distance",
    "same": "same topic",
    "different": "different topics",
    "matched_different": "different, at equal distance",
    "matched_ratio": "ratio at equal distance",
    "distance_share": "share of the difference due to distance",
    "pairs": "same-topic pairs",
    "count": "word pairs",
    "topic_attention": "attention: same topic",
    "together": "most co-occurring",
    "others": "other pairs",
    "matched_others": "other pairs at their distances",
    "cosine_topic": "cosine: same topic",
    "together_cosine": "most co-occurring ",
    "random_cosine": "random pairs",
}


def with_errors(frame: Frame, names: list[str]) -> list[str]:
    """List the columns, each followed by its standard error if there is one."""
    return [column for name in names for column in (name, f"{name}_se") if column in frame]


def embedding_table(embeddings: Frame) -> Frame:
    """Select the similarities of Table 1: difference, both means and their ratio."""
    columns = ("difference", "same", "different", "ratio")
    measures = [f"{kind}_{column}" for kind in ("cosine", "dot") for column in columns]
    first = ["model", "what", "pairing", "threshold", "per_topic", "words", "shared", "split"]
    return embeddings[[*first, *with_errors(embeddings, measures)]]


def attention_table(attention: Frame, is_by_layer: bool) -> Frame:
    """Select the attention of Table 1, plain and at equal distance, over all layers or by layer."""
    is_topic, is_all = attention["pairing"].isin(TOPICS_PER_WORD), attention["layer"] == 0
    rows = attention[is_topic & (is_all != is_by_layer)]
    measures = ["difference", "matched_difference", "same", "different", "ratio"]
    measures += ["matched_different", "matched_ratio", "distance_share"]
    first = ["model", "what", "pairing", "threshold", *(["layer"] if is_by_layer else [])]
    return rows[[*first, *with_errors(rows, measures), "pairs"]].reset_index(drop=True)


def fits_table(fits: Frame) -> Frame:
    """Select the difference and both means of each topic fit alone."""
    first = ["model", "pairing", "threshold", "measure", "fit"]
    measures = ["difference", "same", "different", "matched_difference"]
    return fits[[*first, *with_errors(fits, measures)]]


def cooccurrence_table(embeddings: Frame, attention: Frame, pairs: Frame) -> Frame:
    """Make Table 2: same-topic pairs, the pairs that share the most windows, and other pairs.

    Words have one topic, as in the paper.
    """
    keys = ["model", "threshold"]
    over_layers = attention[attention["layer"] == 0]
    names = {"same": "together", "different": "others", "matched_different": "matched_others"}
    names |= {f"{old}_se": f"{new}_se" for old, new in names.items()}
    together = over_layers[over_layers["pairing"] == "together"].rename(columns=names)
    topic = over_layers[over_layers["pairing"] == "one"]
    embeddings = embeddings[embeddings["pairing"] == "one"]
    topic = topic.rename(columns={"same": "topic_attention", "same_se": "topic_attention_se"})
    cosine = embeddings.rename(columns={"cosine_same": "cosine_topic", "cosine_same_se": "cosine_topic_se"})
    table = pairs[["what", *keys, "count", *with_errors(pairs, ["together_cosine", "random_cosine"])]]
    table = table.merge(topic[[*keys, *with_errors(topic, ["topic_attention"])]], on=keys)
    table = table.merge(
        together[[*keys, *with_errors(together, ["together", "others", "matched_others"])]], on=keys
    )
    table = table.merge(cosine[[*keys, *with_errors(cosine, ["cosine_topic"])]], on=keys)
    measures = ["topic_attention", "together", "others", "matched_others"]
    measures += ["cosine_topic", "together_cosine", "random_cosine"]
    return table[["model", "what", "threshold", "count", *with_errors(table, measures)]]


def paper_table() -> Frame:
    """Tabulate the ratios of the paper's Table 1."""
    return pd.DataFrame(
        [
            {
                "model": model,
                "threshold": threshold,
                "cosine": cosine,
                "dot product": dot,
                "attention": attention,
            }
            for model, columns in PAPER.items()
            for threshold, cosine, dot, attention in zip(THRESHOLDS, *columns, strict=True)
        ]
    )


def topic_table(fit: int, words: list[list[str]], npmi: np.ndarray) -> Frame:
    """Tabulate the most likely words of each topic of a fit, the most coherent topic first."""
    order = np.argsort(-npmi, kind="stable")
    return pd.DataFrame(
        {
            "fit": fit,
            "topic": order,
            "NPMI": [f"{npmi[topic]:.3f}" for topic in order],
            "words": [", ".join(words[topic]) for topic in order],
        }
    )


def readable(table: Frame) -> Frame:
    """Format a table for readers: means with errors, columns in words."""
    names = [str(name) for name in table if not str(name).endswith(ERROR)]
    rows = [[entry(row, name) for name in names] for row in table.to_dict("records")]
    return pd.DataFrame(rows, columns=[HEADERS.get(name, name) for name in names], dtype=object)


def entry(row: Mapping[str, Any], name: str) -> str:
    """Format one entry of a table: a mean with its error, a number, or a text unchanged."""
    value, error = row[name], row.get(name + ERROR)
    if name in ("split", "shared"):
        return f"{100 * value:.0f} %"
    if name == "pairing":
        return TOPICS_PER_WORD[value]
    if error is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    if not np.isfinite(value):
        return "-"
    if not np.isfinite(error) or error == 0:
        return f"{value:.{LEAST}f}"
    decimals = int(np.clip(1 - np.floor(np.log10(error)), LEAST, MOST))  # two digits of the error
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
