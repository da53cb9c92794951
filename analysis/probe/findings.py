"""Findings of the tables of probed models, in sentences."""

import math
from collections.abc import Mapping, Sequence

from topicjax.errors import counted

from ..frames import Frame
from .tables import entry

ONE, SEVERAL = "one", "several"  # topics per word
PAIRINGS = {ONE: "One topic per word", SEVERAL: "One or several topics per word"}
UNOBTAINABLE = (
    "The checkpoints of the paper (BERT, ALBERT, BART, ELECTRA, RoBERTa) are not available from the package "
    "registry; each that lies in a folder gets its row with `topicjax probe --weights FOLDER`."
)


def findings(embeddings: Frame, attention: Frame, threshold: float) -> list[str]:
    """Write the answer for all models, then the numbers of each model at one threshold."""
    over_layers = attention[attention["layer"] == 0]
    sentences = [
        *(whole_answer(of(embeddings, each), of(over_layers, each), text) for each, text in PAIRINGS.items()),
        control_answer(of(embeddings, ONE), of(over_layers, ONE)),
    ]
    for name in dict.fromkeys(embeddings["model"]):
        similar = {each: at(of(embeddings, each), name, threshold) for each in PAIRINGS}
        attending = {each: at(of(over_layers, each), name, threshold) for each in PAIRINGS}
        if similar[ONE]["is_trained"]:
            layers = of(attention[attention["layer"] > 0], ONE)
            layers = layers[(layers["model"] == name) & (layers["threshold"] == threshold)]
            sentences.append(model_answer(name, similar, attending, layers, threshold))
    return [sentence for sentence in [*sentences, UNOBTAINABLE] if sentence]


def of(frame: Frame, pairing: str) -> Frame:
    """Select the rows of a pairing."""
    return frame[frame["pairing"] == pairing]


def at(frame: Frame, model: str, threshold: float) -> Frame:
    """Select the row of a model and threshold."""
    return frame[(frame["model"] == model) & (frame["threshold"] == threshold)].iloc[0]


def is_above(rows: Frame, column: str) -> Frame:
    """Mask the rows whose difference is above zero by more than two standard errors."""
    return rows[column] > 2 * rows[f"{column}_se"]


def everywhere(names: Sequence[str], rows: Frame, holds: Frame) -> int:
    """Count the models in which something holds at every threshold."""
    return sum(bool(holds[rows["model"] == name].all()) for name in names)


def whole_answer(embeddings: Frame, attention: Frame, pairing: str) -> str:
    """Say in how many trained models topics show at every threshold."""
    names = list(dict.fromkeys(embeddings.loc[embeddings["is_trained"], "model"]))
    similar = everywhere(names, embeddings, is_above(embeddings, "cosine_difference"))
    plain, matched = (
        everywhere(names, attention, is_above(attention, column))
        for column in ("difference", "matched_difference")
    )
    return (
        f"{pairing}: of {counted(len(names), 'trained model')}, same-topic words have more similar "
        f"embeddings in {similar}, attend more to each other in {plain}, and still do at equal distance in "
        f"{matched} (at every threshold, by more than two standard errors, which include "
        "the spread over topic fits)."
    )


def control_answer(embeddings: Frame, attention: Frame) -> str:
    """Say how large the differences are in untrained models."""
    controls = embeddings[~embeddings["is_trained"]]
    if controls.empty:
        return ""
    attending = attention[~attention["is_trained"]]
    return (
        "Without training, the largest difference between cosines of same-topic and different-topic words is "
        f"{largest(controls, 'cosine_difference')}, between attention at equal distance "
        f"{largest(attending, 'matched_difference')} (uniform attention: 1)."
    )


def largest(rows: Frame, name: str) -> str:
    """Write the value that is farthest from zero, with its error."""
    return entry(rows.loc[rows[name].abs().idxmax()], name) if rows[name].notna().any() else "unknown"


def model_answer(
    name: str, similar: Mapping[str, Frame], attending: Mapping[str, Frame], layers: Frame, threshold: float
) -> str:
    """Write the numbers of one model, by pairing."""
    cosine, weight, other = similar[ONE], attending[ONE], attending[SEVERAL]
    share, error = weight["distance_share"], weight["distance_share_se"]
    explained = (
        f"; distance explains {100 * share:.0f} ± {100 * error:.0f} % of it" if math.isfinite(share) else ""
    )
    above = int(is_above(layers, "matched_difference").sum())
    return (
        f"{name} (threshold {threshold:g}), same topic minus different topics, one topic per word: cosine "
        f"{entry(cosine, 'cosine_difference')} ({cosine['cosine_same']:.3f} within topics, "
        f"{cosine['cosine_different']:.3f} between{times(cosine, 'cosine_ratio')}); attention "
        f"{entry(weight, 'difference')} ({weight['same']:.3f} within, {weight['different']:.3f} between, "
        f"uniform: 1{times(weight, 'ratio')}), at equal distance {entry(weight, 'matched_difference')}"
        f"{explained}. At equal distance same-topic words get more in {above} of {len(layers)} layers. With "
        f"one or several topics per word: cosine {entry(similar[SEVERAL], 'cosine_difference')}, "
        f"attention {entry(other, 'difference')}, at equal distance "
        f"{entry(other, 'matched_difference')}."
    )


def times(row: Frame, name: str) -> str:
    """Write a ratio with its error; nothing where its denominator is too close to zero."""
    return f", {row[name]:.2f} ± {row[f'{name}_se']:.2f} times" if math.isfinite(row[name]) else ""
