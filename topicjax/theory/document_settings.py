"""Settings of topic documents, each declared once: how documents are generated, masked and seen.

Experiments on topic documents extend `DocumentSpec` and use `Stream`; theory's DataModel has a field for each
setting with the role DOCUMENTS.  Imports no jax.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.settings import (
    MAX_INT32,
    BelowOne,
    Choice,
    NotNegative,
    Only,
    Probability,
    Real,
    Role,
    Whole,
    declared,
)

Objective = Literal["cross_entropy", "squared"]
KeyVisibility = Literal["all", "unmasked"]
DOCUMENTS, TOPIC_WORDS, EXECUTION = Role.DOCUMENTS, Role.TOPIC_WORDS, Role.EXECUTION
Positive = Annotated[Any, Real(above=0, smallest=1e-30)]  # a smaller concentration draws NaN in float32
MAX_LENGTHS = 100_000  # of documents: the kernel's query capacity sums over all of them
FINITE = Only("infinite_documents", (False,))


@dataclass(frozen=True)
class DocumentSpec:
    """Static settings of every experiment on topic documents."""

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
    paired: Annotated[
        bool, "whether a program draws pairs: any of its trials has pair_strength > 0", EXECUTION
    ] = False

    @property
    def num_words(self) -> int:
        """T v, the number of words of all topics, without [MASK]."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """V = T v + 1, the number of words and [MASK]."""
        return self.num_words + 1


class Stream(NamedTuple):
    """Traced numbers that determine the documents: equal Streams give the same documents."""

    seed: Annotated[
        Any,
        Whole(0, MAX_INT32),
        "of the documents, and of the initial weights unless init_seed says otherwise",
    ] = 0
    alpha: Annotated[
        Positive, "Dirichlet concentration of the topic shares", DOCUMENTS, Only("documents", ("lda",))
    ] = 0.1
    topics_per_document: Annotated[
        Any, Whole(1), "tau: topics per document", DOCUMENTS, Only("documents", ("tau",))
    ] = 2
    length_min: Annotated[Any, Whole(1), "fewest words of a document", DOCUMENTS, FINITE] = 100
    length_max: Annotated[
        Any, Whole(1), "most words; every length between is as likely", DOCUMENTS, FINITE
    ] = 150
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
    pair_strength: Annotated[
        BelowOne,
        "chance that two words of one topic in a document are tied to one pair; 0: no pairs",
        DOCUMENTS,
    ] = 0.0
    p_mask: Annotated[Any, Real(above=0, high=1), "p_m: a position is masked", DOCUMENTS] = 0.15
    p_keep: Annotated[Probability, "p_c: a masked position shows its own word", DOCUMENTS] = 0.1
    p_random: Annotated[Probability, "p_r: a masked position shows a random word", DOCUMENTS] = 0.1
    key_visibility: Annotated[
        Any, Choice(get_args(KeyVisibility)), "positions that are keys: all, or only unmasked ones", DOCUMENTS
    ] = "all"


def check_documents(spec: Any, stream: Any) -> None:
    """Raise a UserError if document settings, each valid by itself, contradict each other.

    It is asked for every trial of a sweep, so it reads the few settings that it needs where they are.
    """
    length_min, length_max = stream.length_min, stream.length_max
    if length_min > length_max:
        raise UserError(f"length_min is {length_min}; allowed: at most length_max = {length_max}")
    if length_max - length_min >= MAX_LENGTHS:
        raise UserError(
            f"documents have {length_max - length_min + 1:,} different lengths; allowed: up to "
            f"{MAX_LENGTHS:,}; bring length_max = {length_max} and length_min = {length_min} closer together"
        )
    p_keep, p_random = stream.p_keep, stream.p_random
    if p_keep + p_random > 1:
        raise UserError(f"p_keep + p_random is {p_keep} + {p_random}; allowed: a sum of at most 1")
    tau, topics = stream.topics_per_document, spec.topics
    if spec.documents == "tau" and tau > topics:
        raise UserError(f"topics_per_document is {tau}; allowed: at most topics = {topics}")
    if topics < 2 and getattr(stream, "overlap", 0) > 0:  # a DataModel has the words themselves
        raise UserError(f"overlap is {stream.overlap}; allowed: 0 when there is one topic")
    if stream.pair_strength > 0:
        check_pairs(spec, stream)


def check_pairs(spec: Any, stream: Any) -> None:
    """Raise a UserError if the words of a topic cannot be paired: pairs are disjoint and equally likely."""
    if spec.words_per_topic % 2:
        raise UserError(
            f"words_per_topic is {spec.words_per_topic}; allowed: an even number with pair_strength > 0"
        )
    if spec.documents == "tau" and spec.infinite_documents:
        raise UserError("infinite_documents is True; allowed: False with pair_strength > 0 and tau documents")
    if getattr(spec, "word_distribution", "uniform") != "uniform":  # a DataModel has the words themselves
        raise UserError(
            f"word_distribution is {spec.word_distribution!r}; allowed: 'uniform' with pair_strength > 0"
        )
    if getattr(stream, "overlap", 0) > 0:
        raise UserError(f"overlap is {stream.overlap}; allowed: 0 with pair_strength > 0")


SETTINGS = declared(DocumentSpec) | declared(Stream)
DOCUMENT_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role is DOCUMENTS)
DATA_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.role in (DOCUMENTS, TOPIC_WORDS))
