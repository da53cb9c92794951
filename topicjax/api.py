"""Sweeps from Python: train an experiment over a sweep, and open what is left."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicjax.errors import UserError
from topicjax.experiments import Experiment, trial_settings
from topicjax.store.reader import Run, load
from topicjax.sweep import Sweep, bind, expand
from topicjax.sweep.files import NamedSweep

if TYPE_CHECKING:
    from topicjax.engine.cluster.cluster import Cluster


def sweep(
    experiment: str | Experiment,
    sweep: Sweep,
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    lanes: int = 0,
    devices: Sequence[Any] | None = None,
    order: str = "",
    snapshots: str = "last",
    save_seconds: float = 60.0,
    extend: bool = False,
    cluster: str | None = None,
) -> Run:
    """Train the trials of a sweep that the folder does not have yet; return the run.

    `experiment` is one of your own, or the name of a shipped one; `base` are the settings that all trials
    share.  The rest is as for `topicjax run`.  Every jax device is used unless `devices` names some: on a
    machine without accelerators call `topicjax.use_all_cores()` first, before jax starts.  An interruption
    (Ctrl-C, or the button of a notebook) saves what is unfinished and raises KeyboardInterrupt; the same call
    continues.  With `cluster` ("local:4", "auto" or "HOST:PORT") the workers of a Ray cluster train; trials
    that they cannot train are a RuntimeError at the end.
    """
    from topicjax.engine.run import Options, available_devices, run_sweep

    folder, settings = Path(folder), trial_settings(experiment)
    own = NamedSweep(
        name or folder.name, "", experiment, settings.converted(base or {}), bind(settings, sweep)
    )
    if cluster is not None and devices is not None:
        raise UserError("devices are given with a cluster; allowed: either, its workers have their own")
    with contextlib.ExitStack() as stack:
        joined = None if cluster is None else stack.enter_context(join(cluster))
        options = Options(
            lanes=lanes,
            order=order,
            snapshots=snapshots,
            save_seconds=save_seconds,
            extend=extend,
            devices=devices or (available_devices() if joined is None else joined.devices),
            cluster=joined,
        )
        outcome = run_sweep(own, expand(settings, own.base, own.sweep), folder, options)
    if outcome.failures:
        raise RuntimeError(f"{outcome.left} trials are left: {outcome.failures[0].reason}")
    if not outcome.is_whole:
        raise KeyboardInterrupt(f"{outcome.left} trials are left; the same call continues")
    return load(folder)


def join(cluster: str) -> "Cluster":
    """Return the workers of a Ray cluster, to be used in a `with` block."""
    from topicjax.engine.cluster.address import check_installed, parse_address

    address = parse_address(cluster)
    check_installed()
    from topicjax.engine.cluster.cluster import Cluster

    return Cluster(address)


def use_all_cores() -> None:
    """Make every CPU core a jax device and keep compiled programs between runs; call it before jax starts."""
    from topicjax.engine.run import use_all_cores

    use_all_cores()
