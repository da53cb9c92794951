"""What the one-layer model costs, from its sizes alone: nothing of their size is made to find out."""

import functools
import math

import jax
import jax.numpy as jnp

from topicjax.experiments.one_layer import bags
from topicjax.experiments.one_layer.optimizers import optimizer
from topicjax.experiments.one_layer.settings import Hypers, Spec, traced
from topicjax.experiments.one_layer.state import ROTATION_LAG

FLOAT = 4


def mean_queries(spec: Spec) -> float:
    """Return how many queries of a batch have words to predict, on average."""
    if spec.attention == "uniform":
        return spec.batch_size
    if spec.infinite_documents:
        return spec.batch_size * spec.vocabulary
    return spec.batch_size * (1 + spec.word_query_probability * (spec.shortest + spec.longest) / 2)


def step_flops(spec: Spec) -> float:
    """Return the useful floating-point operations of one trial-step: matrix products, no padding."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    products = 2 if spec.attention == "uniform" else 3  # output; gradients of value and attention
    flops = 2.0 * mean_queries(spec) * V * V * products
    if spec.attention == "trained":
        flops += 3 * 2.0 * A * V * V
    if spec.embedding != "one_hot":
        flops += 3 * 2.0 * (2 * A * D * V + D * D * V + D * V * V)
    return flops


def weight_entries(spec: Spec) -> int:
    """Return how many numbers one trial's parameters are, unpadded."""
    V, D, A = spec.vocabulary, spec.width, spec.head_width
    entries = 2 * A * D + D * D + V + (0 if spec.embedding == "one_hot" else D * V)
    return entries + (2 * A + D if spec.attention_biases == "trained" else 0)


@functools.cache
def optimizer_copies(name: str) -> int:
    """Return how many numbers an optimizer keeps of each parameter."""
    number = jnp.zeros((1024,))
    state = jax.eval_shape(lambda: optimizer(Spec(optimizer=name), traced(Hypers())).init(number))
    return sum(leaf.size for leaf in jax.tree.leaves(state)) // number.size


def trial_bytes(spec: Spec) -> float:
    """Return about how much memory one trial and its documents take while it trains."""
    T, V = spec.topics, bags.padded(spec.vocabulary)
    states = (2 + optimizer_copies(spec.optimizer)) * weight_entries(spec)  # weights, gradients
    slots = math.ceil(ROTATION_LAG / spec.record_every)
    held_out = spec.eval_documents * (V if spec.infinite_documents else 6)
    work = 4 * V * (mean_queries(spec) + held_out) + 8 * V * V
    drawn = max(spec.batch_size, spec.eval_documents)
    tokens = 0 if spec.infinite_documents else 10 * drawn * spec.longest
    return FLOAT * (states + slots * V * V + work + tokens + 20 * drawn * T + 2 * T * V + V * V)
