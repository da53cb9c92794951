"""Experiment: an encoder of several layers on topic documents (data, training, costs)."""

from typing import Any

import jax
import jax.numpy as jnp

from topicjax.experiments.contract import Experiment
from topicjax.experiments.encoder import losses, rows
from topicjax.experiments.encoder.records import measure_gains, measure_model
from topicjax.experiments.encoder.rows import Rows
from topicjax.experiments.encoder.settings import TRIALS, Spec
from topicjax.experiments.shared import encoder, lda, lines
from topicjax.experiments.shared.bags import fit_queries
from topicjax.experiments.shared.layer_records import HEALTHY, Made
from topicjax.experiments.shared.layer_training import init, layer_flops, stepped, weights
from topicjax.experiments.shared.lda import Source
from topicjax.experiments.shared.model import Params
from topicjax.experiments.shared.settings import LayerHypers
from topicjax.experiments.shared.state import State
from topicjax.theory.document_settings import Stream


def make_source(spec: Spec, stream: Stream) -> Source:
    """Draw the topics and the held-out documents of a Stream; they are those of the one-layer model."""
    return lda.make_source(spec, stream, lambda documents: to_rows(spec, stream, documents))


def draw_batch(spec: Spec, stream: Stream, source: Source, step: jax.Array) -> Rows:
    """Draw the documents of a step."""
    return lda.draw_batch(spec, stream, source, step, lambda documents: to_rows(spec, stream, documents))


def to_rows(spec: Spec, stream: Stream, documents: lda.Documents | jax.Array) -> Rows:
    """Convert documents to the encoder's rows."""
    if isinstance(documents, lda.Documents):
        return rows.from_documents(spec, stream, documents)
    return rows.from_distributions(spec, stream, documents)


def rows_missing(source: Source, batch: Rows) -> jax.Array:
    """Count the rows to predict beyond capacity."""
    return jnp.maximum(rows.missing(source.held_out), rows.missing(batch))


def update(
    spec: Spec, stream: Stream, hypers: LayerHypers, state: State, batch: Rows, step: jax.Array
) -> tuple[State, Made]:
    """Take one step; return the new state and the loss and gradients of that step."""

    def loss_and_gradients(trained: Params, frozen: Params) -> tuple[jax.Array, Params]:
        return rows.with_usual_rows(
            spec, lambda own: losses.loss_and_gradients(spec, hypers, trained, frozen, own), batch
        )

    return stepped(spec, hypers, state, step, loss_and_gradients)


def loss(spec: Spec, stream: Stream, hypers: LayerHypers, weights: Params, batch: Rows) -> jax.Array:
    """Compute the loss of eq. (1) of snapshot weights on a batch, without L2."""
    output_BxQxV = losses.outputs(spec, hypers, weights, batch)
    return losses.loss_of_documents(hypers.objective, output_BxQxV, batch.target_BxQxV).sum()


def trained(spec: Spec, weights: Params) -> dict[str, bool]:
    """Mark the weights that are trained."""
    return {name: name in encoder.trained_names(spec) for name in weights}


def measure(
    spec: Spec, stream: Stream, hypers: LayerHypers, source: Source, state: State, batch: Rows, made: Made
) -> Any:
    """Measure a state before the step of this batch; `made` belongs to that step."""
    return measure_model(spec, hypers, source.held_out, state, made)


def measure_rarely(
    spec: Spec, stream: Stream, hypers: LayerHypers, source: Source, state: State, batch: Rows, made: Made
) -> Any:
    """Measure the gains of single layers."""
    return measure_gains(spec, hypers, source.held_out, state.params)


def step_flops(spec: Spec) -> float:
    """Estimate the floating-point operations of one trial-step, for typical batches."""
    used, predicting = rows.usual_room(spec)
    return layer_flops(spec, spec.batch_size, used, predicting, spec.batch_size * predicting)


EXPERIMENT = Experiment(
    settings=TRIALS,
    details=("layer",),
    source=make_source,
    batch=draw_batch,
    init=init,
    update=update,
    measure=measure,
    measure_rarely=measure_rarely,
    weights=weights,
    loss=loss,
    trained=trained,
    healthy=(*HEALTHY, "eval_loss", "eval_loss_uniform"),
    fit=fit_queries,
    missing=rows_missing,
    step_flops=step_flops,
    draw_cost=0.25,
    references=lines.references,
    reference_settings=lines.reference_settings,
)
