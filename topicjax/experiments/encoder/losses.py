"""Outputs and losses of rows whose targets are histograms of words, for the encoder on topic documents.

Dimension letters: B documents, Q rows with words to predict, V vocabulary.
"""

import jax

from topicjax.experiments.encoder.rows import Rows
from topicjax.experiments.encoder.settings import Spec
from topicjax.experiments.shared import layers
from topicjax.experiments.shared.losses import queries_loss
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers


def outputs(
    spec: Spec,
    hypers: LayerHypers,
    params: Params,
    rows: Rows,
    gate_BxL: jax.Array | None = None,
) -> jax.Array:
    """Compute the outputs f_BxQxV of rows with words to predict; gates as in `layers.states`."""
    Q = rows.target_BxQxV.shape[1]
    return outputs_of(spec, params, layers.states(spec, hypers, params, rows, Q, gate_BxL))


def outputs_of(spec: Spec, params: Params, X_BxQxD: jax.Array) -> jax.Array:
    """Compute outputs from last states."""
    return X_BxQxD @ layers.head(spec, params) + params["b_pred"][None, None, :]


def loss_of_documents(objective: jax.Array, output_BxQxV: jax.Array, target_BxQxV: jax.Array) -> jax.Array:
    """Compute each document's contribution to the loss; eq. (1) is their sum."""
    loss = jax.vmap(lambda output, target: queries_loss(objective, output, target)[0])
    return loss(output_BxQxV, target_BxQxV)


def loss_and_gradients(
    spec: Spec, hypers: LayerHypers, trained: Params, frozen: Params, rows: Rows
) -> tuple[jax.Array, Params]:
    """Compute eq. (1) and its gradients for the trained parameters."""
    output_BxQxV, pull_back = jax.vjp(lambda own: outputs(spec, hypers, own | frozen, rows), trained)
    B, Q, V = output_BxQxV.shape
    flat = (B * Q, V)
    targets = rows.target_BxQxV.reshape(flat)
    loss, d_output = queries_loss(hypers.objective, output_BxQxV.reshape(flat), targets)
    return loss, pull_back(d_output.reshape(B, Q, V))[0]
