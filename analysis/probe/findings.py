"""Findings of the tables of probed models, in sentences."""

from collections.abc import Sequence

from topicjax.errors import counted

from ..frames import Frame

UNOBTAINABLE = (
    "The checkpoints of the paper (BERT, ALBERT, BART, ELECTRA, RoBERTa) are not available from the package "
    "registry; each that lies in a folder gets its row with `topicjax probe --weights FOLDER`."
)


def findings(embeddings: Frame, attention: Frame, threshold: float) -> list[str]:
    """Write the answer for all models, then the numbers of each model at one threshold."""
    over_layers = attention[(attention["contrast"] == "topic") & (attention["layer"] == 0)]
    sentences = [whole_answer(embeddings, over_layers), control_answer(embeddings, over_layers)]
    for name in dict.fromkeys(embeddings["model"]):
        similar = at(embeddings, name, threshold)
        attending = at(over_layers, name, threshold)
        if similar["is_trained"]:
            layers = attention[(attention["contrast"] == "topic") & (attention["layer"] > 0)]
            layers = layers[(layers["model"] == name) & (layers["threshold"] == threshold)]
            sentences.append(model_answer(name, similar, attending, layers, threshold))
    return [sentence for sentence in [*sentences, UNOBTAINABLE] if sentence]


def at(frame: Frame, model: str, threshold: float) -> Frame:
    """Select the row of a model and threshold."""
    return frame[(frame["model"] == model) & (frame["threshold"] == threshold)].iloc[0]


def is_above(rows: Frame, column: str) -> Frame:
    """Mask the rows whose excess is above zero by more than two standard errors."""
    return rows[column] > 2 * rows[f"{column}_se"]


def everywhere(names: Sequence[str], rows: Frame, holds: Frame) -> int:
    """Count the models in which something holds at every threshold."""
    return sum(bool(holds[rows["model"] == name].all()) for name in names)


def whole_answer(embeddings: Frame, attention: Frame) -> str:
    """Say in how many trained models topics show at every threshold."""
    names = list(dict.fromkeys(embeddings.loc[embeddings["is_trained"], "model"]))
    similar = everywhere(names, embeddings, is_above(embeddings, "cosine_excess"))
    plain, matched = (
        everywhere(names, attention, is_above(attention, column)) for column in ("excess", "matched_excess")
    )
    return (
        f"Of {counted(len(names), 'trained model')}, same-topic words have more similar embeddings in "
        f"{similar}, attend more to each other in {plain}, and still do at equal distance in {matched} (at "
        "every threshold, by more than two standard errors)."
    )


def control_answer(embeddings: Frame, attention: Frame) -> str:
    """Say how large the differences are in untrained models."""
    controls = embeddings[~embeddings["is_trained"]]
    if controls.empty:
        return ""
    attending = attention[~attention["is_trained"]]
    cosine, weight = controls["cosine_excess"].abs().max(), attending["matched_excess"].abs().max()
    return (
        "Without training the differences are small: cosines of same-topic and different-topic words differ "
        f"by at most {cosine:.4f}, attention at equal distance by at most {weight:.4f} of uniform attention."
    )


def model_answer(name: str, similar: Frame, attending: Frame, layers: Frame, threshold: float) -> str:
    """Write the numbers of one model."""
    known = attending["excess"] > 2 * attending["excess_se"]
    share = f"; distance explains {100 * attending['distance_share']:.0f} % of the excess" if known else ""
    above = int(is_above(layers, "matched_excess").sum())
    return (
        f"{name} (threshold {threshold:g}): cosine {similar['cosine_same']:.3f} within topics, "
        f"{similar['cosine_different']:.3f} between; attention {attending['same']:.3f} within, "
        f"{attending['different']:.3f} between, {attending['matched_different']:.3f} between at equal "
        f"distance (uniform: 1){share}. At equal distance same-topic words get more in {above} of "
        f"{len(layers)} layers."
    )
