"""What the encoder on text costs, from its sizes alone."""

from topicjax.experiments.text.rows import room
from topicjax.experiments.text.settings import Spec


def step_flops(spec: Spec) -> float:
    """Return about the floating-point operations of one trial-step: its matrix products."""
    B, N, D, V = spec.batch_size, spec.context, spec.size, spec.vocabulary
    Q, F = room(spec, B)
    forward = 2.0 * F * D * V
    for layer in range(spec.layers):
        queries = Q if layer == spec.layers - 1 else N
        by_query = D * D * (2 if spec.output_projection else 1) + 2 * D * spec.mlp
        forward += 2.0 * B * (2 * N * D * D + queries * by_query + 2 * queries * N * D)
    return 3 * forward  # the gradients of a product are two more of its size
