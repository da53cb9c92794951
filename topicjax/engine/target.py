"""Compile a sweep's programs for TPUs without having any, and report their memory and work.

The TPU compiler is an ordinary package, libtpu (the extra `tpu`); it needs no TPU to compile.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import topologies

from topicjax.engine import costs
from topicjax.engine.plan import Group, make_groups
from topicjax.engine.programs import Programs, device_mesh
from topicjax.errors import UserError, duration, shown, size
from topicjax.experiments import Experiment, load_experiment
from topicjax.store.files import first_line
from topicjax.trial import Trial

TPU_ALONE = {  # else libtpu queries the network for its machine, and allows one process at a time
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
}
NO_ROOM = "RESOURCE_EXHAUSTED"


def target_devices(name: str) -> Sequence[Any]:
    """Describe the devices of a TPU topology such as v5e:2x2: programs can be compiled for them, not run."""
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
    """Compile every program of a sweep for a topology, and report the result of each."""
    devices, experiment = target_devices(name), load_experiment(experiment)
    by_id = {experiment.settings.trial_id(trial): trial for trial in trials}
    groups = make_groups(experiment, by_id, len(devices), lanes or costs.ACCELERATOR_LANES, snapshots)
    say(f"{len(groups)} programs compiled for {len(devices)} x {devices[0].device_kind}; none is run")
    for group in groups:
        say(f"  {group.label}: {group.rows_per_chunk} streams x {group.lanes} trials ...")
        say(f"    {verdict(group, devices)}")


def verdict(group: Group, devices: Sequence[Any]) -> str:
    """Compile the training program of a group; report whether it fits, its memory and its work."""
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
    """Compile the training program of a group, from shapes alone."""
    programs = Programs(group, device_mesh(devices))
    return programs.functions["advance"].lower(*programs.shapes()["advance"]).compile()
