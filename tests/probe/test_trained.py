"""The attention of our own encoders, as the probe computes it, is that of the model's definition."""

import jax
import numpy as np
import pytest
from support.small_corpus import small_corpus

from topicjax.experiments.encoder.settings import TRIALS
from topicjax.experiments.shared import encoder
from topicjax.probe.trained import as_read, encode, word_attention

SETTINGS = {
    "bare": dict(layers=1, heads=1),
    "pre": dict(layers=2, heads=2, layer_norm="pre", mlp=6, output_projection=True, positions=150),
    "post": dict(layers=3, heads=4, layer_norm="post", residual=False, head="free"),
}


MARKS = {"pre": (), "bare": pytest.mark.slow, "post": pytest.mark.slow}  # one of them has most parts
CASES = [pytest.param(own, id=name, marks=MARKS[name]) for name, own in SETTINGS.items()]


@pytest.mark.parametrize("changes", CASES)
def test_states_and_attention_are_those_of_the_definition(changes, monkeypatch):
    settings = TRIALS.defaults | dict(topics=3, words_per_topic=4, width=8, init="default", init_scale=1.0)
    spec, _, hypers = TRIALS.make_trial(settings | changes)
    settings = TRIALS.settings_of(TRIALS.make_trial(settings | changes))
    traced = TRIALS.traced(hypers)
    params = jax.jit(encoder.init, static_argnums=0)(spec, traced, jax.random.key(1))
    params |= {name: leaf + 0.1 for name, leaf in params.items() if name.startswith(("gain", "bias", "b_"))}
    params |= {name: 3 * params[name] for name in ("W_K", "W_Q")}
    words = np.random.default_rng(0).integers(0, 13, (2, 9))
    original = encoder.masked_softmax

    @jax.jit  # op by op it would be a hundred small programs
    def apply(window):
        """Return the definition's output for a window, and the attention of every layer and head."""
        seen = []

        def watched(score_NxN, is_key):
            seen.append(original(score_NxN, is_key))
            return seen[-1]

        with monkeypatch.context() as patched:
            patched.setattr(encoder, "masked_softmax", watched)
            return encoder.Encoder(spec, traced).apply({"params": params}, window, np.ones(9, bool)), seen

    expected, seen = zip(*(jax.device_get(apply(window)) for window in words), strict=True)
    states, attention = encode(settings, params, words)
    head = params["W_E"] if spec.head == "tied" else params["W_head"].T
    np.testing.assert_allclose(states @ head + params["b_pred"][None, None], expected, atol=3e-5)
    shape = (2, spec.layers, spec.heads, 9, 9)  # the definition has key, query
    by_window = np.array(seen).reshape(shape).swapaxes(3, 4)
    np.testing.assert_allclose(attention.swapaxes(0, 1), by_window, atol=1e-5)
    between = word_attention(settings, params, words)
    np.testing.assert_allclose(between, 9 * by_window.mean(axis=2), atol=1e-4)
    assert np.abs(np.asarray(between) - 1).max() > 0.1


def test_a_corpus_as_a_model_of_few_words_reads_it():
    corpus = small_corpus(["acb", "c", "ba"], "abc")
    shown = as_read(corpus, 4, "shown")
    assert shown.ids.tolist() == [2, 1, 3, 1, 3, 2] and shown.ends.tolist() == [3, 4, 6]
    assert shown.vocabulary == ("[MASK]", "[UNK]", "a", "b")
    left = as_read(corpus, 4, "left_out")
    assert left.ids.tolist() == [2, 3, 3, 2] and left.ends.tolist() == [2, 2, 4]
