"""Sweeps from Python: train an experiment over a sweep and open the run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topicjax.engine.options import make_options, takes_options
from topicjax.experiments import Experiment, trial_settings
from topicjax.store.reader import Run, load
from topicjax.sweep import Sweep, bind, expand
from topicjax.sweep.files import NamedSweep


@takes_options
def sweep(
    experiment: str | Experiment,
    sweep: Sweep,
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    **options: Any,
) -> Run:
    """Train the trials of a sweep that the folder does not have yet; return the run.

    `experiment` is your own or the name of a shipped one; `base` has the settings that all trials share.  The
    options are those of `topicjax run`.  Every jax device is used unless `devices` names some (how many, or a
    list of them): on a machine without accelerators call `topicjax.use_all_cores()` first, before jax starts.
    An interruption (Ctrl-C, or the button of a notebook) saves what is unfinished and raises
    KeyboardInterrupt; the same call continues.  Trials that the workers of a `cluster` cannot train raise a
    RuntimeError at the end.
    """
    chosen = make_options(options)
    from topicjax.engine.resources import open_resources
    from topicjax.engine.run import run_sweep

    folder, settings = Path(folder), trial_settings(experiment)
    base = settings.converted(base or {})
    named = NamedSweep(name or folder.name, "", experiment, base, bind(settings, sweep))
    with open_resources(chosen) as (chosen, resources):
        outcome = run_sweep(named, expand(settings, base, named.sweep), folder, chosen, resources)
    if outcome.failures:
        raise RuntimeError(f"{outcome.left} trials are left: {outcome.failures[0].reason}")
    if not outcome.is_whole:
        raise KeyboardInterrupt(f"{outcome.left} trials are left; the same call continues")
    return load(folder)


def use_all_cores() -> None:
    """Make every CPU core a jax device and keep compiled programs between runs; call it before jax starts."""
    from topicjax.engine.resources import use_all_cores

    use_all_cores()
