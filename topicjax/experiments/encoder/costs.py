"""What the encoder costs, from its sizes alone."""

from topicjax.experiments.encoder.rows import usual_room
from topicjax.experiments.encoder.settings import Spec


def step_flops(spec: Spec) -> float:
    """Return about the floating-point operations of one trial-step: the matrix products of usual batches."""
    B, D, V = spec.batch_size, spec.size, spec.vocabulary
    rows, predicted = usual_room(spec)
    forward = 2.0 * B * predicted * D * V
    for layer in range(spec.layers):
        queries = predicted if layer == spec.layers - 1 else rows
        by_query = D * D * (2 if spec.output_projection else 1) + 2 * D * spec.mlp
        forward += 2.0 * B * (2 * rows * D * D + queries * by_query + 2 * queries * rows * D)
    return 3 * forward  # the gradients of a product are two more of its size
