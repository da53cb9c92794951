"""The best attention of Assumption 2's kind, the value matrix kept: found on documents, exact where possible.

Letters: R queries.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize

from topicjax.experiments.one_layer.settings import Objective
from topicjax.theory.documents import Array, DataModel
from topicjax.theory.landscape import optimal_attention
from topicjax.theory.queries import Queries, first_documents, is_enumerated
from topicjax.theory.stage_models import Outputs, StageModel, examples_of

FIT_QUERIES = 4_000  # that fit the two parameters of attention
GRID = [np.array(logs) for logs in product((-4.0, -1.0, 0.0, 2.0, 4.0), (-2.0, 0.0, 2.0, 4.0))]
BOUNDS = [(-6.0, 12.0)] * 2  # of log alpha and log beta


def stage2_model(data: DataModel, objective: Objective, values: list[Array], queries: Queries) -> StageModel:
    """Return the best model with W^V frozen at a stage-1 optimum and the attention of Assumption 2.

    `values` holds the optimum of stage 1 and, if that has a diagonal, the one by topics (as in Theorem 3);
    the better of them counts.  Exact for the squared loss with infinite tau-topic documents and disjoint
    topics.
    """
    value = values[0]
    if objective == "squared" and is_enumerated(data) and data.topic_word is None:
        average, _ = optimal_attention(data, (value[1, 0], value[1, -1], value[1, 1]))
        return StageModel(value, average, average, mask_beta=1.0)
    few = first_documents(queries, 1 + FIT_QUERIES * len(queries.words) // len(queries.token))
    found = [best_attention(data, objective, value, few) for value in values]
    return min(found, key=lambda pair: pair[1])[0]


def best_attention(
    data: DataModel, objective: Objective, value: Array, queries: Queries
) -> tuple[StageModel, float]:
    """Return the model with the (alpha, beta) of Assumption 2 of least mean loss, and that loss.

    A coarse grid comes first: with keys `all` there can be two minima, topics (alpha > 1) and
    copying (alpha near 0, beta > 1, if W^V has a diagonal).
    """
    outputs, size = Outputs(data, examples_of(data, queries), value), len(queries.words)
    squared = squared_loss(outputs) if objective == "squared" else None

    def loss(logs: Array) -> float:
        alpha, beta = np.exp(logs)
        if squared is not None:
            return squared(alpha, beta) / size
        return float(outputs.losses(StageModel(value, alpha, beta), objective).sum()) / size

    def loss_and_slopes(logs: Array) -> tuple[float, Array]:
        total, slopes = outputs.cross_entropy_slopes(StageModel(value, *np.exp(logs)))
        return total / size, slopes / size

    start = min(GRID, key=loss)
    look: dict[str, Any] = dict(method="L-BFGS-B", bounds=BOUNDS)
    found: Any = (
        minimize(loss, start, **look)
        if squared is not None
        else minimize(loss_and_slopes, start, jac=True, **look)
    )
    alpha, beta = np.exp(found.x)
    return StageModel(value, float(alpha), float(beta)), float(found.fun)


def squared_loss(outputs: Outputs) -> Callable[[float, float], float]:
    """Return the summed squared loss as a function of alpha and beta.

    It is a rational function of them for each query: sums over the vocabulary are taken once.
    """
    gram = {
        (i, j): np.einsum("rg,rg,g->r", outputs.sums[i], outputs.sums[j], outputs.size_G)
        for i, j in product(range(3), repeat=2)
    }
    score = [np.einsum("rg,rg->r", outputs.target_RxG, part) for part in outputs.sums]
    total_weight = float(outputs.weight_R.sum())

    def loss(alpha: float, beta: float) -> float:
        factor = (1.0, alpha - 1, beta - alpha)
        total_R = sum(f * part for f, part in zip(factor, outputs.totals, strict=True))
        inverse_R = np.divide(1.0, total_R, out=np.zeros_like(total_R), where=total_R > 0)
        square_R = sum(factor[i] * factor[j] * each for (i, j), each in gram.items()) * inverse_R**2
        score_R = sum(f * each for f, each in zip(factor, score, strict=True)) * inverse_R
        return total_weight + float(np.sum(outputs.weight_R * square_R - 2 * score_R))

    return loss
