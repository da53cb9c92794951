"""The settings of the one-layer model on topic documents, each declared once.

A new setting is a field here; its conversion, range check, help, table column and, if documents depend on it,
its place in theory's DataModel follow.  Imports no jax: theory and analysis read settings too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.experiments.one_layer.losses import OBJECTIVES
from topicjax.experiments.one_layer.optimizers import OPTIMIZERS, used
from topicjax.settings import MAX_INT32, Choice, Only, Real, Role, Whole
from topicjax.trial import Trial, TrialSettings

Objective = Literal["cross_entropy", "squared"]  # those that theory knows
KeyVisibility = Literal["all", "unmasked"]
InitLaw = Literal["normal", "uniform", "default"]
DOCUMENTS, TOPIC_WORDS, EXECUTION = Role.DOCUMENTS, Role.TOPIC_WORDS, Role.EXECUTION

# Traced fields hold plain values, then arrays: their type is Any, their kind says what is allowed.
Count = Annotated[Any, Whole(1)]
AutomaticSize = Annotated[int, Whole(0)]
Probability = Annotated[Any, Real(low=0, high=1)]
Positive = Annotated[Any, Real(above=0, smallest=1e-30)]  # a smaller concentration draws NaN in float32
NotNegative = Annotated[Any, Real(low=0)]
BelowOne = Annotated[Any, Real(low=0, below=1)]
Momentum = Annotated[BelowOne, "decay of the velocity", used("momentum")]
Beta1 = Annotated[BelowOne, "decay of the mean gradient", used("beta1")]
Beta2 = Annotated[BelowOne, "decay of the mean squared gradient", used("beta2")]
Epsilon = Annotated[NotNegative, "added to the root of the mean square", used("epsilon")]
WeightDecay = Annotated[NotNegative, "decoupled weight decay", used("weight_decay")]
MEMBER_SETTINGS = ("value_shift", "value_own", "value_random")  # which member of Lemma 1's family
MAX_LENGTHS = 100_000  # of documents: the kernel's room for queries is found by a sum over all of them
FINITE = Only("infinite_documents", (False,))
BLOCKS = Only("value", ("blocks",))


@dataclass(frozen=True)
class DocumentSpec:
    """Static settings of documents: those that every experiment on topic documents has."""

    topics: Annotated[int, Whole(1), "T: number of topics", DOCUMENTS] = 10
    words_per_topic: Annotated[int, Whole(1), "v: the vocabulary is T v words and [MASK]", DOCUMENTS] = 10
    documents: Annotated[Literal["lda", "tau"], "topic shares: Dirichlet, tau equal ones", DOCUMENTS] = "lda"
    infinite_documents: Annotated[bool, "Assumption 1: every count is its expectation", DOCUMENTS] = False
    word_distribution: Annotated[
        Literal["uniform", "zipf", "dirichlet"], "distribution of the words within a topic", TOPIC_WORDS
    ] = "uniform"
    batch_size: Annotated[int, Whole(1), "documents per step"] = 40
    eval_documents: Annotated[int, Whole(1), "held-out documents per record"] = 160
    word_query_probability: Annotated[
        float, Real(low=0, high=1), "largest p_mask (p_keep + p_random) among a program's trials", EXECUTION
    ] = 0.03
    shortest: Annotated[int, Whole(1), "largest length_min among a program's trials", EXECUTION] = 100
    longest: Annotated[int, Whole(1), "largest length_max among a program's trials", EXECUTION] = 150

    @property
    def num_words(self) -> int:
        """Return T v, the number of words of all topics, without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """Return V = T v + 1, the number of words and [MASK]."""
        return self.num_words + 1


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
    optimizer: Annotated[str, Choice(tuple(OPTIMIZERS)), "how weights are updated"] = "adam"
    steps: Annotated[int, Whole(1), "training steps at most, a multiple of record_every"] = 1000
    until: Annotated[
        Literal["steps", "decided"], "train for all steps, or until the class can no longer change"
    ] = "steps"
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20

    @property
    def width(self) -> int:
        """Return d, the size of an embedding."""
        return self.vocabulary if self.embedding == "one_hot" else self.embedding_dim or self.vocabulary

    @property
    def head_width(self) -> int:
        """Return d_a, the size of a key or a query."""
        return self.attention_dim or self.width


class Stream(NamedTuple):
    """Traced numbers that determine the documents: equal Streams see the same documents."""

    seed: Annotated[Any, Whole(0, MAX_INT32), "of the documents and the initial weights"] = 0
    alpha: Annotated[
        Positive, "Dirichlet concentration of the topic shares", DOCUMENTS, Only("documents", ("lda",))
    ] = 0.1
    topics_per_document: Annotated[
        Count, "tau: topics per document", DOCUMENTS, Only("documents", ("tau",))
    ] = 2
    length_min: Annotated[Count, "fewest words of a document", DOCUMENTS, FINITE] = 100
    length_max: Annotated[Count, "most words; every length between is as likely", DOCUMENTS, FINITE] = 150
    overlap: Annotated[Probability, "share of a topic's words that the one before uses", TOPIC_WORDS] = 0.0
    zipf_exponent: Annotated[
        NotNegative, "of Zipf's law", TOPIC_WORDS, Only("word_distribution", ("zipf",))
    ] = 1.0
    word_concentration: Annotated[
        Positive,
        "Dirichlet concentration of the words",
        TOPIC_WORDS,
        Only("word_distribution", ("dirichlet",)),
    ] = 1.0
    p_mask: Annotated[Any, Real(above=0, high=1), "p_m: a position is masked", DOCUMENTS] = 0.15
    p_keep: Annotated[Probability, "p_c: a masked position shows its own word", DOCUMENTS] = 0.1
    p_random: Annotated[Probability, "p_r: a masked position shows a random word", DOCUMENTS] = 0.1
    key_visibility: Annotated[
        Any, Choice(get_args(KeyVisibility)), "positions that are keys: all, or only unmasked ones", DOCUMENTS
    ] = "all"


class Hypers(NamedTuple):
    """Traced numbers that act on a trial given its documents."""

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
    momentum: Momentum = 0.9
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0


def check(trial: Trial) -> None:
    """Raise a one-sentence UserError unless settings, each of them in its range, go together."""
    spec, stream, _ = trial
    if spec.embedding == "one_hot" and spec.embedding_dim not in (0, spec.vocabulary):
        raise UserError(f"embedding_dim is {spec.embedding_dim}; allowed: 0 when embedding is 'one_hot'")
    if spec.value == "blocks" and spec.embedding != "one_hot":
        raise UserError(
            f"value is 'blocks'; allowed: only when embedding is 'one_hot', not {spec.embedding!r}"
        )
    check_documents(vars(spec) | stream._asdict())
    if stream.overlap > 0 and spec.topics < 2:
        raise UserError(f"overlap is {stream.overlap}; allowed: 0 when there is one topic")
    if spec.value == "blocks" and stream.p_keep + stream.p_random == 1:
        raise UserError("value is 'blocks'; allowed: only with p_keep + p_random below 1 (Theorem 2)")


def check_documents(settings: Mapping[str, Any]) -> None:
    """Raise a UserError unless documents can have these settings together, each of them in its range."""
    length_min, length_max = settings["length_min"], settings["length_max"]
    if length_min > length_max:
        raise UserError(f"length_min is {length_min}; allowed: at most length_max = {length_max}")
    if length_max - length_min >= MAX_LENGTHS:
        raise UserError(
            f"documents have {length_max - length_min + 1:,} different lengths; allowed: up to "
            f"{MAX_LENGTHS:,}; bring length_max = {length_max} and length_min = {length_min} closer together"
        )
    p_keep, p_random = settings["p_keep"], settings["p_random"]
    if p_keep + p_random > 1:
        raise UserError(f"p_keep + p_random is {p_keep} + {p_random}; allowed: a sum of at most 1")
    tau, topics = settings["topics_per_document"], settings["topics"]
    if settings["documents"] == "tau" and tau > topics:
        raise UserError(f"topics_per_document is {tau}; allowed: at most topics = {topics}")


TRIALS = TrialSettings(
    "one_layer",
    Spec,
    Stream,
    Hypers,
    check,
    id_prefix="",  # ids are those of topicjax 0.1, which had one experiment ...
    id_in_spec=("length_min", "length_max"),  # ... and compiled a program for each length
    id_unless_default=("until", *MEMBER_SETTINGS),
)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
DOCUMENT_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role is DOCUMENTS)
DATA_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role in (DOCUMENTS, TOPIC_WORDS))
convert, make_trial, settings_of = TRIALS.convert, TRIALS.make_trial, TRIALS.settings_of
trial_id, traced, code = TRIALS.trial_id, TRIALS.traced, TRIALS.code
