"""Cross-entropy has no finite optimum (Remark 1): W^V under uniform attention on infinite documents.

[MASK] is never the word to predict, and with tau < T disjoint uniform topics neither are the words outside a
document: the loss approaches its infimum ln(tau v) only as logits grow without bound.  Gradient descent then
follows the direction of the largest margin, and the norm grows by that direction's norm with every e-folding
of the steps; with an L2 penalty the optimum is finite and unique.  Both treat topics and words alike, so W^V
has five different entries: W_00, W_0i, W_i0, and W_ij for words of different topics and of the same topic.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from topicjax.errors import UserError
from topicjax.theory.documents import Array, DataModel, is_enumerated
from topicjax.theory.stage2 import key_masses


class Entries(NamedTuple):
    """W^V by its five different entries; rows are outputs, columns are keys."""

    mask_mask: float
    mask_word: float
    word_mask: float
    different: float
    same: float


def infimum(data: DataModel) -> float:
    """Compute the infimum of the loss under uniform attention: the entropy of a document's words."""
    return float(np.log(data.topics_per_document * data.words_per_topic))


def penalised_optimum(data: DataModel, l2: float) -> tuple[Entries, float]:
    """Find the W^V that minimises eq. (2) with cross-entropy, and its loss without the penalty."""
    if l2 <= 0:
        raise UserError(f"l2 is {l2}; allowed: above 0, since without a penalty there is no finite optimum")
    outputs_3x5, count_5 = _outputs(data), _multiplicity(data)
    size_3 = _sizes(data)

    def objective(entries: Array) -> tuple[float, Array]:
        loss, slope_3 = _loss(outputs_3x5 @ entries, size_3)
        return loss + l2 * float(count_5 @ entries**2), outputs_3x5.T @ slope_3 + 2 * l2 * count_5 * entries

    # In units of 1 / sqrt(count) the penalty is a ball, and the search is well scaled.
    unit_5 = 1 / np.sqrt(count_5)

    def scaled(entries: Array) -> tuple[float, Array]:
        value, slope = objective(unit_5 * entries)
        return value, unit_5 * slope

    found = minimize(scaled, np.zeros(5), jac=True, method="BFGS", options=dict(gtol=1e-10, maxiter=10_000))
    entries = unit_5 * found.x
    return Entries(*map(float, entries)), _loss(outputs_3x5 @ entries, size_3)[0]


def margin_direction(data: DataModel) -> Entries:
    """Find the W^V of least norm whose logits of a document's words exceed all others by at least 1."""
    outputs_3x5, count_5 = _outputs(data), _multiplicity(data)
    exist = _sizes(data)[1:] > 0  # words outside the document, and [MASK]
    gaps = (outputs_3x5[0] - outputs_3x5[1:])[exist]
    for used in ([0, 1], [0], [1])[: 2 * len(gaps) - 1]:  # the constraints that hold with equality
        gap = gaps[used[: len(gaps)]]
        price = np.linalg.solve(gap / count_5 @ gap.T, np.ones(len(gap)))
        entries = gap.T @ price / count_5
        if (price >= 0).all() and (gaps @ entries >= 1 - 1e-9).all():
            return Entries(*map(float, entries))
    raise AssertionError("one of the cases holds: the constraints can be met")


def norm(data: DataModel, entries: Entries) -> float:
    """Compute the Frobenius norm of W^V."""
    return float(np.sqrt(_multiplicity(data) @ np.square(entries)))


def matrix(data: DataModel, entries: Entries) -> Array:
    """Make W^V, V x V, from its entries."""
    topic_W = np.arange(data.num_words) // data.words_per_topic
    value = np.full((data.num_words + 1,) * 2, entries.word_mask)
    value[0] = entries.mask_word
    value[0, 0] = entries.mask_mask
    value[1:, 1:] = np.where(topic_W[:, None] == topic_W[None], entries.same, entries.different)
    return value


def _outputs(data: DataModel) -> Array:
    """Make the 3 x 5 matrix from entries to the logits of words inside, outside the document, and [MASK]."""
    if not is_enumerated(data) or data.topic_word is not None:
        raise UserError(
            "documents are not infinite ones of tau disjoint uniform topics, which is all allowed"
        )
    inside, outside, mask = key_masses(data)
    tau = data.topics_per_document
    words = tau * inside + (data.topics - tau) * outside
    return np.array(
        [
            [0, 0, mask, words - inside, inside],
            [0, 0, mask, words - outside, outside],
            [mask, words, 0, 0, 0],
        ]
    )


def _multiplicity(data: DataModel) -> Array:
    """Count how often W^V has each of its five entries."""
    words, each = data.num_words, data.words_per_topic
    return np.array([1.0, words, words, words * (words - each), words * each])


def _sizes(data: DataModel) -> Array:
    """Count the words inside and outside a document, and [MASK]."""
    inside = data.topics_per_document * data.words_per_topic
    return np.array([inside, data.num_words - inside, 1.0])


def _loss(logit_3: Array, size_3: Array) -> tuple[float, Array]:
    """Compute the cross-entropy of a document's words and its slopes with respect to the three logits."""
    shifted_3 = logit_3 - logit_3.max()
    share_3 = size_3 * np.exp(shifted_3)
    total = share_3.sum()
    return float(np.log(total) - shifted_3[0]), share_3 / total - np.array([1.0, 0.0, 0.0])
