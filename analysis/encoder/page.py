"""The page of runs of the encoder: whether all layers of a deeper model behave like the one-layer model."""

import pandas as pd

from ..layers import ALL
from ..page.contract import Chart, Entry, Page, Staged
from ..topic_model import LINES
from .claims import CLAIMS
from .figures import layer_onsets, layer_topics, layers
from .findings import WORDS, findings
from .layer_maps import LOOKS, layer_map
from .scores import HAS_THETA, LAYER_CLASSES, LAYERS_FILE, UNDECIDED, score_layers
from .tables import (
    has_cells,
    has_layers,
    has_several_layers,
    layer_answers,
    layer_losses,
    layer_stages,
)

NO_ANSWER = tuple(  # stage 2 did not happen, or the errors do not let us tell
    name for name in LAYER_CLASSES if name not in HAS_THETA or name in ("stage 2 begun", UNDECIDED)
)
MEASURED = {  # view: suffix of its columns, what it measures
    "loss": ("", "what values and trained attention add to the held-out loss"),
    "norms": ("_norm", "the norms of W^V and of W^K and W^Q"),
}


def single_layers(scores: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of single layers of the models that have several."""
    return scores.loc[(scores["layer"] != ALL) & (scores["layers"] > 1)]


PAGE = Page(
    panels=("optimizer", "init"),  # so that the axes of the map are layers and layer norm, where they vary
    score=score_layers,
    of_trials=lambda scores: scores.loc[scores["layer"] == ALL].reset_index(drop=True),
    classes={name: LOOKS[name] for name in LAYER_CLASSES},
    staged=(
        *(
            Staged(f"whole model, {name}", ("two-stage",), NO_ANSWER, f"class{end}", f"theta{end}", words)
            for name, (end, words) in MEASURED.items()
        ),
        *(
            Staged(
                *(f"single layers, {name}", ("two-stage",), NO_ANSWER, f"class{end}", f"theta{end}", words),
                rows=single_layers,
                unit="layer",
            )
            for name, (end, words) in MEASURED.items()
        ),
    ),
    charts=(Chart("Held-out loss", {"eval_loss": "loss", "eval_loss_uniform": "uniform"}, references=True),),
    references=LINES,
    claims=CLAIMS,
    findings=findings,
    lead=(Entry("layer_map", layer_map),),
    figures={
        "Layers": (Entry("layers", layers, has_layers),),
        "Order": (Entry("layer_onsets", layer_onsets, has_several_layers),),
        "Topics": (Entry("layer_topics", layer_topics, has_layers),),
    },
    tables={
        "Tables": (
            Entry(
                "layer_answers",
                layer_answers,
                has_cells,
                "Cells in which every layer, some layers or no layer is two-stage, or all that are not are "
                "undecided; those without layers of their own class; and all layers together",
            ),
            Entry(
                "layer_losses",
                layer_losses,
                title="Final losses with attention as trained, forced uniform and silenced in all layers, "
                "mean and standard error over seeds (for one seed over its held-out documents); limit lines "
                "of the documents; layers in the order in which their attention and V start",
            ),
            Entry(
                "layer_stages",
                layer_stages,
                title="Layers: most frequent class by the loss and by the norms, Θ and onsets (medians over "
                "seeds), what values and attention add in nats, final attention",
            ),
        )
    },
    words=WORDS,
    replaces=("details",),
    file=LAYERS_FILE,
    file_holds="one row per trial and layer: scores and classes by the loss and by the norms, onsets",
)
