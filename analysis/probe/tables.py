"""Tables 1 and 2 of the paper for the probed models, and the paper's own numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..frames import Frame
from ..tables import ERROR

LEAST, MOST = 2, 6  # decimals
NEAR_ZERO = 4.0  # standard errors; the error of a ratio to a smaller mean is meaningless
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
HEADERS = {
    "what": "what it is",
    "per_topic": "words per topic",
    "words": "words in total",
    "split": "split into pieces",
    "cosine_same": "cosine: same topic",
    "cosine_different": "different topics",
    "cosine_ratio": "ratio",
    "dot_same": "dot product: same topic",
    "dot_different": "different topics ",  # with a space: names of columns must differ
    "dot_ratio": "ratio ",
    "same": "attention: same topic",
    "different": "different topics",
    "matched_different": "different, at equal distance",
    "matched_ratio": "ratio at equal distance",
    "share": "share of the excess due to distance",
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
    """Select the similarities of Table 1: both means and their ratio."""
    measures = [f"{kind}_{column}" for kind in ("cosine", "dot") for column in ("same", "different", "ratio")]
    first = ["model", "what", "threshold", "per_topic", "words", "split"]
    return embeddings[[*first, *with_errors(embeddings, measures)]]


def attention_table(attention: Frame, is_by_layer: bool) -> Frame:
    """Select the attention of Table 1, plain and at equal distance, over all layers or by layer."""
    is_topic, is_all = attention["contrast"] == "topic", attention["layer"] == 0
    rows = attention[is_topic & (is_all != is_by_layer)].copy()
    rows["share"] = shares(rows)
    measures = ["same", "different", "ratio", "matched_different", "matched_ratio"]
    first = ["model", "what", "threshold", *(["layer"] if is_by_layer else [])]
    return rows[[*first, *with_errors(rows, measures), "share", "pairs"]].reset_index(drop=True)


def shares(rows: Frame) -> list[str]:
    """Write the share of each excess that is due to distance; a dash where there is no excess."""
    known = rows["excess"] > 2 * rows["excess_se"]
    return [
        f"{100 * share:.0f} %" if is_known and np.isfinite(share) else "-"
        for share, is_known in zip(rows["distance_share"], known, strict=True)
    ]


def cooccurrence_table(embeddings: Frame, attention: Frame, pairs: Frame) -> Frame:
    """Make Table 2: same-topic pairs, the pairs that share the most windows, and other pairs."""
    keys = ["model", "threshold"]
    over_layers = attention[attention["layer"] == 0]
    names = {"same": "together", "different": "others", "matched_different": "matched_others"}
    names |= {f"{old}_se": f"{new}_se" for old, new in names.items()}
    together = over_layers[over_layers["contrast"] == "pairs"].rename(columns=names)
    topic = over_layers[over_layers["contrast"] == "topic"]
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


def topic_table(words: list[list[str]], npmi: np.ndarray) -> Frame:
    """Tabulate the most likely words of each topic, the most coherent topic first."""
    order = np.argsort(-npmi, kind="stable")
    return pd.DataFrame(
        {
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
    if name == "split":
        return f"{100 * value:.0f} %"
    if error is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    if not np.isfinite(value) or is_by_nothing(row, name):
        return "-"
    if not np.isfinite(error) or error == 0:
        return f"{value:.{LEAST}f}"
    decimals = int(np.clip(1 - np.floor(np.log10(error)), LEAST, MOST))  # two digits of the error
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def is_by_nothing(row: Mapping[str, Any], name: str) -> bool:
    """Tell whether this is a ratio to a mean that is near zero, compared with its standard error."""
    below = f"{name.removesuffix('ratio')}different"
    return name.endswith("ratio") and below in row and abs(row[below]) < NEAR_ZERO * row[below + ERROR]
