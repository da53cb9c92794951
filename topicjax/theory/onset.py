"""When attention leaves the saddle W^K = W^Q = 0."""

from typing import Any


def onset_rate(
    topics: Any,
    words_per_topic: Any,
    topics_per_document: Any,
    p_mask: Any,
    p_keep: Any,
    p_random: Any,
    attention_size: Any,
) -> Any:
    """Return gamma, the rate at which topic attention leaves the saddle W^K = W^Q = 0, per eta t.

    gamma = -tr(Pi dL/d(W_K^T W_Q)) / (T - 1), Pi the projector on topic differences, for the squared loss at
    Theorem 2's W^V, one-hot embeddings, infinite tau-topic documents and keys at every position; scores are
    W_K^T W_Q / sqrt(attention_size).  Arithmetic only, so it can be traced.
    """
    tau = topics_per_document
    survival = 1 - (1 - p_keep) * p_mask
    topic_mass = survival / tau + p_mask * p_random / topics
    numerator = 2 * p_keep / survival * topic_mass * (1 - 1 / tau)
    return numerator / (words_per_topic**2 * (topics - 1) * attention_size**0.5)
