"""Cross-entropy without a finite optimum: five entries against whole matrices, document by document."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from topicjax.errors import UserError
from topicjax.theory import margins
from topicjax.theory.documents import DataModel

DATA = DataModel(
    topics=3, words_per_topic=2, documents="tau", infinite_documents=True, topics_per_document=2, p_mask=0.3
)


def documents(data: DataModel):
    """List the word distribution and the shown distribution of every document."""
    for subset in combinations(range(data.topics), data.topics_per_document):
        words = np.repeat(np.isin(np.arange(data.topics), subset), data.words_per_topic).astype(float)
        words /= words.sum()
        yield words, data.shown_distribution(words[None])[0]


def full_loss(data: DataModel, value: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute the loss of any W^V, and its gradient, over all documents."""
    loss, slope, every = 0.0, np.zeros_like(value), list(documents(data))
    for words, shown in every:
        logit = value @ shown
        share = np.exp(logit - logit.max())
        share /= share.sum()
        target = np.r_[0.0, words]
        loss -= words[words > 0] @ np.log(share[1:][words > 0]) / len(every)
        slope += np.outer(share - target, shown) / len(every)
    return loss, slope


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
def test_penalised_optimum_is_that_of_all_entries(l2):
    def objective(flat):
        loss, slope = full_loss(DATA, flat.reshape(7, 7))
        return loss + l2 * flat @ flat, slope.ravel() + 2 * l2 * flat

    found = minimize(objective, np.zeros(49), jac=True, method="BFGS", options=dict(gtol=1e-9))
    entries, loss = margins.penalised_optimum(DATA, l2)
    np.testing.assert_allclose(margins.matrix(DATA, entries), found.x.reshape(7, 7), atol=1e-5)
    assert margins.norm(DATA, entries) == pytest.approx(np.linalg.norm(found.x), rel=1e-5)
    assert loss == pytest.approx(full_loss(DATA, found.x.reshape(7, 7))[0], rel=1e-6)


def test_penalties_lose_their_grip_without_bound():
    norms, losses = [], []
    for l2 in (1e-2, 1e-4, 1e-6):
        entries, loss = margins.penalised_optimum(DATA, l2)
        norms.append(margins.norm(DATA, entries))
        losses.append(loss)
    assert norms[0] < norms[1] < norms[2] and losses[0] > losses[1] > losses[2] > margins.infimum(DATA)
    with pytest.raises(UserError, match="l2 is 0; allowed: above 0"):
        margins.penalised_optimum(DATA, 0)


def test_margin_direction_has_the_least_norm_of_all_matrices():
    gaps = []
    for words, shown in documents(DATA):
        inside, others = np.flatnonzero(words) + 1, [0, *(np.flatnonzero(words == 0) + 1)]
        for first in inside:
            for second in others:
                gap = np.zeros((7, 7))
                gap[first], gap[second] = shown, -shown
                gaps.append(gap.ravel())
    gaps = np.array(gaps)
    limits = dict(type="ineq", fun=lambda flat: gaps @ flat - 1, jac=lambda flat: gaps)
    found = minimize(
        lambda flat: (flat @ flat, 2 * flat), np.ones(49), jac=True, constraints=[limits], method="SLSQP"
    )
    entries = margins.margin_direction(DATA)
    assert margins.norm(DATA, entries) == pytest.approx(np.sqrt(found.fun), rel=1e-5)
    np.testing.assert_allclose(margins.matrix(DATA, entries), found.x.reshape(7, 7), atol=1e-4)


def test_gradient_descent_grows_at_the_rate_of_the_margin():
    """Steps grow as the loss gets flatter: too long for equal words to stay equal, so they are averaged."""
    numbers = margins.matrix(DATA, margins.Entries(0, 1, 2, 3, 4)).astype(int)
    value, before = np.zeros((7, 7)), {}
    step, time = 1.0, 0.0
    for number in range(4000):
        value -= step * full_loss(DATA, value)[1]
        value = (np.bincount(numbers.ravel(), value.ravel()) / np.bincount(numbers.ravel()))[numbers]
        time += step
        step = max(1.0, 0.002 * time)
        if number in (1999, 3999):
            before[number] = (np.log(time), np.linalg.norm(value))
    (early, small), (late, large) = before.values()
    rate = margins.norm(DATA, margins.margin_direction(DATA))
    assert late - early > 3
    assert (large - small) / (late - early) == pytest.approx(rate, rel=0.02)


def test_documents_of_all_topics_leave_the_margin_over_mask():
    """[MASK] is never a target, so even then there is no finite optimum."""
    data = DataModel(**{**vars(DATA), "topics_per_document": 3})
    value = margins.matrix(data, margins.margin_direction(data))
    ((_, shown),) = documents(data)
    logit = value @ shown
    np.testing.assert_allclose(logit[1:] - logit[0], 1.0)
    # the least norm that separates one output from six others by 1, with keys `shown`
    assert np.linalg.norm(value) == pytest.approx(np.sqrt(6 / 7 / (shown @ shown)))
