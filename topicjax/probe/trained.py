"""Encoders trained on text by topicjax: one trial of a run, as trained and at initialisation.

Dimension letters: B windows, N words of a window, V vocabulary, D width, L layers, H heads, A size of a head.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.corpora.corpus import Corpus, load_corpus
from topicjax.errors import UserError
from topicjax.experiments import load_experiment, trial_settings
from topicjax.experiments.shared.encoder import feed_forward, layer_norm
from topicjax.probe.models import Model
from topicjax.store.reader import Run, load

Weights = Mapping[str, jax.Array]
Settings = Mapping[str, Any]
EXPERIMENT = "text"
UNKNOWN = 1  # id of [UNK]
WITHOUT_LAYERS = ("W_E", "W_P", "W_head", "b_pred", "gain_last", "bias_last")


def trained_encoder(folder: Path, trial_id: str | None) -> Iterator[Model]:
    """Yield an encoder of a run as trained, then at initialisation; without an id, the best one."""
    run = load(folder)
    if run.experiment != EXPERIMENT:
        raise UserError(f"{folder} holds trials of {run.experiment}; allowed: those of {EXPERIMENT}")
    trial_id = run.find(trial_id) if trial_id is not None else best_trial(run)
    trials = trial_settings(EXPERIMENT)
    row = run.trials.set_index("trial_id").loc[trial_id]
    settings = {name: value for name, value in row.to_dict().items() if name in trials.settings}
    corpus = as_read(load_corpus(settings["corpus"]), settings["vocabulary_size"], settings["unknown"])
    experiment, (spec, stream, hypers) = load_experiment(EXPERIMENT), trials.make_trial(settings)
    start = experiment.init(spec, trials.traced(stream), trials.traced(hypers))
    sizes = f"{settings['layers']} layers x {settings['heads']} heads, width {settings['width']}"
    steps = run.snapshot_step(trial_id)
    what = f"masked language model, trained here: {sizes}, {steps:,} steps on {corpus.name}"
    name = f"encoder {trial_id[:6]}"
    yield encoder_model(name, what, True, settings, run.restore(trial_id), corpus)
    control = f"control: {name} before its first step"
    yield encoder_model(f"{name}, start", control, False, settings, experiment.weights(spec, start), corpus)


def best_trial(run: Run) -> str:
    """Find the trial with the least held-out loss that did not diverge."""
    losses = run.trials.loc[run.trials["status"] == "ok"].set_index("trial_id")["final_eval_loss"]
    if losses.empty:
        raise UserError(f"{run.folder} has no finished trial that is finite")
    return str(losses.idxmin())


def as_read(corpus: Corpus, size: int, unknown: str) -> Corpus:
    """Reduce a corpus to a vocabulary of this size: rarer words become [UNK] or are left out."""
    ids = np.where(np.asarray(corpus.ids) < size, corpus.ids, UNKNOWN)
    vocabulary = corpus.vocabulary[:size]
    if unknown == "shown":
        return corpus._replace(ids=ids, vocabulary=vocabulary)
    stays = ids != UNKNOWN
    before = np.concatenate([[0], np.cumsum(stays)])
    return corpus._replace(ids=ids[stays], ends=before[np.asarray(corpus.ends)], vocabulary=vocabulary)


def encoder_model(
    name: str,
    what: str,
    is_trained: bool,
    settings: Settings,
    weights: Mapping[str, Any],
    corpus: Corpus,
) -> Model:
    """Make a Model from our encoder, which reads whole words."""
    if settings["embedding"] == "one_hot":
        raise UserError(f"{name} has one-hot embeddings; allowed: trained or random ones")
    on_device = jax.device_put(dict(weights))
    program = jax.jit(partial(word_attention, dict(settings)))
    most = weights["W_P"].shape[1] if "W_P" in weights else np.inf

    def attend(words_BxW: np.ndarray) -> np.ndarray:
        if words_BxW.shape[1] > most:
            raise UserError(f"{name} reads {most} words; allowed: --words {most} or fewer")
        return np.asarray(program(on_device, words_BxW))

    is_known_V = np.arange(len(corpus.vocabulary)) > UNKNOWN
    embedding_VxD, is_split_V = np.asarray(weights["W_E"]).T, np.zeros(len(is_known_V), bool)
    return Model(name, what, is_trained, corpus, is_known_V, embedding_VxD, attend, is_split_V)


def word_attention(settings: Settings, weights: Weights, words_BxN: Any) -> jax.Array:
    """Average attention from word to word over heads, times the number of words: uniform attention is 1."""
    _, A_LxBxHxNxN = encode(settings, weights, words_BxN)
    return A_LxBxHxNxN.mean(axis=2).swapaxes(0, 1) * words_BxN.shape[1]


def encode(settings: Settings, weights: Weights, words_BxN: Any) -> tuple[jax.Array, jax.Array]:
    """Compute the last states, B x N x D, and the attention from query to key, L x B x H x N x N.

    The model is that of `experiments.shared.encoder`, with every word as a key.
    """
    X_BxNxD = weights["W_E"].T[words_BxN]
    if "W_P" in weights:
        X_BxNxD = X_BxNxD + weights["W_P"].T[None, : words_BxN.shape[1]]
    attention = []
    for layer in range(len(weights["W_K"])):
        block = {name: leaf[layer] for name, leaf in weights.items() if name not in WITHOUT_LAYERS}
        normed_BxNxD = normed_before(settings, block, "attention", X_BxNxD)
        A_BxHxNxN = head_attention(settings["heads"], block, normed_BxNxD)
        X_BxNxD = sublayer(settings, block, "attention", X_BxNxD, partial(attended, block, A_BxHxNxN))
        if "W_1" in block:
            mlp = partial(feed_forward, **{name: block[name] for name in ("W_1", "b_1", "W_2", "b_2")})
            X_BxNxD = sublayer(settings, block, "mlp", X_BxNxD, mlp)
        attention.append(A_BxHxNxN)
    if settings["layer_norm"] == "pre":
        X_BxNxD = layer_norm(X_BxNxD, weights["gain_last"], weights["bias_last"])
    return X_BxNxD, jnp.stack(attention)


def normed_before(settings: Settings, block: Weights, name: str, X_BxNxD: jax.Array) -> jax.Array:
    """Compute the input of a sublayer."""
    is_pre = settings["layer_norm"] == "pre"
    return layer_norm(X_BxNxD, block[f"gain_{name}"], block[f"bias_{name}"]) if is_pre else X_BxNxD


def sublayer(settings: Settings, block: Weights, name: str, X_BxNxD: jax.Array, function: Any) -> jax.Array:
    """Compute the states after a sublayer."""
    added_BxNxD = function(normed_before(settings, block, name, X_BxNxD))
    X_BxNxD = X_BxNxD + added_BxNxD if settings["residual"] else added_BxNxD
    is_post = settings["layer_norm"] == "post"
    return layer_norm(X_BxNxD, block[f"gain_{name}"], block[f"bias_{name}"]) if is_post else X_BxNxD


def by_head(W_DxD: jax.Array, H: int) -> jax.Array:
    """Split a matrix into its heads, H x A x D."""
    return W_DxD.reshape(H, -1, W_DxD.shape[1])


def head_attention(H: int, block: Weights, X_BxNxD: jax.Array) -> jax.Array:
    """Compute the attention of every head, from query to key."""
    Q_BxHxNxA, K_BxHxNxA = (
        jnp.einsum("bnd,had->bhna", X_BxNxD, by_head(block[name], H)) for name in ("W_Q", "W_K")
    )
    score_BxHxNxN = Q_BxHxNxA @ K_BxHxNxA.swapaxes(2, 3) / Q_BxHxNxA.shape[-1] ** 0.5
    return jax.nn.softmax(score_BxHxNxN, axis=-1)


def attended(block: Weights, A_BxHxNxN: jax.Array, X_BxNxD: jax.Array) -> jax.Array:
    """Compute what attention adds to the states."""
    V_HxAxD = by_head(block["W_V"], A_BxHxNxN.shape[1])
    joined = jnp.einsum("bhqk,bkd,had->bqha", A_BxHxNxN, X_BxNxD, V_HxAxD).reshape(X_BxNxD.shape)
    return joined @ block["W_O"].T if "W_O" in block else joined
