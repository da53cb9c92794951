"""Settings that several experiments share: initial weights, and the layers of an encoder.

What changes shapes is static (layers, heads, MLP); residual connections and layer norms are traced, so
trials with and without them share a program and their data.  Imports no jax.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.experiments.shared.losses import OBJECTIVES
from topicjax.experiments.shared.optimizers import OPTIMIZERS, Beta1, Beta2, Epsilon, Momentum, WeightDecay
from topicjax.settings import MAX_INT32, Choice, Flag, NotNegative, Only, RecordsPerDecade, Whole

InitLaw = Literal["normal", "uniform", "default"]
LayerNorm = Literal["none", "pre", "post"]
InitSeed = Annotated[Any, Whole(-1, MAX_INT32), "of the initial weights; -1: the same as seed"]
PRE_NORM, POST_NORM = (get_args(LayerNorm).index(name) for name in ("pre", "post"))
MAX_WIDTH = 65_536  # beyond, not even the shapes of the weights can be traced
MAX_LAYERS, MAX_HEADS = 48, 8  # each head has its own columns in the records


@dataclass(frozen=True)
class LayerSpec:
    """Static settings of layers and their training, common to all experiments with an encoder."""

    layers: Annotated[int, Whole(1, MAX_LAYERS), "L: number of layers"] = 2
    heads: Annotated[int, Whole(1, MAX_HEADS), "H: attention heads per layer"] = 1
    width: Annotated[int, Whole(0, MAX_WIDTH), "d, a multiple of heads; 0: the vocabulary size"] = 64
    embedding: Annotated[Literal["trained", "random", "one_hot"], "W^E; only trained ones change"] = "trained"
    attention: Annotated[Literal["trained", "uniform"], "W^K and W^Q; uniform: both are zero"] = "trained"
    output_projection: Annotated[bool, "W^O, after the heads are joined"] = False
    mlp: Annotated[int, Whole(0, MAX_WIDTH), "hidden units of each layer's MLP; 0: no MLP"] = 0
    head: Annotated[Literal["tied", "free"], "outputs by W^E, or by a matrix of their own"] = "tied"
    output_bias: Annotated[Literal["trained", "zero"], "b^pred"] = "zero"
    optimizer: Annotated[str, Choice(tuple(OPTIMIZERS)), "how weights are updated"] = "adam"
    steps: Annotated[int, Whole(1), "training steps, a multiple of record_every"] = 600
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20
    records_per_decade: RecordsPerDecade = 0
    rare_every: Annotated[int, Whole(1), "records from one measurement of single layers to the next"] = 4

    @property
    def vocabulary(self) -> int:
        """V, the number of words and [MASK]."""
        raise NotImplementedError

    @property
    def places(self) -> int:
        """Number of positions with an embedding; 0: the model ignores positions."""
        raise NotImplementedError

    @property
    def reach(self) -> int:
        """r, the largest distance with a learned relative bias of its own; 0: scores ignore distances."""
        return 0

    @property
    def size(self) -> int:
        """d, the size of a state."""
        return self.width or self.vocabulary

    @property
    def head_size(self) -> int:
        """d / H, the size of a key, query or value of one head."""
        return self.size // self.heads


class LayerHypers(NamedTuple):
    """Traced numbers that act on an encoder, given its data."""

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
    init_seed: InitSeed = -1


def check_objective(hypers: Any, known: tuple[str, ...], needed_for: str) -> None:
    """Raise a UserError if an experiment has parts of its own for each objective, and none for this one."""
    if hypers.objective not in known:
        raise UserError(
            f"objective is {hypers.objective!r}; allowed: {', '.join(known)}: {needed_for} is known for these"
        )


def check_layers(spec: LayerSpec) -> None:
    """Raise a UserError if the sizes of layers contradict each other."""
    if spec.size % spec.heads:
        raise UserError(f"heads is {spec.heads}; allowed: a divisor of the width, {spec.size}")
    if spec.embedding == "one_hot" and spec.size != spec.vocabulary:
        raise UserError(f"width is {spec.width}; allowed: 0 when embedding is 'one_hot'")
