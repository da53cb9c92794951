"""Reference encoder: plain loops over positions and heads, independent of JAX, rows and batching.

It also works on complex numbers, so that a complex step gives directional derivatives to machine precision.
"""

import numpy as np
from support.reference import position_loss


def layer_norm(x, gain, bias, scale=None):
    centred = x - x.mean()
    scale = 1 / np.sqrt((centred**2).mean() + 1e-5) if scale is None else scale
    return centred * scale * gain + bias


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relative_bias(params, layer, head, distance):
    """Look up what a head adds to the score of a key this many positions to the right of its query."""
    reach = params["R"].shape[2] // 2 if "R" in params else 0
    if distance == 0 or abs(distance) > reach:
        return 0.0
    return params["R"][layer][head][distance + reach - (distance > 0)]


def attend(params, layer, heads, states, keys, query, gate, bias_gain):
    """Compute the joined output of all heads at one position, and the attention of each head to the keys."""
    joined, attention = [], []
    size = len(states[0]) // heads
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        q = params["W_Q"][layer][own] @ states[query]
        scores = [(params["W_K"][layer][own] @ states[n]) @ q / np.sqrt(size) for n in keys]
        if bias_gain:
            biases = [relative_bias(params, layer, head, n - query) for n in keys]
            scores = [score + bias_gain * bias for score, bias in zip(scores, biases, strict=True)]
        scores = [gate * score for score in scores]
        weights = np.array([np.exp(score - max(np.real(scores))) for score in scores])
        weights = weights / weights.sum() if keys else weights
        values = [params["W_V"][layer][own] @ states[n] for n in keys]
        joined.append(sum((w * v for w, v in zip(weights, values, strict=True)), np.zeros(size)))
        attention.append(weights)
    return np.concatenate(joined), attention


def encode(
    params,
    shown,
    keys,
    *,
    heads,
    residual,
    norm,
    bias_gain=0.0,
    scores=None,
    outputs=None,
    find=None,
    scales=None,
):
    """Compute the outputs of all positions, and the attention of each layer, position and head.

    `bias_gain` multiplies the relative bias R, layers x heads x offsets from -r to r without 0.  `scores` and
    `outputs` have one factor per layer, for its scores and for the output of its attention.  `find` is a list
    that gets the scale of every layer norm, in their order; `scales` are used instead.
    """
    given = iter(scales or ())
    layers = len(params["W_K"])
    W_E = params.get("W_E", np.eye(len(params["b_pred"])))
    states = [W_E[:, token] for token in shown]
    if "W_P" in params:
        states = [state + params["W_P"][:, place] for place, state in enumerate(states)]
    attentions = []

    def normed(x, gain, bias):
        if find is not None:
            centred = x - x.mean()
            find.append(1 / np.sqrt((centred**2).mean() + 1e-5))
        return layer_norm(x, gain, bias, None if scales is None else next(given))

    def sublayer(states, kind, layer, function):
        gain, bias = params[f"gain_{kind}"][layer], params[f"bias_{kind}"][layer]
        inside = [normed(x, gain, bias) for x in states] if norm == "pre" else states
        added = [(x if residual else 0 * x) + function(inside, n) for n, x in enumerate(states)]
        return [normed(x, gain, bias) for x in added] if norm == "post" else added

    for layer in range(layers):
        seen = []

        def attention(inside, query, layer=layer, seen=seen):
            gate = 1 if scores is None else scores[layer]
            joined, weights = attend(params, layer, heads, inside, keys, query, gate, bias_gain)
            seen.append(weights)
            projected = params["W_O"][layer] @ joined if "W_O" in params else joined
            return projected if outputs is None else outputs[layer] * projected

        def mlp(inside, query, layer=layer):
            hidden = gelu(params["W_1"][layer] @ inside[query] + params["b_1"][layer])
            return params["W_2"][layer] @ hidden + params["b_2"][layer]

        states = sublayer(states, "attention", layer, attention)
        states = sublayer(states, "mlp", layer, mlp) if "W_1" in params else states
        attentions.append(seen)
    if norm == "pre":
        states = [normed(x, params["gain_last"], params["bias_last"]) for x in states]
    head = params.get("W_head", W_E.T)
    return [head @ x + params["b_pred"] for x in states], attentions


def loss_of_documents(params, documents, hidden_keys, squared, scales_of=None, **how):
    """Compute the mean loss over the masked positions of each document that has any.

    With `scales_of`, a gate on all scores, layer norms keep the scales that they have with it.
    """
    word, shown, masked, present = documents
    means = []
    for d in range(len(word)):
        if not masked[d].any():
            continue
        length = int(present[d].sum())
        keys = [n for n in range(length) if not (hidden_keys and masked[d, n])]
        if scales_of is not None:
            same = {name: how[name] for name in ("heads", "residual", "norm")}
            scales: list = []
            real = {name: np.real(leaf) for name, leaf in params.items()}
            encode(real, shown[d, :length], keys, scores=scales_of, find=scales, **same)
            how["scales"] = scales
        outputs, _ = encode(params, shown[d, :length], keys, **how)
        losses = [position_loss(outputs[n], word[d, n], squared) for n in range(length) if masked[d, n]]
        means += [sum(losses) / len(losses)] if losses else []
    return np.array(means)


def path_shares(loss, layers, points):
    """Integrate minus the derivative of each document's loss by each layer's gate while all open together.

    `loss` takes one gate per layer; derivatives are complex steps.  Returns documents x layers.
    """
    place, weight = np.polynomial.legendre.leggauss(points)
    shares = []
    for layer in range(layers):
        step = 1e-30j * (np.arange(layers) == layer)
        slopes = [w / 2 * loss((t + 1) / 2 + step).imag / 1e-30 for t, w in zip(place, weight, strict=True)]
        shares.append(-np.sum(slopes, axis=0))
    return np.stack(shares, axis=1)
