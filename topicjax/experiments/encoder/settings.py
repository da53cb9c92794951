"""Settings of the encoder on topic documents: those of documents and layers, and position embeddings."""

from dataclasses import dataclass
from typing import Annotated

from topicjax.errors import UserError
from topicjax.experiments.shared.settings import LayerHypers, LayerSpec, check_layers
from topicjax.settings import AutomaticSize, Whole
from topicjax.theory.document_settings import DocumentSpec, Stream, check_documents
from topicjax.trial import Trial, TrialSettings


@dataclass(frozen=True)
class Spec(LayerSpec, DocumentSpec):
    """Static settings: they change shapes or the program."""

    batch_size: Annotated[int, Whole(1), "documents per step"] = 16
    eval_documents: Annotated[int, Whole(1), "held-out documents per record"] = 64
    positions: Annotated[AutomaticSize, "learned position embeddings: maximum length in words; 0: none"] = 0

    @property
    def vocabulary(self) -> int:
        """V = T v + 1, the number of words and [MASK]."""
        return self.num_words + 1

    @property
    def places(self) -> int:
        """Number of positions with an embedding."""
        return self.positions


def check(trial: Trial) -> None:
    """Raise a UserError if settings, each valid by itself, contradict each other."""
    spec, stream, _ = trial
    check_layers(spec)
    if spec.positions and (spec.infinite_documents or spec.positions < stream.length_max):
        allowed = (
            "0 for infinite documents" if spec.infinite_documents else f"0, or at least {stream.length_max}"
        )
        raise UserError(f"positions is {spec.positions}; allowed: {allowed}")
    check_documents(spec, stream)


TRIALS = TrialSettings(
    "encoder",
    Spec,
    Stream,
    LayerHypers,
    check,
    id_unless_default=("rare_every", "pair_strength", "init_seed"),
)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
make_trial, settings_of = TRIALS.make_trial, TRIALS.settings_of
traced, code = TRIALS.traced, TRIALS.code
