"""Settings of encoders on a language with syntax and topics (a hidden Markov model of word classes with LDA).

What moves the two kinds of structure is traced: `alpha` (topics), `sharpness` and `stay` (syntax), lengths,
and `bias_gain` (how fast the relative bias learns).  Imports no jax.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.errors import UserError
from topicjax.experiments.shared.losses import OBJECTIVES
from topicjax.experiments.shared.optimizers import Beta1, Beta2, Epsilon, Momentum, WeightDecay
from topicjax.experiments.shared.settings import (
    InitLaw,
    InitSeed,
    LayerNorm,
    LayerSpec,
    check_layers,
    check_objective,
)
from topicjax.settings import (
    MAX_INT32,
    AutomaticSize,
    Choice,
    Flag,
    NotNegative,
    Only,
    Probability,
    Real,
    Role,
    Whole,
)
from topicjax.theory.document_settings import Positive
from topicjax.trial import Trial, TrialSettings

MOST_WORDS = 4096  # positions of a document: attention over positions takes their square
EXACT = "the exact losses of the language are known for uniform words that belong to one topic each"
COUPLED = "with masked positions that show a word, classes and topics no longer separate in the exact losses"
REFUSED = {
    "p_keep": f"{COUPLED}; masked positions always show [MASK]",
    "p_random": f"{COUPLED}; masked positions always show [MASK]",
    "overlap": EXACT,
    "word_distribution": EXACT,
    "zipf_exponent": EXACT,
}


@dataclass(frozen=True)
class LanguageSpec:
    """Static settings of the language."""

    topics: Annotated[int, Whole(1), "T: number of topics"] = 10
    words_per_topic: Annotated[int, Whole(1), "v: content words of each topic"] = 5
    classes: Annotated[int, Whole(2), "C: word classes; the first one is that of content words"] = 4
    words_per_class: Annotated[int, Whole(1), "words of each other class"] = 5
    batch_size: Annotated[int, Whole(1), "documents per step"] = 16
    eval_documents: Annotated[int, Whole(2), "held-out documents per record"] = 64
    positions: Annotated[
        AutomaticSize, "learned position embeddings, for documents of up to this many words; 0: none"
    ] = 0
    longest: Annotated[int, Whole(1), "largest length_max among a program's trials", Role.EXECUTION] = 64
    mask_probability: Annotated[
        float, Real(low=0, high=1), "largest p_mask among a program's trials", Role.EXECUTION
    ] = 0.15

    @property
    def content_words(self) -> int:
        """T v, the number of content words."""
        return self.topics * self.words_per_topic


@dataclass(frozen=True)
class Spec(LayerSpec, LanguageSpec):
    """Static settings: they change shapes or the program."""

    layers: Annotated[int, Whole(1, 48), "L: number of layers"] = 1
    heads: Annotated[int, Whole(1, 64), "H: attention heads per layer"] = 4
    width: Annotated[int, Whole(0, 65_536), "d, a multiple of heads; 0: the vocabulary size"] = 32
    relative_reach: Annotated[
        int, Whole(0, MOST_WORDS), "r: distances up to this have a learned bias of the scores; 0: none"
    ] = 3
    attention: Annotated[
        Literal["trained", "uniform"], "W^K, W^Q and the relative bias; uniform: all are zero"
    ] = "trained"
    output_bias: Annotated[Literal["trained", "zero"], "b^pred"] = "trained"
    steps: Annotated[int, Whole(1), "training steps, a multiple of record_every"] = 3000
    rare_every: Annotated[int, Whole(1), "records from one measurement of interventions to the next"] = 10

    @property
    def vocabulary(self) -> int:
        """V, the number of words and [MASK]."""
        return 1 + self.content_words + (self.classes - 1) * self.words_per_class

    @property
    def places(self) -> int:
        """Number of positions with an embedding."""
        return self.positions

    @property
    def reach(self) -> int:
        """r, the largest distance with a learned relative bias of its own."""
        return self.relative_reach


class Stream(NamedTuple):
    """Traced numbers that determine the documents: equal Streams give the same documents."""

    seed: Annotated[
        Any,
        Whole(0, MAX_INT32),
        "of the documents, and of the initial weights unless init_seed says otherwise",
    ] = 0
    alpha: Annotated[Positive, "Dirichlet concentration of the topic shares"] = 0.1
    sharpness: Annotated[
        Probability, "s: share of transitions that follow the cycle of classes; others are drawn anew"
    ] = 0.9
    stay: Annotated[
        Any, Real(low=0, below=1), "q: in the cycle, probability that content follows content"
    ] = 0.5
    length_min: Annotated[Any, Whole(1), "fewest words of a document"] = 64
    length_max: Annotated[Any, Whole(1), "most words; every length between is as likely"] = 64
    p_mask: Annotated[Any, Real(above=0, high=1), "p_m: a position is masked and shows [MASK]"] = 0.15


class Hypers(NamedTuple):
    """Traced numbers that act on a trial given its documents: those of every encoder, and `bias_gain`."""

    learning_rate: Annotated[NotNegative, "of the optimizer"] = 3e-3
    objective: Annotated[Any, Choice(tuple(OBJECTIVES)), "loss to train and record"] = "cross_entropy"
    bias_gain: Annotated[
        NotNegative,
        "kappa: factor of the relative bias; it learns kappa^2 times as fast with SGD, about kappa with Adam",
    ] = 2.0
    residual: Annotated[Any, Flag(), "the input of attention and MLP is added to their output"] = True
    layer_norm: Annotated[
        Any, Choice(get_args(LayerNorm)), "before attention and MLP, or after each of them"
    ] = "none"
    init: Annotated[
        Any,
        Choice(get_args(InitLaw)),
        "W^K, W^Q, W^V: normal(0, s), uniform on [0, s), or s times a linear layer's default",
    ] = "default"
    init_scale: Annotated[NotNegative, "s: scale of the initial W^K, W^Q, W^V"] = 1.0
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


def check(trial: Trial) -> None:
    """Raise a UserError if settings, each valid by itself, contradict each other."""
    spec, stream, hypers = trial
    check_layers(spec)
    check_objective(hypers, ("cross_entropy", "squared"), "what classes and topics contribute to a loss")
    if stream.length_min > stream.length_max:
        most = f"at most length_max = {stream.length_max}"
        raise UserError(f"length_min is {stream.length_min}; allowed: {most}")
    if stream.length_max > MOST_WORDS:
        raise UserError(f"length_max is {stream.length_max}; allowed: at most {MOST_WORDS}")
    if spec.positions and spec.positions < stream.length_max:
        raise UserError(f"positions is {spec.positions}; allowed: 0, or at least {stream.length_max}")


TRIALS = TrialSettings(
    "syntax", Spec, Stream, Hypers, check, id_unless_default=("init_seed",), refused=REFUSED
)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
make_trial, settings_of = TRIALS.make_trial, TRIALS.settings_of
traced, code = TRIALS.traced, TRIALS.code
