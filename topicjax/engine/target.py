"""Compile a sweep's programs for TPUs or a GPU without having any, and report their memory, work and limits.

Both compilers are ordinary packages that need no device: libtpu (the extra `tpu`), and XLA's plugin for CUDA
(the extra `cuda12`), which is told what the device is like.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from topicjax.advice import install_command
from topicjax.engine import costs
from topicjax.engine.origin import pinned
from topicjax.engine.plan import Group, group_trials, shaped
from topicjax.engine.programs import SHARDED, STATE_SHARDS, Programs, RowState, device_mesh
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
GPUS = {  # what XLA asks about a GPU, from the data sheet of each
    "a100": """
        platform_name: "CUDA" device_description_str: "NVIDIA A100-SXM4-40GB"
        runtime_version { major: 12 minor: 9 } dnn_version_info { major: 9 minor: 8 }
        gpu_device_info {
          cuda_compute_capability { major: 8 } core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41
          device_memory_size: 42949672960 memory_bandwidth: 1555200000000 l2_cache_size: 41943040
          threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          shared_memory_per_block: 49152 shared_memory_per_block_optin: 166912 shared_memory_per_core: 167936
        }
    """,
}
PEAKS = {  # TFLOP/s and GB/s of a device, from data sheets; a float32 product on a TPU is six of bfloat16
    "NVIDIA A100": (19.5, 1555),
    "TPU v4": (275 / 6, 1228),
    "TPU v5": (459 / 6, 2765),
    "TPU v5 lite": (197 / 6, 819),
    "TPU v6 lite": (918 / 6, 1640),
}


def target_devices(name: str) -> Sequence[Any]:
    """Describe a GPU such as a100, or the devices of a TPU topology such as v5e:2x2.

    Programs can be compiled for them, not run.
    """
    if name in GPUS:
        if importlib.util.find_spec("jax_cuda12_plugin") is None:
            raise UserError(
                f"--target {name} needs XLA's plugin for CUDA; install it with: {install_command('cuda12')}"
            )
        jax.config.update("jax_platforms", "cpu")  # else the plugin looks for a driver, and gives up
        found = topologies.get_topology_desc(platform="cuda", target_config=GPUS[name], topology="1x1x1")
        return found.devices
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--target needs the compiler of TPUs; install it with: {install_command('tpu')}")
    for variable, value in TPU_ALONE.items():
        os.environ.setdefault(variable, value)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--target is {shown(name)}; allowed: {', '.join(GPUS)}, or a TPU topology that libtpu knows, "
            f"as v5e:2x2 or v4:2x2x1 ({first_line(error)})"
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
    groups = group_trials(experiment, by_id, snapshots)
    lanes = lanes or costs.chosen_lanes(groups, devices, costs.ACCELERATOR_LANES)
    groups = [shaped(group, len(devices), lanes) for group in groups]
    say(f"{len(groups)} programs compiled for {len(devices)} x {devices[0].device_kind}; none is run")
    for group in groups:
        say(f"  {group.label}: {group.rows_per_chunk} streams x {group.lanes} trials ...")
        say(f"    {verdict(group, devices)}")
        say(f"    {roofline(group, devices)}")


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
    took = duration(time.monotonic() - start)
    return f"fits: {held} per device (compiled in {took})"


def compile_advance(group: Group, devices: Sequence[Any]) -> Any:
    """Compile the training program of a group, from shapes alone."""
    programs = Programs(group, device_mesh(devices))
    with pinned():
        return programs.functions["advance"].lower(*programs.shapes()["advance"]).compile()


class Work(NamedTuple):
    """Work of one step of all trials on a device."""

    flop: float
    num_bytes: float  # read from memory and written to it
    source: str  # of both numbers


def step_work(group: Group, devices: Sequence[Any]) -> Work:
    """Compile a single step of all trials, without records, and ask the compiler for its work.

    Compilers that do not say are replaced by our own count, and the bytes of all states, read and written.
    """
    programs = Programs(group, device_mesh(devices))

    def step(experiment: Experiment, spec: Any, stream: Any, hypers_L: Any, state: RowState) -> Any:
        batch = experiment.batch(spec, stream, state.source, state.step)

        def of_trial(hypers: Any, trial: Any) -> Any:
            return experiment.update(spec, stream, hypers, trial, batch, state.step)[0]

        return jax.vmap(of_trial)(hypers_L, state.trial_L)

    wrapped = programs.wrap(step, (SHARDED, SHARDED, STATE_SHARDS), SHARDED)
    with pinned():
        compiled = wrapped.lower(*programs.shapes()["advance"][:3]).compile()
    said = compiled.cost_analysis() or {}
    if "flops" in said and "bytes accessed" in said:
        return Work(said["flops"], said["bytes accessed"], "the compiler's count")
    trials = group.trials_per_chunk // len(devices)
    flop = costs.work(group.experiment, group.spec).step
    state = costs.sizes(group.experiment, group.spec).state
    return Work(trials * flop, trials * 2 * state, "our own count, and at least the states read and written")


def roofline(group: Group, devices: Sequence[Any]) -> str:
    """Describe the work of a step and what limits it: arithmetic or memory, by the data sheet."""
    work, trials, kind = (
        step_work(group, devices),
        group.trials_per_chunk // len(devices),
        devices[0].device_kind,
    )
    intensity = work.flop / max(1.0, work.num_bytes)
    text = (
        f"a step of {trials} trials per device: {work.flop / 1e6:,.1f} MFLOP, {size(work.num_bytes)}, "
        f"{intensity:.2g} FLOP per byte ({work.source})"
    )
    known = [name for name in PEAKS if kind.startswith(name)]
    if not known:
        return f"{text}; the peaks of {kind} are not known"
    teraflops, gigabytes = PEAKS[max(known, key=len)]
    seconds = {"arithmetic": work.flop / teraflops / 1e12, "memory": work.num_bytes / gigabytes / 1e9}
    limit = max(seconds, key=lambda name: seconds[name])
    return (
        f"{text}; limited by {limit}: the data sheet's {teraflops:,.0f} TFLOP/s and {gigabytes:,} GB/s allow "
        f"at most {trials / seconds[limit]:,.0f} trial-steps/s per device; not measured"
    )
