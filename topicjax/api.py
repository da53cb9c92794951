"""Sweeps from Python: train an experiment over a sweep, and open what is left."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topicjax.experiments import Experiment, trial_settings
from topicjax.store.reader import Run, load
from topicjax.sweep import Sweep, bind, expand
from topicjax.sweep_files import NamedSweep


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
) -> Run:
    """Train the trials of a sweep that the folder does not have yet; return the run.

    `experiment` is one of your own, or the name of a shipped one; `base` are the settings that all trials
    share.  The rest is as for `topicjax run`.  Every jax device is used unless `devices` names some: on a
    machine without accelerators call `topicjax.use_all_cores()` first, before jax starts.  An interruption
    (Ctrl-C, or the button of a notebook) saves what is unfinished and raises KeyboardInterrupt; the same call
    continues.
    """
    from topicjax.engine.run import Options, available_devices, run_sweep

    folder, settings = Path(folder), trial_settings(experiment)
    own = NamedSweep(
        name or folder.name, "", experiment, settings.converted(base or {}), bind(settings, sweep)
    )
    options = Options(
        lanes=lanes,
        order=order,
        snapshots=snapshots,
        save_seconds=save_seconds,
        extend=extend,
        devices=available_devices() if devices is None else devices,
    )
    outcome = run_sweep(own, expand(settings, own.base, own.sweep), folder, options)
    if not outcome.is_whole:
        raise KeyboardInterrupt(f"{outcome.left} trials are left; the same call continues")
    return load(folder)


def use_all_cores() -> None:
    """Make every CPU core a jax device and keep compiled programs between runs; call it before jax starts."""
    from topicjax.engine.run import use_all_cores

    use_all_cores()
