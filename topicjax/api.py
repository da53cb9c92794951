"""Sweeps from Python: train an experiment over a sweep, open a run folder, look at one trial."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topicjax.engine.options import make_options, takes_options
from topicjax.errors import UserError
from topicjax.experiments import SHIPPED, Experiment, load_experiment, trial_settings
from topicjax.store import reader
from topicjax.store.files import check_kind
from topicjax.store.manifest import last_run
from topicjax.sweep import Sweep, bind, expand
from topicjax.sweep.files import NamedSweep, load_sweep


class Run(reader.Run):
    """The finished trials of a run folder, and the experiment that trained them where it was given."""

    given_experiment: Experiment | None = None

    def trial(self, trial_id: str) -> "FinishedTrial":
        """Return one trial; an unambiguous beginning of its id is enough."""
        return FinishedTrial(self, self.find(trial_id))


class FinishedTrial:
    """One trial of a run: its settings, records, weights, and its measurements made again."""

    def __init__(self, run: Run, trial_id: str) -> None:
        """Take a trial of a run by its id."""
        self.run, self.trial_id = run, trial_id
        self.row = run.trials.set_index("trial_id").loc[trial_id]

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name."""
        plain = (value.item() if isinstance(value, np.generic) else value for value in self.row)
        every = dict(zip(self.row.index, plain, strict=True))
        return {name: every[name] for name in self.run.setting_names}

    @property
    def records(self) -> pd.DataFrame:
        """One row per record: its step and what was measured."""
        return self.run.records_of([self.trial_id])[0].reset_index(drop=True)

    @property
    def details(self) -> pd.DataFrame:
        """One row per record and place of its details."""
        return self.run.records_of([self.trial_id])[1].reset_index(drop=True)

    def weights(self, step: int | None = None) -> Any:
        """Return the tree that the experiment's `weights` returned, at the last snapshot or this one."""
        return self.run.restore(self.trial_id, step)

    def evaluate(self, experiment: Experiment | None = None) -> dict[str, np.ndarray]:
        """Measure the trial again where it ended: every column by name, rare ones too.

        The experiment is the shipped one of its name, that of the run's sweep file, or the one given here or
        to `load`.
        """
        from topicjax.engine.again import evaluate

        found = experiment or experiment_of(self.run)
        return evaluate(self.run, self.trial_id, found, self.settings, int(self.row["stopped_step"]))


def experiment_of(run: Run) -> Experiment:
    """Return the experiment that trained a run, or raise a UserError if nothing says where it is."""
    if run.given_experiment is not None:
        return run.given_experiment
    if run.experiment in SHIPPED:
        return load_experiment(run.experiment)
    file = last_run(run.manifest).get("file", "")
    if not Path(file).is_file():
        raise UserError(
            f"the experiment {run.experiment} is not known here; allowed: load(folder, experiment)"
        )
    return load_experiment(load_sweep(file).experiment)


def load(folder: str | Path, experiment: Experiment | None = None) -> Run:
    """Open a run folder, or raise a StoreError; `experiment` is that of its trials, if it is your own."""
    check_kind(Path(folder))
    run = Run(Path(folder))
    run.given_experiment = experiment
    return run


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
    return load(folder, load_experiment(experiment))


def use_all_cores() -> None:
    """Make every CPU core a jax device and keep compiled programs between runs; call it before jax starts."""
    from topicjax.engine.resources import use_all_cores

    use_all_cores()
