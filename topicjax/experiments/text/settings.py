"""Settings of the encoder on text, each declared once; those of layers are shared."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from topicjax.corpora.corpus import STANDARD, find_hash
from topicjax.errors import UserError
from topicjax.experiments.shared.settings import LayerHypers, LayerSpec, check_layers, check_objective
from topicjax.settings import MAX_INT32, Choice, Key, Probability, Real, Role, Whole
from topicjax.theory.document_settings import KeyVisibility
from topicjax.trial import Trial, TrialSettings

SPECIAL = 2  # [MASK] and [UNK], which are never predicted
CORPUS = Key(find_hash, "the hash of a corpus, or its name in the data folder (topicjax corpus)")


@dataclass(frozen=True)
class CorpusSpec:
    """Static settings of windows of text."""

    corpus: Annotated[str, CORPUS, "documents, by the hash of what is in them"] = STANDARD["wikipedia"].hash
    vocabulary_size: Annotated[int, Whole(3), "the most frequent words, [MASK] and [UNK] among them"] = 4096
    unknown: Annotated[Literal["shown", "left_out"], "rarer words: seen as [UNK], or left out"] = "shown"
    context: Annotated[int, Whole(2, 4096), "words of a window at most; a document is cut into windows"] = 64
    positions: Annotated[bool, "learned position embeddings"] = True
    batch_size: Annotated[int, Whole(1), "windows per step"] = 16
    eval_windows: Annotated[int, Whole(2), "held-out windows per record"] = 64
    gain_windows: Annotated[int, Whole(2), "maximum number of windows for the gains of single layers"] = 32
    mask_probability: Annotated[
        float, Real(low=0, high=1), "largest p_mask among a program's trials", Role.EXECUTION
    ] = 0.15
    word_query_probability: Annotated[
        float,
        Real(low=0, high=1),
        "largest p_mask (p_keep + p_random) among a program's trials",
        Role.EXECUTION,
    ] = 0.03
    mask_query_probability: Annotated[
        float,
        Real(low=0, high=1),
        "largest p_mask (1 - p_keep - p_random) among a program's trials",
        Role.EXECUTION,
    ] = 0.12


@dataclass(frozen=True)
class Spec(LayerSpec, CorpusSpec):
    """Static settings: they change shapes or the program."""

    rare_every: Annotated[int, Whole(1), "records from one measurement on held-out windows to the next"] = 8

    @property
    def vocabulary(self) -> int:
        """V, the number of words, [MASK] and [UNK]."""
        return self.vocabulary_size

    @property
    def places(self) -> int:
        """Number of positions with an embedding."""
        return self.context if self.positions else 0


class Stream(NamedTuple):
    """Traced numbers that determine the windows: equal Streams give the same windows."""

    seed: Annotated[
        Any,
        Whole(0, MAX_INT32),
        "of the windows, their masks, and the initial weights unless init_seed says otherwise",
    ] = 0
    p_mask: Annotated[Any, Real(above=0, high=1), "p_m: a known word is masked"] = 0.15
    p_keep: Annotated[Probability, "p_c: a masked position shows its own word"] = 0.1
    p_random: Annotated[Probability, "p_r: a masked position shows a random word"] = 0.1
    key_visibility: Annotated[
        Any, Choice(get_args(KeyVisibility)), "positions that are keys: all, or only unmasked ones"
    ] = "all"


def check(trial: Trial) -> None:
    """Raise a UserError if settings, each valid by itself, contradict each other."""
    spec, stream, hypers = trial
    check_layers(spec)
    check_objective(hypers, ("cross_entropy", "squared"), "the loss of the unigram model")
    if stream.p_keep + stream.p_random >= 1:
        raise UserError(
            f"p_keep + p_random is {stream.p_keep} + {stream.p_random}; allowed: a sum below 1, since losses "
            "are measured where [MASK] is shown"
        )


TRIALS = TrialSettings(
    "text", Spec, Stream, LayerHypers, check, id_unless_default=("gain_windows", "rare_every", "init_seed")
)
SETTINGS, DEFAULTS = TRIALS.settings, TRIALS.defaults
make_trial, settings_of = TRIALS.make_trial, TRIALS.settings_of
traced, code = TRIALS.traced, TRIALS.code
