"""Programs of a sweep compiled for TPUs that are not here: what the compiler says of their memory and work.

The compiler of TPUs is an ordinary package, libtpu (the extra `tpu`); it needs no TPU to compile.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding

from topicjax.engine import costs
from topicjax.engine.plan import Group, make_groups
from topicjax.engine.programs import REPLICATED, SHARDED, STATE_SHARDS, Programs, device_mesh
from topicjax.engine.progress import duration, size
from topicjax.errors import UserError, shown
from topicjax.experiments import Experiment, load_experiment
from topicjax.store.files import first_line
from topicjax.trial import Trial

TPU_ALONE = {  # else libtpu asks the network which machine this is, and lets one process use it at a time
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
}
NO_ROOM = "RESOURCE_EXHAUSTED"


def target_devices(name: str) -> Sequence[Any]:
    """Return the devices of a TPU topology such as v5e:2x2; programs can be compiled for them, not run."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--target needs the compiler of TPUs; install it with: make tpu")
    for variable, value in TPU_ALONE.items():
        os.environ.setdefault(variable, value)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--target is {shown(name)}; allowed: a TPU topology that libtpu knows, as v5e:2x2 or v4:2x2x1 "
            f"({first_line(error)})"
        ) from None


def compile_for(
    experiment: str | Experiment,
    trials: Sequence[Trial],
    name: str,
    lanes: int,
    snapshots: str,
    say: Callable[[str], None],
) -> None:
    """Compile every program of a sweep for a topology, and say what came of each."""
    devices, experiment = target_devices(name), load_experiment(experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups = make_groups(experiment, by_id, len(devices), lanes or costs.ACCELERATOR_LANES, snapshots)
    say(f"{len(groups)} programs compiled for {len(devices)} x {devices[0].device_kind}; none is run")
    for group in groups:
        say(f"  {group.label}: {group.rows_per_chunk} streams x {group.lanes} trials ...")
        say(f"    {verdict(group, devices)}")


def verdict(group: Group, devices: Sequence[Any]) -> str:
    """Return what the compiler says of the training program of a group."""
    start = time.monotonic()
    try:
        compiled = compile_advance(group, devices)
    except jax.errors.JaxRuntimeError as error:
        if NO_ROOM not in str(error):
            raise
        return f"does not fit: {first_line(error)}; fewer trials together may, with --lanes"
    memory = compiled.memory_analysis()
    parts = [
        ("arguments", memory.argument_size_in_bytes),
        ("results", memory.output_size_in_bytes - memory.alias_size_in_bytes),
        ("temporary", memory.temp_size_in_bytes),
    ]
    held = ", ".join(f"{size(part)} {name}" for name, part in parts)
    flops = (compiled.cost_analysis() or {}).get("flops", float("nan"))
    took = duration(time.monotonic() - start)
    return f"fits: {held} per device; {flops / 1e6:,.1f} MFLOP, every loop counted once (compiled in {took})"


def compile_advance(group: Group, devices: Sequence[Any]) -> Any:
    """Return the compiled training program of a group, from shapes alone."""
    mesh = device_mesh(devices)
    programs = Programs(group, mesh)
    streams, hypers = (placed(tree, mesh, SHARDED) for tree in argument_shapes(group))
    data = placed(group.experiment.data_shapes(group.spec), mesh, REPLICATED)
    state = jax.eval_shape(programs.functions["init"], streams, hypers, data)
    state = type(state)(*(placed(leaf, mesh, how) for leaf, how in zip(state, STATE_SHARDS, strict=True)))
    steps = placed(jax.ShapeDtypeStruct(programs.shape, "int32"), mesh, SHARDED)
    return programs.functions["advance"].lower(streams, hypers, state, steps).compile()


def argument_shapes(group: Group) -> tuple[Any, Any]:
    """Return the shapes of a chunk's Streams and Hypers."""
    stream, hypers = costs.example(group.experiment)
    rows = (group.rows_per_chunk,)

    def with_axes(tree: Any, axes: tuple[int, ...]) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(axes, jax.numpy.asarray(leaf).dtype), tree)

    return with_axes(stream, rows), with_axes(hypers, (*rows, group.lanes))


def placed(tree: Any, mesh: Any, how: Any) -> Any:
    """Return shapes with their place on the devices."""
    sharding = NamedSharding(mesh, how)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)
