"""What a trial is: settings that are static (Spec), that fix its documents (Stream), that act on it (Hypers).

A trial is fully described by these settings, and its identity is a short hash of them.  Every distinct
Spec is one compiled program; Streams and Hypers are traced numbers, so a new learning rate never recompiles.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

Objective = Literal["cross_entropy", "squared"]
KeyVisibility = Literal["all", "unmasked"]
InitLaw = Literal["normal", "uniform", "default"]
MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class Spec:
    """Static settings: they change shapes or the program."""

    # documents
    topics: int = 10  # T
    words_per_topic: int = 10  # v; the vocabulary is T v words and [MASK]
    documents: Literal["lda", "tau"] = "lda"  # topic proportions: Dirichlet, or tau equal topics
    infinite_documents: bool = False  # Assumption 1: counts are replaced by their expectation
    word_distribution: Literal["uniform", "zipf", "dirichlet"] = "uniform"  # within a topic
    length_min: int = 100  # words in a document: uniform on [length_min, length_max]
    length_max: int = 150
    batch_size: int = 40
    eval_documents: int = 160  # held-out documents of every record
    # model
    embedding: Literal["one_hot", "trained", "random"] = "one_hot"  # random: frozen
    embedding_dim: int = 0  # d of trained and random embeddings; 0: the vocabulary size
    attention: Literal["trained", "uniform"] = "trained"
    attention_dim: int = 0  # d_a; 0: the embedding dimension
    value: Literal["trained", "identity", "blocks"] = "trained"  # blocks: Theorem 2, frozen
    output_bias: Literal["trained", "zero", "theorem1"] = "zero"  # b^pred
    attention_biases: Literal["trained", "absent"] = "absent"  # b^K, b^Q, b^V
    # training
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = "adam"
    steps: int = 1000
    record_every: int = 20
    # execution: not part of a trial's identity
    row_probability: float = 0.03  # largest p_mask (p_keep + p_random) of the program's trials

    @property
    def num_words(self) -> int:
        """T v: the words of all topics, without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """V = T v + 1: the words and [MASK]."""
        return self.num_words + 1

    @property
    def width(self) -> int:
        """d: how many numbers represent a token."""
        return self.vocabulary if self.embedding == "one_hot" else self.embedding_dim or self.vocabulary

    @property
    def head_width(self) -> int:
        """d_a: how many numbers a key or a query has."""
        return self.attention_dim or self.width


class Stream(NamedTuple):
    """Traced numbers that determine the documents: equal Streams see the same documents."""

    seed: Any = 0
    alpha: Any = 0.1  # Dirichlet concentration of the topic proportions (documents=lda)
    topics_per_document: Any = 2  # tau (documents=tau)
    overlap: Any = 0.0  # share of a topic's words that the topic before it uses too
    zipf_exponent: Any = 1.0  # word_distribution=zipf
    word_concentration: Any = 1.0  # word_distribution=dirichlet
    p_mask: Any = 0.15  # p_m
    p_keep: Any = 0.1  # p_c
    p_random: Any = 0.1  # p_r
    key_visibility: Any = "all"  # which positions are keys: all, or only the unmasked


class Hypers(NamedTuple):
    """Traced numbers that act on a trial given its documents."""

    learning_rate: Any = 1e-2
    objective: Any = "cross_entropy"
    init: Any = "normal"  # normal(0, s), uniform [0, s), or s times the default of linear layers
    init_scale: Any = 1e-3  # s
    embedding_scale: Any = 1.0  # expected norm of an embedding, trained or random
    l2: Any = 0.0  # lambda of eq. (2), over all trained parameters
    momentum: Any = 0.9  # optimizer=momentum
    beta1: Any = 0.9  # optimizer=adam, adamw
    beta2: Any = 0.999
    epsilon: Any = 1e-8
    weight_decay: Any = 0.0  # optimizer=adamw


class Trial(NamedTuple):
    """One training run, fully described."""

    spec: Spec
    stream: Stream
    hypers: Hypers


STREAM_TYPES: dict[str, Any] = dict(
    seed=int,
    alpha=float,
    topics_per_document=int,
    overlap=float,
    zipf_exponent=float,
    word_concentration=float,
    p_mask=float,
    p_keep=float,
    p_random=float,
    key_visibility=KeyVisibility,
)
HYPERS_TYPES: dict[str, Any] = dict.fromkeys(Hypers._fields, float) | dict(objective=Objective, init=InitLaw)
SPEC_TYPES: dict[str, Any] = get_type_hints(Spec)
TYPES: dict[str, Any] = SPEC_TYPES | STREAM_TYPES | HYPERS_TYPES
DEFAULTS: dict[str, Any] = dataclasses.asdict(Spec()) | Stream()._asdict() | Hypers()._asdict()
IDENTITY = tuple(name for name in TYPES if name != "row_probability")
DATA_SETTINGS = (  # what a limit line depends on, and the seed if the words are drawn
    *("topics", "words_per_topic", "documents", "infinite_documents", "word_distribution"),
    *("length_min", "length_max", "alpha", "topics_per_document", "overlap", "zipf_exponent"),
    *("word_concentration", "p_mask", "p_keep", "p_random", "key_visibility"),
)


def make_trial(settings: Mapping[str, Any]) -> Trial:
    """Return the validated trial with these settings, defaults elsewhere."""
    given = {name: coerce(name, value) for name, value in settings.items()}
    trial = Trial(
        Spec(**{name: given[name] for name in SPEC_TYPES if name in given}),
        Stream(**{name: given[name] for name in Stream._fields if name in given}),
        Hypers(**{name: given[name] for name in Hypers._fields if name in given}),
    )
    validate(trial)
    return trial


def settings_of(trial: Trial) -> dict[str, Any]:
    """Return every setting that identifies the trial, under its own name."""
    every = vars(trial.spec) | trial.stream._asdict() | trial.hypers._asdict()
    return {name: every[name] for name in IDENTITY}


def trial_id(trial: Trial) -> str:
    """Return 12 hexadecimal digits that depend on the settings alone."""
    text = "\n".join(map(part_text, trial))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=4096)
def part_text(part: Spec | Stream | Hypers) -> str:
    """Return the identifying settings of one part as text; parts repeat, so it is worth remembering."""
    settings = vars(part) if isinstance(part, Spec) else part._asdict()
    return json.dumps({name: settings[name] for name in sorted(settings) if name in IDENTITY})


def coerce(name: str, value: Any) -> Any:
    """Return the value in the type of the setting, or raise a ValueError that says what is allowed."""
    if name not in TYPES:
        raise ValueError(unknown_name("setting", name, IDENTITY))
    kind = TYPES[name]
    if get_origin(kind) is Literal:
        if isinstance(value, str) and value in get_args(kind):
            return str(value)
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(get_args(kind))}")
    if kind is bool and isinstance(value, bool | np.bool_):
        return bool(value)
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if isinstance(value, int) and abs(value) > 2**63:
        number = False
    if kind is float and number:
        return float(value) + 0.0  # -0.0 and 0.0 are one setting
    if kind is int and number and float(value).is_integer():
        return int(value)
    described = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ValueError(f"{name} is {value!r}; allowed: {described}")


def unknown_name(kind: str, name: str, allowed: tuple[str, ...] | list[str]) -> str:
    """Return the sentence for a name that does not exist, with the nearest one that does."""
    initials = {"".join(word[0] for word in other.split("_")): other for other in allowed}
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    near = [initials[name]] if name in initials else near
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}; {hint}allowed: {', '.join(allowed)}"


def validate(trial: Trial) -> None:
    """Raise a one-sentence ValueError if no trial can have these settings."""
    validate_spec(trial.spec)
    stream, hypers, spec = trial.stream, trial.hypers, trial.spec
    for name, (holds, allowed) in NUMBER_RULES.items():
        value = getattr(stream, name) if name in Stream._fields else getattr(hypers, name)
        if not holds(value):
            raise ValueError(f"{name} is {value}; allowed: {allowed}")
    if stream.p_keep + stream.p_random > 1:
        raise ValueError(
            f"p_keep + p_random is {stream.p_keep} + {stream.p_random}; allowed: a sum of at most 1"
        )
    if stream.topics_per_document > spec.topics and spec.documents == "tau":
        raise ValueError(
            f"topics_per_document is {stream.topics_per_document}; allowed: at most topics = {spec.topics}"
        )
    if stream.overlap > 0 and spec.topics < 2:
        raise ValueError(f"overlap is {stream.overlap}; allowed: 0 when there is one topic")
    if spec.value == "blocks" and stream.p_keep + stream.p_random == 1:
        raise ValueError("value is 'blocks'; allowed: only with p_keep + p_random below 1 (Theorem 2)")


@functools.lru_cache(maxsize=4096)
def validate_spec(spec: Spec) -> None:
    """Raise a one-sentence ValueError if no program can have these static settings."""
    for name in POSITIVE:
        if getattr(spec, name) < 1:
            raise ValueError(f"{name} is {getattr(spec, name)}; allowed: 1 or more")
    for name in ("embedding_dim", "attention_dim"):
        if getattr(spec, name) < 0:
            raise ValueError(f"{name} is {getattr(spec, name)}; allowed: 0 (automatic) or more")
    if spec.length_min > spec.length_max:
        raise ValueError(f"length_min is {spec.length_min}; allowed: at most length_max = {spec.length_max}")
    if spec.steps % spec.record_every:
        raise ValueError(f"steps is {spec.steps}; allowed: a multiple of record_every = {spec.record_every}")
    if spec.embedding == "one_hot" and spec.embedding_dim not in (0, spec.vocabulary):
        raise ValueError(f"embedding_dim is {spec.embedding_dim}; allowed: 0 when embedding is 'one_hot'")
    if spec.value == "blocks" and spec.embedding != "one_hot":
        raise ValueError(
            f"value is 'blocks'; allowed: only when embedding is 'one_hot', not {spec.embedding!r}"
        )


POSITIVE = "topics words_per_topic length_min length_max batch_size eval_documents steps record_every".split()
_Rule = tuple[Callable[[Any], bool], str]
PROBABILITY: _Rule = (lambda x: 0 <= x <= 1, "0 to 1")
ABOVE_ZERO: _Rule = (lambda x: 0 < x < math.inf, "above 0")
NOT_NEGATIVE: _Rule = (lambda x: 0 <= x < math.inf, "0 or more")
BELOW_ONE: _Rule = (lambda x: 0 <= x < 1, "0 or more, below 1")
NUMBER_RULES: dict[str, _Rule] = dict(
    seed=(lambda x: 0 <= x <= MAX_SEED, f"0 to {MAX_SEED}"),
    alpha=ABOVE_ZERO,
    topics_per_document=(lambda x: x >= 1, "1 or more"),
    overlap=PROBABILITY,
    zipf_exponent=NOT_NEGATIVE,
    word_concentration=ABOVE_ZERO,
    p_mask=(lambda x: 0 < x <= 1, "above 0, at most 1"),
    p_keep=PROBABILITY,
    p_random=PROBABILITY,
    learning_rate=NOT_NEGATIVE,
    init_scale=NOT_NEGATIVE,
    embedding_scale=NOT_NEGATIVE,
    l2=NOT_NEGATIVE,
    momentum=BELOW_ONE,
    beta1=BELOW_ONE,
    beta2=BELOW_ONE,
    epsilon=NOT_NEGATIVE,
    weight_decay=NOT_NEGATIVE,
)

Numbers = TypeVar("Numbers", Stream, Hypers)


def code(name: str, value: str) -> int:
    """Return the number that stands for a choice in compiled programs: its place in the list."""
    return get_args(TYPES[name]).index(value)


def numbers(settings: Numbers) -> Numbers:
    """Return the settings as NumPy scalars that programs take: choices as their codes."""
    converted = {}
    for name, value in settings._asdict().items():
        if get_origin(TYPES[name]) is Literal:
            converted[name] = np.int32(code(name, value))
        else:
            converted[name] = np.int32(value) if TYPES[name] is int else np.float32(value)
    return settings._replace(**converted)
