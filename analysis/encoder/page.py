"""The page of runs of the encoder: do all layers of a deeper model behave like the one?"""

import pandas as pd

from topicjax.store.reader import Run

from ..one_layer.catalogue import Catalogue, Entry, any_run
from .figures import layer_onsets, layer_topics, layers
from .layer_findings import WORDS, findings
from .layer_maps import layer_map
from .layer_tables import (
    has_cells,
    has_layers,
    has_several_layers,
    layer_answers,
    layer_losses,
    layer_stages,
)
from .scores import LAYERS_FILE, score_layers


def score(run: Run, x: str | None = None, y: str | None = None) -> pd.DataFrame:
    """Return the scores of all layers; they need no axes."""
    return score_layers(run)


CATALOGUE = Catalogue(
    score=score,
    findings=findings,
    lead=(Entry("layer_map", any_run, layer_map),),
    figures={
        "Layers": (Entry("layers", has_layers, layers),),
        "Order": (Entry("layer_onsets", has_several_layers, layer_onsets),),
        "Topics": (Entry("layer_topics", has_layers, layer_topics),),
    },
    tables={
        "Tables": (
            Entry(
                "layer_answers",
                has_cells,
                layer_answers,
                "Cells in which every layer, some layers or none are two-stage, and all layers together",
            ),
            Entry(
                "layer_losses",
                any_run,
                layer_losses,
                "Losses at the end with attention as trained, forced uniform and silenced in all layers, "
                "mean and standard error over seeds (of one seed over its held-out documents); lines of the "
                "documents; layers in the order in which their attention and V start",
            ),
            Entry(
                "layer_stages",
                any_run,
                layer_stages,
                "Layers: class of most seeds by the loss and by the norms, Θ and onsets (medians over "
                "seeds), what values and attention add in nats, attention in the end",
            ),
        )
    },
    words=WORDS,
    live=False,
    replaces=("details",),  # over trials of all settings
    file=LAYERS_FILE,
)
