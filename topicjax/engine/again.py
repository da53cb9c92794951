"""Re-evaluate finished trials: restore or retrain the final state, and measure it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from topicjax.engine.options import MANTISSA_BITS
from topicjax.engine.origin import ROUND_PRODUCTS, pinned
from topicjax.engine.rounding import with_rounded_products
from topicjax.engine.segments import is_key, state_leaves
from topicjax.experiments.contract import Experiment, columns_of
from topicjax.store.files import StoreError
from topicjax.store.reader import Run


def evaluate(run: Run, trial_id: str, experiment: Experiment, settings: Mapping[str, Any], step: int) -> dict:
    """Measure a finished trial again at its last step: every column, rare ones included.

    The final state is read if the folder has it; a trial that stopped early as decided is retrained, alone.
    """
    trial = experiment.settings.make_trial(settings)
    spec = experiment.fit(trial.spec, [trial.stream])
    stream, hypers = map(experiment.settings.traced, (trial.stream, trial.hypers))
    data = experiment.load_data(spec)

    def train(stream: Any, hypers: Any, data: Any) -> Any:
        source = experiment.make_source(spec, stream, data)

        def take_step(number: Any, state: Any) -> Any:
            batch = experiment.batch(spec, stream, source, number)
            return experiment.update(spec, stream, hypers, state, batch, number)[0]

        return jax.lax.fori_loop(0, step, take_step, experiment.init(spec, stream, hypers))

    def measure(stream: Any, hypers: Any, data: Any, state: Any) -> dict[str, Any]:
        source, number = experiment.make_source(spec, stream, data), jnp.int32(step)
        batch = experiment.batch(spec, stream, source, number)
        _, made = experiment.update(spec, stream, hypers, state, batch, number)
        given = (spec, stream, hypers, source, state, batch, made)
        rare = {} if experiment.measure_rarely is None else columns_of(experiment.measure_rarely(*given))
        return columns_of(experiment.measure(*given)) | rare

    if bits := MANTISSA_BITS.get(rounding_of(run, trial_id), 0):
        train, measure = with_rounded_products(train, bits), with_rounded_products(measure, bits)
    kept = kept_state(run, trial_id, jax.eval_shape(train, stream, hypers, data))
    with pinned():
        state = jax.jit(train)(stream, hypers, data) if kept is None else kept
        columns = jax.jit(measure)(stream, hypers, data, state)
    return {name: np.asarray(values) for name, values in columns.items()}


def rounding_of(run: Run, trial_id: str) -> str:
    """Look up how the run that trained a trial rounded the factors of products; empty if it did not."""
    numbers = {row["trial_id"]: row["run"] for row in run.columns(["trial_id", "run"])}
    entries = dict(enumerate(run.manifest.get("runs", []), 1))
    arithmetic = entries.get(numbers.get(trial_id, 0), {}).get("arithmetic", {})
    return str(arithmetic.get(ROUND_PRODUCTS, ""))


def kept_state(run: Run, trial_id: str, like: Any) -> Any:
    """Read the final state of a trial; None if the folder has none that can be used."""
    try:
        leaves = [leaf[0] for leaf in run.end_states([trial_id])]
    except (StoreError, KeyError):
        return None
    pairs = zip(leaves, state_leaves(like), strict=True)
    placed = [jax.random.wrap_key_data(new) if is_key(old) else jnp.asarray(new) for new, old in pairs]
    return jax.tree.unflatten(jax.tree.structure(like), placed)
