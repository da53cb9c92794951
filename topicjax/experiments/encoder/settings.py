"""The settings of the encoder on topic documents, each declared once; documents have those of one_layer.

What changes shapes is static (layers, heads, MLP); residual connections and layer norms are traced, so that
trials with and without them share a program and their documents.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.experiments.one_layer.losses import OBJECTIVES
from topicjax.experiments.one_layer.optimizers import OPTIMIZERS
from topicjax.experiments.one_layer.settings import (
    AutomaticSize,
    Beta1,
    Beta2,
    DocumentSpec,
    Epsilon,
    InitLaw,
    Momentum,
    NotNegative,
    Stream,
    WeightDecay,
    check_documents,
)
from topicjax.settings import Choice, Flag, Only, Whole
from topicjax.trial import Trial, TrialSettings

LayerNorm = Literal["none", "pre", "post"]
MAX_LAYERS, MAX_HEADS = 48, 8  # each head has its own columns in the records


@dataclass(frozen=True)
class LayerSpec:
    """Static settings of layers and of their training: those that every experiment with an encoder has."""

    layers: Annotated[int, Whole(1, MAX_LAYERS), "L: number of layers"] = 2
    heads: Annotated[int, Whole(1, MAX_HEADS), "H: attention heads per layer"] = 1
    width: Annotated[AutomaticSize, "d, a multiple of heads; 0: the vocabulary size"] = 64
    embedding: Annotated[Literal["trained", "random", "one_hot"], "W^E; only trained ones change"] = "trained"
    attention: Annotated[Literal["trained", "uniform"], "W^K and W^Q; uniform: both are zero"] = "trained"
    output_projection: Annotated[bool, "W^O, after the heads are joined"] = False
    mlp: Annotated[AutomaticSize, "hidden units of each layer's MLP; 0: no MLP"] = 0
    head: Annotated[Literal["tied", "free"], "outputs by W^E, or by a matrix of their own"] = "tied"
    output_bias: Annotated[Literal["trained", "zero"], "b^pred"] = "zero"
    optimizer: Annotated[str, Choice(tuple(OPTIMIZERS)), "how weights are updated"] = "adam"
    steps: Annotated[int, Whole(1), "training steps, a multiple of record_every"] = 600
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20

    @property
    def vocabulary(self) -> int:
        """Return V, the number of words and [MASK]."""
        raise NotImplementedError

    @property
    def places(self) -> int:
        """Return how many positions have an embedding of their own; 0: positions are not told apart."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Return d, the size of a state."""
        return self.width or self.vocabulary

    @property
    def head_size(self) -> int:
        """Return d / H, the size of a key, query or value of one head."""
        return self.size // self.heads


@dataclass(frozen=True)
class Spec(LayerSpec, DocumentSpec):
    """Static settings: they change shapes or the program."""

    batch_size: Annotated[int, Whole(1), "documents per step"] = 16
    eval_documents: Annotated[int, Whole(1), "held-out documents per record"] = 64
    positions: Annotated[
        AutomaticSize, "learned position embeddings, for documents of up to so many words; 0: none"
    ] = 0

    @property
    def vocabulary(self) -> int:
        """Return V = T v + 1, the number of words and [MASK]."""
        return self.num_words + 1

    @property
    def places(self) -> int:
        """Return how many positions have an embedding of their own."""
        return self.positions


class Hypers(NamedTuple):
    """Traced numbers that act on a trial given its documents."""

    learning_rate: Annotated[NotNegative, "of the optimizer"] = 1e-3
    objective: Annotated[Any, Choice(tuple(OBJECTIVES)), "loss to train and record"] = "cross_entropy"
    residual: Annotated[Any, Flag(), "the input of attention and MLP is added to their output"] = True
    layer_norm: Annotated[
        Any, Choice(get_args(LayerNorm)), "before attention and MLP, or after each of them"
    ] = "none"
    init: Annotated[
        Any,
        Choice(get_args(InitLaw)),
        "W^K, W^Q, W^V: normal(0, s), uniform on [0, s), or s times a linear layer's default",
    ] = "normal"
    init_scale: Annotated[NotNegative, "s: scale of the initial W^K, W^Q, W^V"] = 1e-3
    embedding_scale: Annotated[
        NotNegative, "expected norm of an embedding", Only("embedding", ("trained", "random"))
    ] = 1.0
    l2: Annotated[NotNegative, "lambda of eq. (2), over all trained parameters"] = 0.0
    momentum: Momentum = 0.9
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0


def check(trial: Trial) -> None:
    """Raise a one-sentence UserError unless settings, each of them in its range, go together."""
    spec, stream, _ = trial
    check_layers(spec)
    if spec.positions and (spec.infinite_documents or spec.positions < stream.length_max):
        allowed = (
            "0 for infinite documents" if spec.infinite_documents else f"0, or at least {stream.length_max}"
        )
        raise UserError(f"positions is {spec.positions}; allowed: {allowed}")
    check_documents(vars(spec) | stream._asdict())
    if stream.overlap > 0 and spec.topics < 2:
        raise UserError(f"overlap is {stream.overlap}; allowed: 0 when there is one topic")


def check_layers(spec: LayerSpec) -> None:
    """Raise a UserError unless the sizes of layers go together."""
    if spec.size % spec.heads:
        raise UserError(f"heads is {spec.heads}; allowed: a divisor of the width, {spec.size}")
    if spec.embedding == "one_hot" and spec.size != spec.vocabulary:
        raise UserError(f"width is {spec.width}; allowed: 0 when embedding is 'one_hot'")


TRIALS = TrialSettings("encoder", Spec, Stream, Hypers, check)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
make_trial, settings_of = TRIALS.make_trial, TRIALS.settings_of
traced, code = TRIALS.traced, TRIALS.code
