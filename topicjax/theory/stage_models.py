"""Models of stages 1 and 2: a value matrix, Assumption 2's attention, and their losses on documents.

Letters: D documents, R queries, W = Tv words, V = W + 1 tokens ([MASK] = 0), G groups of words that a value
matrix predicts alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topicjax.theory.document_settings import Objective
from topicjax.theory.documents import Array, DataModel, Queries, kept_chances

BLOCK = 2_000  # queries computed together: their arrays stay in the cache


class StageModel(NamedTuple):
    """A value matrix, and attention weights of keys, which default to 1.

    With cross-entropy the output for [MASK] is -infinity wherever a key is visible.
    """

    value: Array  # W^V, V x V: output, key
    alpha: float = 1.0  # weight of other words of the query's topic
    beta: float = 1.0  # weight of the query's own token
    mask_beta: float | None = None  # weight of [MASK] keys for [MASK] queries; None: beta

    @property
    def is_uniform(self) -> bool:
        """Whether every query attends to all keys alike."""
        return self.alpha == self.beta == 1 and self.mask_beta in (None, 1)


class Examples(NamedTuple):
    """Documents and queries: what each query sees, and the weighted words it must predict.

    A query predicts a share of its document's words and one additional word.
    """

    keys: Array  # D x V, counts of visible keys
    words: Array  # D x W
    document: Array  # R
    token: Array  # R, what the query position shows
    share: Array  # R, weight of its document's words
    word: Array  # R, the additional word, 1..W
    word_weight: Array  # R, weight of that word


def examples_of(data: DataModel, queries: Queries) -> Examples:
    """Compute the targets of queries, averaged over the words that their positions hide."""
    kept_R = kept_chances(data, queries)
    own, share = queries.weight * kept_R, queries.weight * (1 - kept_R)
    word = np.maximum(queries.token, 1)
    return Examples(queries.keys, queries.words, queries.document, queries.token, share, word, own)


def own_topics(data: DataModel) -> Array:
    """Find the topic of each token: the one most likely to generate it; -1 for [MASK]."""
    return np.concatenate([[-1], data.words_by_topic().argmax(axis=0)])


def pair_weights(data: DataModel, model: StageModel) -> Array:
    """Compute the weight of each key type for each query type, V x V: exp of the attention scores."""
    topic_V = own_topics(data)
    pair_VxV = np.where(topic_V[:, None] == topic_V, model.alpha, 1.0)
    np.fill_diagonal(pair_VxV, model.beta)
    pair_VxV[0, 0] = model.beta if model.mask_beta is None else model.mask_beta
    return pair_VxV


class Outputs:
    """The outputs of a value matrix for some queries, as functions of the attention weights.

    Values are summed over three sets of keys of each query: all keys, those of its topic, and its own token.
    Words that the value matrix predicts alike form one group.
    """

    def __init__(self, data: DataModel, examples: Examples, value: Array) -> None:
        """Sum the values over the keys of each query."""
        rows_GxV, group_W = grouped_rows(value[1:])
        topic_V, token_R, document_R = own_topics(data), examples.token, examples.document
        self.size_G = np.bincount(group_W).astype(float)
        self.is_mask_R = token_R == 0
        keys_RxV = examples.keys[document_R]
        own_R = keys_RxV[np.arange(len(token_R)), token_R]
        keys_RxV *= topic_V[token_R][:, None] == topic_V
        every_RxG = (examples.keys @ rows_GxV.T)[document_R]
        self.sums = (every_RxG, keys_RxV @ rows_GxV.T, own_R[:, None] * rows_GxV.T[token_R])
        self.totals = (examples.keys.sum(axis=1)[document_R], keys_RxV.sum(axis=1), own_R)
        words_DxG = examples.words @ np.eye(len(rows_GxV))[group_W]
        self.target_RxG = examples.share[:, None] * words_DxG[document_R]
        self.target_RxG[np.arange(len(token_R)), group_W[examples.word - 1]] += examples.word_weight
        self.weight_R = self.target_RxG.sum(axis=1)

    def losses(self, model: StageModel, objective: Objective) -> Array:
        """Compute the weighted loss of each query for a model with this value matrix."""
        output_RxG, total_R = self._attended(model)
        if objective == "cross_entropy":
            return self._cross_entropy(output_RxG, total_R)[0]
        square_R = np.einsum("rg,rg,g->r", output_RxG, output_RxG, self.size_G)
        score_R = np.einsum("rg,rg->r", self.target_RxG, output_RxG)
        return self.weight_R * (1 + square_R) - 2 * score_R

    def cross_entropy_slopes(self, model: StageModel) -> tuple[float, Array]:
        """Compute the summed cross-entropy and its derivatives with respect to log alpha and log beta."""
        output_RxG, total_R = self._attended(model)
        loss_R, error_RxG = self._cross_entropy(output_RxG, total_R)
        _, topic_RxG, own_RxG = self.sums
        _, topic_R, own_R = self.totals
        back_R, of_topic_R, of_own_R = (
            np.einsum("rg,rg->r", error_RxG, part) for part in (output_RxG, topic_RxG, own_RxG)
        )
        by_topic_R = (of_topic_R - back_R * topic_R) / total_R
        by_own_R = (of_own_R - back_R * own_R) / total_R
        slopes = np.array([model.alpha * np.sum(by_topic_R - by_own_R), model.beta * np.sum(by_own_R)])
        return float(loss_R.sum()), slopes

    def _attended(self, model: StageModel) -> tuple[Array, Array]:
        mask_beta = model.beta if model.mask_beta is None else model.mask_beta
        topic, own_R = model.alpha - 1, np.where(self.is_mask_R, mask_beta, model.beta) - model.alpha
        total_R = self.totals[0] + topic * self.totals[1] + own_R * self.totals[2]
        total_R = np.where(total_R > 0, total_R, np.inf)  # no visible key: the output is 0
        every_RxG, topic_RxG, own_RxG = self.sums
        output_RxG = topic * topic_RxG
        output_RxG += every_RxG
        output_RxG += own_R[:, None] * own_RxG
        output_RxG /= total_R[:, None]
        return output_RxG, total_R

    def _cross_entropy(self, output_RxG: Array, total_R: Array) -> tuple[Array, Array]:
        """Compute each query's loss and its derivatives with respect to the outputs of each group."""
        largest_R = output_RxG.max(axis=1)
        exp_RxG = np.exp(output_RxG - largest_R[:, None]) * self.size_G
        sum_R = exp_RxG.sum(axis=1) + np.isinf(total_R)  # without keys the [MASK] output is 0 too
        score_R = np.einsum("rg,rg->r", self.target_RxG, output_RxG)
        loss_R = self.weight_R * (np.log(sum_R) + largest_R) - score_R
        exp_RxG *= (self.weight_R / sum_R)[:, None]
        return loss_R, exp_RxG - self.target_RxG


def grouped_rows(matrix: Array) -> tuple[Array, Array]:
    """Find the distinct rows of a matrix, and the index of each row among them."""
    rows, group = np.unique(matrix, axis=0, return_inverse=True)
    return rows, group.ravel()


def model_losses(data: DataModel, examples: Examples, model: StageModel, objective: Objective) -> Array:
    """Compute the loss of a model on each document, the sum over its queries (D numbers)."""
    losses_D = np.zeros(len(examples.keys))
    for first, block in blocks(merged(examples) if model.is_uniform else examples):
        losses_R = Outputs(data, block, model.value).losses(model, objective)
        found = np.bincount(block.document, losses_R, minlength=len(block.keys))
        losses_D[first : first + len(found)] += found
    return losses_D


def merged(examples: Examples) -> Examples:
    """Merge the queries of each document into one: under uniform attention they predict the same."""
    shape, document = examples.words.shape, examples.document
    share_D = np.bincount(document, examples.share, minlength=shape[0])
    place_R = document * shape[1] + examples.word - 1
    more_DxW = np.bincount(place_R, examples.word_weight, minlength=shape[0] * shape[1]).reshape(shape)
    none_D = np.zeros(shape[0], int)
    words_DxW = share_D[:, None] * examples.words + more_DxW
    return Examples(
        examples.keys, words_DxW, np.arange(shape[0]), none_D, np.ones(shape[0]), none_D + 1, 0.0 * none_D
    )


def blocks(examples: Examples) -> Iterator[tuple[int, Examples]]:
    """Yield the queries in blocks: the index of the first document, and the examples of the block."""
    for begin in range(0, len(examples.token), BLOCK):
        part = slice(begin, begin + BLOCK)
        keys, words, document, *others = examples
        first, end = document[part].min(), document[part].max() + 1
        rest = (array[part] for array in others)
        yield first, Examples(keys[first:end], words[first:end], document[part] - first, *rest)
