"""Trials: settings that are static (Spec), that fix the documents (Stream), that act on the weights (Hypers).

A trial is fully described by these settings, and its identity is a short hash of them.  Each distinct Spec is
compiled once; Streams and Hypers are traced numbers, so a new learning rate never recompiles.  A new setting
is declared here as a field; its conversion, range check, help, table column and, if documents depend on it,
its place in theory's DataModel follow.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from topicjax.errors import UserError, unknown_name
from topicjax.settings import MAX_INT32, Choice, Real, Role, Setting, Whole, declared

Objective = Literal["cross_entropy", "squared"]
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


@dataclass(frozen=True)
class Spec:
    """Static settings: they change shapes or the program."""

    topics: Annotated[int, Whole(1), "T: number of topics", DOCUMENTS] = 10
    words_per_topic: Annotated[int, Whole(1), "v: the vocabulary is T v words and [MASK]", DOCUMENTS] = 10
    documents: Annotated[Literal["lda", "tau"], "topic shares: Dirichlet, tau equal ones", DOCUMENTS] = "lda"
    infinite_documents: Annotated[bool, "Assumption 1: every count is its expectation", DOCUMENTS] = False
    word_distribution: Annotated[
        Literal["uniform", "zipf", "dirichlet"], "distribution of the words within a topic", TOPIC_WORDS
    ] = "uniform"
    length_min: Annotated[int, Whole(1), "fewest words of a document", DOCUMENTS] = 100
    length_max: Annotated[int, Whole(1), "most words; every length between is as likely", DOCUMENTS] = 150
    batch_size: Annotated[int, Whole(1), "documents per step"] = 40
    eval_documents: Annotated[int, Whole(1), "held-out documents per record"] = 160
    embedding: Annotated[Literal["one_hot", "trained", "random"], "W^E; random ones stay frozen"] = "one_hot"
    embedding_dim: Annotated[AutomaticSize, "d of trained or random embeddings; 0: the vocabulary size"] = 0
    attention: Annotated[Literal["trained", "uniform"], "W^K and W^Q; uniform: neither acts"] = "trained"
    attention_dim: Annotated[AutomaticSize, "d_a, the size of keys and queries; 0: the embedding size"] = 0
    value: Annotated[
        Literal["trained", "identity", "blocks"], "W^V; blocks: frozen at the optimum of Theorem 2"
    ] = "trained"
    output_bias: Annotated[
        Literal["trained", "zero", "theorem1"], "b^pred; theorem1: frozen at the constant of Theorem 1"
    ] = "zero"
    attention_biases: Annotated[Literal["trained", "absent"], "b^K, b^Q and b^V"] = "absent"
    optimizer: Annotated[Literal["sgd", "momentum", "adam", "adamw"], "how weights are updated"] = "adam"
    steps: Annotated[int, Whole(1), "training steps, a multiple of record_every"] = 1000
    record_every: Annotated[int, Whole(1), "steps from one record to the next"] = 20
    word_query_probability: Annotated[
        float, Real(low=0, high=1), "largest p_mask (p_keep + p_random) among a program's trials", EXECUTION
    ] = 0.03

    @property
    def num_words(self) -> int:
        """Return T v, the number of words of all topics, without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """Return V = T v + 1, the number of words and [MASK]."""
        return self.num_words + 1

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
    alpha: Annotated[Positive, "Dirichlet concentration of the topic shares (documents=lda)", DOCUMENTS] = 0.1
    topics_per_document: Annotated[Count, "tau: topics per document (documents=tau)", DOCUMENTS] = 2
    overlap: Annotated[Probability, "share of a topic's words that the one before uses", TOPIC_WORDS] = 0.0
    zipf_exponent: Annotated[NotNegative, "of Zipf's law (word_distribution=zipf)", TOPIC_WORDS] = 1.0
    word_concentration: Annotated[
        Positive, "Dirichlet concentration of the words (word_distribution=dirichlet)", TOPIC_WORDS
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
    objective: Annotated[Any, Choice(get_args(Objective)), "loss to train and record"] = "cross_entropy"
    init: Annotated[
        Any, Choice(get_args(InitLaw)), "normal(0, s), uniform on [0, s), or s times a linear layer's default"
    ] = "normal"
    init_scale: Annotated[NotNegative, "s: scale of the initial weights"] = 1e-3
    embedding_scale: Annotated[NotNegative, "expected norm of an embedding (embedding=trained, random)"] = 1.0
    l2: Annotated[NotNegative, "lambda of eq. (2), over all trained parameters"] = 0.0
    momentum: Annotated[BelowOne, "decay of the velocity (optimizer=momentum)"] = 0.9
    beta1: Annotated[BelowOne, "decay of the mean gradient (optimizer=adam, adamw)"] = 0.9
    beta2: Annotated[BelowOne, "decay of the mean squared gradient (optimizer=adam, adamw)"] = 0.999
    epsilon: Annotated[NotNegative, "added to the root of the mean square (optimizer=adam, adamw)"] = 1e-8
    weight_decay: Annotated[NotNegative, "decoupled weight decay (optimizer=adamw)"] = 0.0


class Trial(NamedTuple):
    """One training run, fully described."""

    spec: Spec
    stream: Stream
    hypers: Hypers


SETTINGS: dict[str, Setting] = {  # what identifies a trial
    name: setting
    for part in (Spec, Stream, Hypers)
    for name, setting in declared(part).items()
    if setting.role is not EXECUTION
}
DEFAULTS: dict[str, Any] = {name: setting.default for name, setting in SETTINGS.items()}
DOCUMENT_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role is DOCUMENTS)
DATA_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role in (DOCUMENTS, TOPIC_WORDS))
SPEC_SETTINGS = tuple(name for name in declared(Spec) if name in SETTINGS)


def make_trial(settings: Mapping[str, Any]) -> Trial:
    """Return the validated trial with these settings and defaults for all others."""
    given = {name: convert(name, value) for name, value in settings.items()}
    trial = Trial(
        Spec(**{name: given[name] for name in SPEC_SETTINGS if name in given}),
        Stream(**{name: given[name] for name in Stream._fields if name in given}),
        Hypers(**{name: given[name] for name in Hypers._fields if name in given}),
    )
    validate(trial)
    return trial


def settings_of(trial: Trial) -> dict[str, Any]:
    """Return every setting that identifies the trial, by name."""
    every = vars(trial.spec) | trial.stream._asdict() | trial.hypers._asdict()
    return {name: every[name] for name in SETTINGS}


def trial_id(trial: Trial) -> str:
    """Return the trial's identity: 12 hexadecimal digits that depend on its settings alone."""
    text = "\n".join(map(part_text, trial))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=4096)
def part_text(part: Spec | Stream | Hypers) -> str:
    """Return the identifying settings of one part as text; cached, since trials share parts."""
    settings = vars(part) if isinstance(part, Spec) else part._asdict()
    return json.dumps({name: settings[name] for name in sorted(settings) if name in SETTINGS})


def convert(name: str, value: Any) -> Any:
    """Return the value in the type of the setting, or raise a UserError that says what is allowed."""
    if name not in SETTINGS:
        raise UserError(unknown_name("setting", name, SETTINGS))
    return SETTINGS[name].convert(value)


def validate(trial: Trial) -> None:
    """Raise a one-sentence UserError unless a trial can have these settings."""
    validate_spec(trial.spec)
    spec, stream, hypers = trial
    for part in (stream, hypers):
        for name, value in zip(part._fields, part, strict=True):
            SETTINGS[name].check(value)
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
    p_keep, p_random = settings["p_keep"], settings["p_random"]
    if p_keep + p_random > 1:
        raise UserError(f"p_keep + p_random is {p_keep} + {p_random}; allowed: a sum of at most 1")
    tau, topics = settings["topics_per_document"], settings["topics"]
    if settings["documents"] == "tau" and tau > topics:
        raise UserError(f"topics_per_document is {tau}; allowed: at most topics = {topics}")


@functools.lru_cache(maxsize=4096)
def validate_spec(spec: Spec) -> None:
    """Raise a one-sentence UserError unless a model can be trained with these static settings."""
    for name in SPEC_SETTINGS:
        SETTINGS[name].check(getattr(spec, name))
    if spec.steps % spec.record_every:
        raise UserError(f"steps is {spec.steps}; allowed: a multiple of record_every = {spec.record_every}")
    if spec.embedding == "one_hot" and spec.embedding_dim not in (0, spec.vocabulary):
        raise UserError(f"embedding_dim is {spec.embedding_dim}; allowed: 0 when embedding is 'one_hot'")
    if spec.value == "blocks" and spec.embedding != "one_hot":
        raise UserError(
            f"value is 'blocks'; allowed: only when embedding is 'one_hot', not {spec.embedding!r}"
        )


def code(name: str, value: str) -> int:
    """Return the number that stands for a value of a choice in compiled programs."""
    kind = SETTINGS[name].kind
    if not isinstance(kind, Choice):
        raise TypeError(f"{name} is not a choice of names")
    return kind.code(value)


Part = TypeVar("Part", Stream, Hypers)


def traced(part: Part) -> Part:
    """Return the settings as the NumPy scalars that compiled programs take."""
    values = part._asdict().items()
    return part._replace(**{name: SETTINGS[name].kind.traced(value) for name, value in values})
