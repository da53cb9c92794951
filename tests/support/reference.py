"""Reference one-layer model: plain loops over tokens, independent of JAX, batching and token types.

It also works on complex numbers, so that a complex step gives directional derivatives to machine precision.
"""

import numpy as np


def loss(params, word, shown, masked, present, *, hidden_keys, squared, one_hot, kind="softmax"):
    """Compute eq. (1) for documents given as integer and boolean arrays (documents x positions)."""
    vocabulary = params["b_pred"].shape[0]
    W_E = np.eye(vocabulary) if one_hot else params["W_E"]
    means = []
    for document in range(len(word)):
        positions = [n for n in range(word.shape[1]) if present[document, n]]
        losses = []
        for query in positions:
            if not masked[document, query]:
                continue
            keys = [n for n in positions if not (hidden_keys and masked[document, n])]
            output = predict(params, W_E, shown[document], keys, query, kind)
            losses.append(position_loss(output, word[document, query], squared))
        if losses:
            means.append(sum(losses) / len(losses))
    return sum(means) / len(means)


def predict(params, W_E, shown, keys, query, kind="softmax"):
    """Compute the outputs of one position: eq. (6) with biases, attention of any kind written out."""
    head = params["W_K"].shape[0]
    b_K, b_Q = params.get("b_K", np.zeros(head)), params.get("b_Q", np.zeros(head))
    q = params["W_Q"] @ W_E[:, shown[query]] + b_Q
    scores = [(params["W_K"] @ W_E[:, shown[n]] + b_K) @ q / np.sqrt(head) for n in keys]
    if kind == "softmax":
        weights = [np.exp(score - max(np.real(scores))) for score in scores]
        weights = [weight / sum(weights) for weight in weights]
    else:
        offset = {"scores_only": 0, "one_plus_scores": 1, "one_plus_centred": 1}[kind]
        if kind == "one_plus_centred" and keys:
            offset = offset - sum(scores) / len(keys)
        weights = [(offset + score) / len(keys) for score in scores]
    attended = params.get("b_V", np.zeros(W_E.shape[0])) + 0 * q.sum()
    for n, weight in zip(keys, weights, strict=True):
        attended = attended + weight * (params["W_V"] @ W_E[:, shown[n]])
    return W_E.T @ attended + params["b_pred"]


def position_loss(output, word, squared):
    """Compute eq. (3) or eq. (4) for one output vector and one target word."""
    if squared:
        target = np.zeros(len(output))
        target[word] = 1.0
        return ((output - target) ** 2).sum()
    shift = np.real(output).max()
    return np.log(np.exp(output - shift).sum()) + shift - output[word]
