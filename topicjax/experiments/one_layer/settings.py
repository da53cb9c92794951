"""Settings of the one-layer model on topic documents, each declared once.

To add a setting, add a field here (for documents: in theory.document_settings); its conversion, range check,
help and table column follow.  Imports no jax: analysis reads settings too.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.experiments.shared.losses import OBJECTIVES
from topicjax.experiments.shared.optimizers import OPTIMIZERS, Beta1, Beta2, Epsilon, Momentum, WeightDecay
from topicjax.experiments.shared.settings import InitLaw, InitSeed
from topicjax.settings import AutomaticSize, Choice, NotNegative, Only, Real, RecordsPerDecade, Whole
from topicjax.theory.document_settings import DocumentSpec, Stream, check_documents
from topicjax.trial import Trial, TrialSettings

MEMBER_SETTINGS = ("value_shift", "value_own", "value_random")  # select a member of Lemma 1's family
BLOCKS = Only("value", ("blocks",))
SCHEDULE_SETTINGS = ("value_from", "value_until", "attention_from", "attention_until", "alternate")
BY_PART = Only("training", ("by_part",))
AttentionWeights = Literal["softmax", "scores_only", "one_plus_scores", "one_plus_centred"]
SOFTMAX: AttentionWeights = "softmax"


@dataclass(frozen=True)
class Spec(DocumentSpec):
    """Static settings: they change shapes or the program."""

    embedding: Annotated[Literal["one_hot", "trained", "random"], "W^E; random ones stay frozen"] = "one_hot"
    embedding_dim: Annotated[AutomaticSize, "d of trained or random embeddings; 0: the vocabulary size"] = 0
    attention: Annotated[Literal["trained", "uniform"], "W^K and W^Q; uniform: neither acts"] = "trained"
    attention_dim: Annotated[AutomaticSize, "d_a, the size of keys and queries; 0: the embedding size"] = 0
    value: Annotated[
        Literal["trained", "identity", "blocks"], "W^V; blocks: frozen at Theorem 2, or as value_* say"
    ] = "trained"
    output_bias: Annotated[
        Literal["trained", "zero", "theorem1"], "b^pred; theorem1: frozen at the constant of Theorem 1"
    ] = "zero"
    attention_biases: Annotated[Literal["trained", "absent"], "b^K, b^Q and b^V"] = "absent"
    training: Annotated[
        Literal["together", "by_part"], "every step trains all parts, or those whose turn it is (*_from, ...)"
    ] = "together"
    optimizer: Annotated[str, Choice(tuple(OPTIMIZERS)), "how weights are updated"] = "adam"
    steps: Annotated[int, Whole(1), "training steps at most, a multiple of record_every"] = 1000
    until: Annotated[
        Literal["steps", "decided"], "train for all steps, or until the class can no longer change"
    ] = "steps"
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20
    records_per_decade: RecordsPerDecade = 0
    attention_weights: Annotated[
        AttentionWeights,
        "weight of a key among n: softmax of its score S, S/n, (1 + S)/n, or (1 + S - mean S)/n",
        Only("attention", ("trained",)),
    ] = "softmax"
    mask_query_loss: Annotated[
        bool,
        "record eval_loss_mask_query, the held-out loss if every query had the scores of [MASK]",
        Only("attention", ("trained",)),
    ] = False

    @property
    def width(self) -> int:
        """d, the size of an embedding."""
        return self.vocabulary if self.embedding == "one_hot" else self.embedding_dim or self.vocabulary

    @property
    def head_width(self) -> int:
        """d_a, the size of a key or query."""
        return self.attention_dim or self.width


class Hypers(NamedTuple):
    """Traced numbers that act on a trial, given its documents."""

    learning_rate: Annotated[NotNegative, "of the optimizer"] = 1e-2
    objective: Annotated[Any, Choice(tuple(OBJECTIVES)), "loss to train and record"] = "cross_entropy"
    init: Annotated[
        Any, Choice(get_args(InitLaw)), "normal(0, s), uniform on [0, s), or s times a linear layer's default"
    ] = "normal"
    init_scale: Annotated[NotNegative, "s: scale of the initial weights"] = 1e-3
    embedding_scale: Annotated[
        NotNegative, "expected norm of an embedding", Only("embedding", ("trained", "random"))
    ] = 1.0
    l2: Annotated[NotNegative, "lambda of eq. (2), over all trained parameters"] = 0.0
    value_shift: Annotated[
        Any, Real(), "of a frozen W^V in Lemma 1's family: u is 1 - this times Theorem 2's", BLOCKS
    ] = 0.0
    value_own: Annotated[
        Any, Real(), "of a frozen W^V: share of a topic's sum on the word itself; 1: no other", BLOCKS
    ] = 0.0
    value_random: Annotated[
        NotNegative, "of a frozen W^V: random part, in units of a block's height; sums stay", BLOCKS
    ] = 0.0
    value_from: Annotated[Any, Whole(0), "first step that trains W^V and b^V", BY_PART] = 0
    value_until: Annotated[Any, Whole(0), "step from which they are frozen; 0: never", BY_PART] = 0
    attention_from: Annotated[Any, Whole(0), "first step that trains W^K, W^Q, b^K and b^Q", BY_PART] = 0
    attention_until: Annotated[Any, Whole(0), "step from which they are frozen; 0: never", BY_PART] = 0
    alternate: Annotated[
        Any, Whole(0), "steps of W^V, then as many of W^K and W^Q, and so on; 0: no turns", BY_PART
    ] = 0
    momentum: Momentum = 0.9
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    init_seed: InitSeed = -1


def check(trial: Trial) -> None:
    """Raise a UserError if settings, each valid by itself, contradict each other."""
    spec, stream, hypers = trial
    if spec.embedding == "one_hot" and spec.embedding_dim not in (0, spec.vocabulary):
        raise UserError(f"embedding_dim is {spec.embedding_dim}; allowed: 0 when embedding is 'one_hot'")
    if spec.value == "blocks" and spec.embedding != "one_hot":
        raise UserError(
            f"value is 'blocks'; allowed: only when embedding is 'one_hot', not {spec.embedding!r}"
        )
    check_documents(spec, stream)
    if spec.training == "by_part":
        check_schedule(spec, hypers)
    if spec.until == "decided" and spec.attention_weights != SOFTMAX:
        raise UserError(
            "until is 'decided'; allowed: 'steps' when attention_weights is "
            f"{spec.attention_weights!r}: the rule extrapolates how softmax attention grows"
        )
    if spec.value == "blocks" and stream.p_keep + stream.p_random == 1:
        raise UserError("value is 'blocks'; allowed: only with p_keep + p_random below 1 (Theorem 2)")


def check_schedule(spec: Spec, hypers: Hypers) -> None:
    """Raise a UserError if a part ends before it begins, or if a trial may end before a part has begun."""
    for part in ("value", "attention"):
        first, end = getattr(hypers, f"{part}_from"), getattr(hypers, f"{part}_until")
        if 0 < end <= first:
            raise UserError(f"{part}_until is {end}; allowed: 0, or more than {part}_from = {first}")
    if spec.until == "decided":
        raise UserError("until is 'decided'; allowed: 'steps' when training is 'by_part'")


TRIALS = TrialSettings(
    "one_layer",
    Spec,
    Stream,
    Hypers,
    check,
    id_prefix="",  # keeps the ids of topicjax 0.1, which had one experiment ...
    id_in_spec=("length_min", "length_max"),  # ... and compiled a program for each length
    id_unless_default=(
        *("until", *MEMBER_SETTINGS, "training", *SCHEDULE_SETTINGS, "pair_strength"),
        *("init_seed", "attention_weights", "mask_query_loss"),
    ),
)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
convert, make_trial, settings_of = TRIALS.convert, TRIALS.make_trial, TRIALS.settings_of
trial_id, traced, code = TRIALS.trial_id, TRIALS.traced, TRIALS.code
