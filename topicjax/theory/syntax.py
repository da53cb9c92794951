"""Reference losses of the language of syntax and topics, exact (NumPy, float64).

Classes of words follow a stationary Markov chain.  Class 0 (content) emits words of T topics whose shares are
Dirichlet; every other class has its own words.  A masked position always shows [MASK] = 0, so visible words
reveal their class and topic, and the posterior of a hidden word needs only the nearest visible classes and
the visible words of each topic.  A loss splits into the parts of class, topic and word.
Letters: B documents, N positions, R masked positions, C classes, T topics, V tokens, D distances to a visible
word (0: none known), S cases of one side of a position, K content words, M masked and F further positions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.special import entr

from topicjax.theory.document_settings import Objective
from topicjax.theory.documents import Array

Parts = dict[str, float]  # "class", "topic" and "word"; they add up to the loss

ALL = 2**31  # farther than any document is long
# How far each predictor sees: visible words that tell it the class, and those that tell it the topic.
PREDICTORS = {
    "unigram": (0, 0),
    "topics": (0, ALL),
    "syntax": (ALL, 0),
    "both": (ALL, ALL),
    "within_1": (1, 1),
    "within_2": (2, 2),
}
# Runs of masked words that are less likely than this are not told apart: their effect is below rounding.
NEGLIGIBLE = 1e-18


@dataclass(frozen=True)
class Language:
    """The settings that determine the documents.

    Tokens: [MASK], v words of each topic, J words of each class from 1 on.
    """

    topics: int = 10
    words_per_topic: int = 5
    classes: int = 4
    words_per_class: int = 5
    alpha: float = 0.1
    sharpness: float = 0.9
    stay: float = 0.5
    length_min: int = 64
    length_max: int = 64
    p_mask: float = 0.15

    @property
    def vocabulary(self) -> int:
        """V = 1 + T v + (C - 1) J, the number of tokens."""
        return int(self.class_sizes.sum()) + 1

    @property
    def lengths(self) -> range:
        """Every document length; all are equally likely."""
        return range(self.length_min, self.length_max + 1)

    @property
    def class_sizes(self) -> Array:
        """The number of words of each class (C numbers)."""
        function_words = np.full(self.classes - 1, self.words_per_class)
        return np.concatenate([[self.topics * self.words_per_topic], function_words])

    @property
    def class_of_word(self) -> Array:
        """The class of each token (V numbers), -1 for [MASK]."""
        return np.concatenate([[-1], np.repeat(np.arange(self.classes), self.class_sizes)])

    @property
    def topic_of_word(self) -> Array:
        """The topic of each token (V numbers), -1 for [MASK] and outside content."""
        topic = np.full(self.vocabulary, -1)
        topic[1 : 1 + self.class_sizes[0]] = np.repeat(np.arange(self.topics), self.words_per_topic)
        return topic

    @property
    def stationary(self) -> Array:
        """pi, the probability of each class at any position (C numbers); it does not depend on sharpness."""
        visits = np.full(self.classes, 1 - self.stay)  # per word of content
        visits[0] = 1.0
        return visits / visits.sum()

    @property
    def transition(self) -> Array:
        """A = s P + (1 - s) 1 pi^T, C x C; P follows a cycle of the classes; content stays at times."""
        cycle = np.roll(np.eye(self.classes), 1, axis=1)
        cycle[0] *= 1 - self.stay
        cycle[0, 0] += self.stay
        return self.sharpness * cycle + (1 - self.sharpness) * self.stationary


def _powers(language: Language, farthest: int) -> Array:
    """Compute A^d for d = 0..farthest, D x C x C."""
    transition = language.transition
    return np.array([np.linalg.matrix_power(transition, distance) for distance in range(farthest + 1)])


def _mean_inverse(language: Language) -> Array:
    """Compute E[1/(m + Binomial(f, p_mask))], F x M, for m >= 1 with m + f <= length_max + 1; else 0."""
    size = language.length_max + 1
    inverse_FxM = np.zeros((size, size + 1))
    inverse_FxM[0, 1:] = 1 / np.arange(1, size + 1)
    for further in range(1, size):
        before_M = inverse_FxM[further - 1, 1 : size - further + 2]
        mean_M = (1 - language.p_mask) * before_M[:-1] + language.p_mask * before_M[1:]
        inverse_FxM[further, 1 : size - further + 1] = mean_M
    return inverse_FxM


def _chance_of_mask(language: Language, inverse_FxM: Array) -> float:
    """Compute P(|M| >= 1), summed over lengths.

    It is the sum over positions of E[1/|M|; masked], which does not cancel for small p_mask.
    """
    return sum(length * language.p_mask * inverse_FxM[length - 1, 1] for length in language.lengths)


def _class_entropies(language: Language, farthest: int) -> Array:
    """Compute the entropy of a class given the nearest visible ones on the left and on the right, D x D."""
    stationary, power_DxCxC = language.stationary, _powers(language, farthest)
    left_DxCxC = stationary[:, None] * power_DxCxC  # with the hidden class: pi_l A^a[l, c]
    right_DxCxC = power_DxCxC  # given the hidden class: A^b[c, r]
    # Where nothing is known, the visible class is a constant, which says nothing.
    left_DxCxC[0] = 0.0
    left_DxCxC[0, 0] = stationary
    right_DxCxC[0] = 0.0
    right_DxCxC[0, :, 0] = 1.0
    entropy_DxD = np.empty((farthest + 1, farthest + 1))
    for distance, left_CxC in enumerate(left_DxCxC):
        joint_DxCxCxC = left_CxC[:, :, None] * right_DxCxC[:, None]  # left, hidden, right
        visible_DxCxC = joint_DxCxCxC.sum(axis=2)
        entropy_DxD[distance] = entr(joint_DxCxCxC).sum(axis=(1, 2, 3)) - entr(visible_DxCxC).sum(axis=(1, 2))
    return entropy_DxD


def _class_part(language: Language, inverse_FxM: Array, within: int) -> float:
    """Compute the mean entropy of the class given the visible words within this many positions.

    On each side of a masked position the nearest visible word is at distance 1..D, or the document ends after
    0..D-1 masked words, or D words are masked; nothing is known of what lies beyond.
    """
    p_mask, limit = language.p_mask, min(within, language.length_max)
    farthest = next(d for d in range(limit + 1) if d == limit or p_mask**d < NEGLIGIBLE)
    inside = np.arange(farthest)
    known_S = np.concatenate([inside + 1, 0 * inside, [0]])
    masked_S = np.concatenate([inside, inside, [farthest]])
    visible_S = (known_S > 0).astype(int)
    beyond_S = np.repeat([True, False, True], [farthest, farthest, 1])  # the document may go on
    masked_SxS = 1 + masked_S[:, None] + masked_S
    visible_SxS = visible_S[:, None] + visible_S
    beyond_SxS = beyond_S[:, None].astype(int) + beyond_S
    weight_SxS = np.zeros(masked_SxS.shape)
    for length in language.lengths:
        further_SxS = length - masked_SxS - visible_SxS
        fits_SxS = np.where(beyond_SxS == 0, further_SxS == 0, further_SxS >= 0)
        # With room on both sides there is one position for each way to divide the further words.
        positions_SxS = fits_SxS * np.where(beyond_SxS == 2, further_SxS + 1, 1)
        weight_SxS += (
            positions_SxS * inverse_FxM[np.maximum(further_SxS, 0), np.where(fits_SxS, masked_SxS, 0)]
        )
    weight_SxS *= p_mask**masked_SxS * (1 - p_mask) ** visible_SxS
    entropy_SxS = _class_entropies(language, farthest)[known_S[:, None], known_S]
    return float(np.sum(weight_SxS * entropy_SxS) / _chance_of_mask(language, inverse_FxM))


def _content_words(language: Language, start_C: Array, most: int) -> Array:
    """Compute how likely each number K of content words is among the k next ones, k = 0..most: k x K."""
    transition, state_CxK = language.transition, np.zeros((language.classes, most + 1))
    state_CxK[:, 0] = start_C
    found = [state_CxK.sum(axis=0)]
    for _ in range(most):
        state_CxK = transition.T @ state_CxK
        state_CxK[0] = np.roll(state_CxK[0], 1)
        found.append(state_CxK.sum(axis=0))
    return np.array(found)


def _content_around(language: Language, within: int) -> list[Array]:
    """Compute for each length the mean number of content words with K others within this distance."""
    if within >= language.length_max - 1:  # of K + 1 content words each one has K others
        total = _content_words(language, language.stationary, language.length_max)
        return [np.arange(1, length + 1) * total[length, 1 : length + 1] for length in language.lengths]
    # Content is a single class, so the gaps between content words are independent of each other, and the
    # chain to the left has the same gaps as the chain to the right.
    side = _content_words(language, np.eye(language.classes)[0], within)
    means = []
    for length in language.lengths:
        sides = Counter((min(within, n), min(within, length - 1 - n)) for n in range(length))
        mean_K = np.zeros(min(2 * within + 1, length))
        for (left, right), positions in sides.items():
            others = np.convolve(side[left, : left + 1], side[right, : right + 1])
            mean_K[: len(others)] += positions * language.stationary[0] * others
        means.append(mean_K)
    return means


def _topic_losses(language: Language, most: int) -> Array:
    """Compute E[-log((alpha + n_z) / (T alpha + n))] for n = 0..most visible content words.

    Given the topic z of a hidden word, the visible ones are drawn from an urn that holds alpha + 1 of z and
    (T - 1) alpha of the other topics: n_z is beta-binomial.
    """
    alpha, topics, own = language.alpha, language.topics, np.arange(most + 1)
    chance = (own == 0).astype(float)  # of each n_z
    losses = np.empty(most + 1)
    for n in range(most + 1):
        losses[n] = -chance[: n + 1] @ np.log((alpha + own[: n + 1]) / (topics * alpha + n))
        drawn = chance * (alpha + 1 + own) / (topics * alpha + 1 + n)
        chance *= (n - own + (topics - 1) * alpha) / (topics * alpha + 1 + n)
        chance[1:] += drawn[:-1]
    return losses


def _topic_part(language: Language, inverse_FxM: Array, within: int) -> float:
    """Compute the mean loss of the topic (0 outside content) given the visible words so near.

    Given the number K of content words around a position, n ~ Binomial(K, 1 - p_mask) of them are visible
    and K - n masked; all other words are masked independently of n, whether near or far.
    """
    p_mask, around = language.p_mask, _content_around(language, within)
    size = max(len(mean_K) for mean_K in around)
    visible_KxK = np.zeros((size, size))  # P(n visible of K)
    visible_KxK[0, 0] = 1.0
    for content in range(1, size):
        visible_KxK[content] = p_mask * visible_KxK[content - 1]
        visible_KxK[content, 1:] += (1 - p_mask) * visible_KxK[content - 1, :-1]
    loss_KxK = visible_KxK * _topic_losses(language, size - 1)
    total = 0.0
    for length, mean_K in zip(language.lengths, around, strict=True):
        content_K = np.arange(len(mean_K))
        masked_KxK = 1 + np.maximum(content_K[:, None] - content_K, 0)
        inverse_KxK = inverse_FxM[length - 1 - content_K[:, None], masked_KxK]
        total += p_mask * np.sum(mean_K[:, None] * loss_KxK[: len(mean_K), : len(mean_K)] * inverse_KxK)
    return float(total / _chance_of_mask(language, inverse_FxM))


def population_parts(language: Language) -> dict[str, Parts]:
    """Compute the parts of each predictor's cross-entropy in closed form.

    Each is the mean over documents with a masked position of the mean over their masked positions.
    """
    inverse_FxM, content = _mean_inverse(language), language.stationary[0]
    class_ranges, topic_ranges = (set(ranges) for ranges in zip(*PREDICTORS.values(), strict=True))
    classes = {within: _class_part(language, inverse_FxM, within) for within in class_ranges}
    topics = {within: _topic_part(language, inverse_FxM, within) for within in topic_ranges}
    word = content * np.log(language.words_per_topic) + (1 - content) * np.log(language.words_per_class)
    return {
        name: {"class": classes[for_class], "topic": topics[for_topic], "word": float(word)}
        for name, (for_class, for_topic) in PREDICTORS.items()
    }


def population_lines(language: Language) -> dict[str, float]:
    """Compute each predictor's cross-entropy in closed form."""
    return {name: sum(parts.values()) for name, parts in population_parts(language).items()}


def document_parts(
    language: Language,
    word_BxN: Array,
    shown_BxN: Array,
    masked_BxN: Array,
    present_BxN: Array,
    objective: Objective,
) -> dict[str, Parts]:
    """Compute the parts of each predictor's loss on these documents, averaged like a model's loss.

    `present` marks the positions of a document, `masked` those to predict, which show [MASK]; NaN if no
    position is masked.
    """
    word_BxN, shown_BxN, present_BxN = np.asarray(word_BxN), np.asarray(shown_BxN), np.asarray(present_BxN)
    where_R = np.nonzero(np.asarray(masked_BxN) & present_BxN)
    masks_B = np.bincount(where_R[0], minlength=len(word_BxN))
    weight_R = 1 / (masks_B[where_R[0]] * np.count_nonzero(masks_B))
    shown_BxN = np.where(present_BxN, shown_BxN, 0)
    class_ranges, topic_ranges = (set(ranges) for ranges in zip(*PREDICTORS.values(), strict=True))
    classes = {within: _class_posterior(language, shown_BxN, where_R, within) for within in class_ranges}
    topics = {within: _topic_posterior(language, shown_BxN, where_R, within) for within in topic_ranges}
    split = _cross_entropy_parts if objective == "cross_entropy" else _squared_parts
    result = {}
    for name, (for_class, for_topic) in PREDICTORS.items():
        parts = split(language, word_BxN[where_R], classes[for_class], topics[for_topic])
        means = (float(weight_R @ part_R) if len(weight_R) else np.nan for part_R in parts)
        result[name] = dict(zip(("class", "topic", "word"), means, strict=True))
    return result


def _class_posterior(language: Language, shown_BxN: Array, where_R: tuple, within: int) -> Array:
    """Compute P(class | visible words within this distance) of each masked position, R x C."""
    document_R, position_R = where_R
    class_BxN, length = language.class_of_word[shown_BxN], shown_BxN.shape[1]
    position_N, within = np.arange(length), min(within, length)
    left_BxN = np.maximum.accumulate(np.where(shown_BxN > 0, position_N, -1), axis=1)
    right_BxN = np.minimum.accumulate(np.where(shown_BxN > 0, position_N, length)[:, ::-1], axis=1)[:, ::-1]
    left_R, right_R = left_BxN[where_R], right_BxN[where_R]
    before_R, after_R = position_R - left_R, right_R - position_R
    before_R = np.where((left_R >= 0) & (before_R <= within), before_R, 0)
    after_R = np.where((right_R < length) & (after_R <= within), after_R, 0)
    left_DxCxC, right_DxCxC = _powers(language, within), _powers(language, within)
    left_DxCxC[0], right_DxCxC[0] = language.stationary, 1.0  # nothing known, whatever the class there
    left_RxC = left_DxCxC[before_R, class_BxN[document_R, position_R - before_R]]
    right_RxC = right_DxCxC[after_R, :, class_BxN[document_R, position_R + after_R]]
    joint_RxC = left_RxC * right_RxC
    return joint_RxC / joint_RxC.sum(axis=1, keepdims=True)


def _topic_posterior(language: Language, shown_BxN: Array, where_R: tuple, within: int) -> Array:
    """Compute P(topic | content, visible words within this distance) of each masked position, R x T."""
    (document_R, position_R), length = where_R, shown_BxN.shape[1]
    within = min(within, length)
    topic_BxNx1 = language.topic_of_word[shown_BxN][:, :, None]
    seen_BxNxT = np.zeros((len(shown_BxN), length + 1, language.topics))  # before each position
    np.cumsum(topic_BxNx1 == np.arange(language.topics), axis=1, out=seen_BxNxT[:, 1:])
    last_R, first_R = np.minimum(position_R + within + 1, length), np.maximum(position_R - within, 0)
    count_RxT = seen_BxNxT[document_R, last_R] - seen_BxNxT[document_R, first_R]
    total_Rx1 = count_RxT.sum(axis=1, keepdims=True)
    return (language.alpha + count_RxT) / (language.topics * language.alpha + total_Rx1)


def _cross_entropy_parts(
    language: Language, word_R: Array, class_RxC: Array, topic_RxT: Array
) -> tuple[Array, Array, Array]:
    """Split -log P(word) of each masked position into class, topic and word."""
    own_R, topic_R = language.class_of_word[word_R], language.topic_of_word[word_R]
    index_R, content_R = np.arange(len(word_R)), own_R == 0
    return (
        -np.log(class_RxC[index_R, own_R]),
        np.where(content_R, -np.log(topic_RxT[index_R, topic_R]), 0.0),
        np.log(np.where(content_R, language.words_per_topic, language.words_per_class)),
    )


def _squared_parts(
    language: Language, word_R: Array, class_RxC: Array, topic_RxT: Array
) -> tuple[Array, Array, Array]:
    """Split the squared error of each masked position, summed over tokens, into class, topic and word.

    The parts are the squared lengths of three orthogonal projections of the error: its means over classes,
    over the topics of content relative to all content, and the rest.
    """
    own_R, topic_R = language.class_of_word[word_R], language.topic_of_word[word_R]
    error_RxC = class_RxC - (own_R[:, None] == np.arange(language.classes))
    error_RxT = class_RxC[:, :1] * topic_RxT - (topic_R[:, None] == np.arange(language.topics))
    error_RxT -= error_RxC[:, :1] / language.topics
    block_R = np.where(own_R == 0, language.words_per_topic, language.words_per_class)
    return (
        np.sum(error_RxC**2 / language.class_sizes, axis=1),
        np.sum(error_RxT**2, axis=1) / language.words_per_topic,
        1 - 1 / block_R,  # all words of a block are predicted alike
    )


def reference_losses(
    language: Language,
    word_BxN: Array,
    shown_BxN: Array,
    masked_BxN: Array,
    present_BxN: Array,
    objective: Objective,
) -> dict[str, float]:
    """Compute the reference losses of a trial: on its held-out documents, and of the population.

    The best of a part is that of the Bayes predictor.  The topic part of the squared loss is smaller where
    the class is known too, so the predictor of topics alone gains less of it.  The population's are known for
    cross-entropy only, else NaN.
    """
    parts = document_parts(language, word_BxN, shown_BxN, masked_BxN, present_BxN, objective)
    known = objective == "cross_entropy"
    population = population_lines(language) if known else dict.fromkeys(PREDICTORS, np.nan)
    return {
        **{f"held_out_{name}": sum(split.values()) for name, split in parts.items()},
        "held_out_class_unigram": parts["unigram"]["class"],
        "held_out_class_best": parts["both"]["class"],
        "held_out_class_within_1": parts["within_1"]["class"],
        "held_out_class_within_2": parts["within_2"]["class"],
        "held_out_topic_unigram": parts["unigram"]["topic"],
        "held_out_topic_best": parts["both"]["topic"],
        **population,
    }
