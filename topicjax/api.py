"""Python interface: train an experiment over a sweep, open a run folder, inspect one trial."""

from collections.abc import Callable, Mapping, Sequence
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
    """The finished trials of a run folder, and their experiment if it was passed to `load`."""

    given_experiment: Experiment | None = None

    def trial(self, trial_id: str) -> "FinishedTrial":
        """Look up one trial; an unambiguous prefix of its id is enough."""
        return FinishedTrial(self, self.find(trial_id))

    def measure(
        self,
        measure: str | Callable[[Any], Mapping[str, Any]],
        *,
        trials: Sequence[str] | None = None,
        steps: Sequence[int] | None = None,
        again: bool = False,
        devices: int | Sequence[Any] | None = None,
    ) -> pd.DataFrame:
        """Apply a function of a Snapshot to the run's snapshots; return its table, one row each.

        `measure` is a function, `FILE.py:NAME`, or the name of a shipped one (page measuring of the
        documentation); `trials` are ids or their beginnings, `steps` those of snapshots (default: all).  Only
        what is missing is computed: the same call goes on after an interrupt.  `again` sets aside what this
        measure has written and measures anew.  The columns are then in `trials` (final_*) and `trajectories`
        too.
        """
        from topicjax.engine.measuring import measure_run
        from topicjax.engine.resources import available_devices, choose_devices
        from topicjax.measures import load_measure

        loaded, experiment = load_measure(measure), experiment_of(self)
        if isinstance(devices, int | None):
            devices = choose_devices(available_devices(), devices, None)
        ids = None if trials is None else {self.find(own) for own in trials}
        outcome = measure_run(self.folder, experiment, loaded, ids, steps, again, devices)
        for name in ("_journal", "measured", "trials", "trajectories", "setting_names"):
            vars(self).pop(name, None)
        if outcome.left:
            raise KeyboardInterrupt(f"{outcome.left} snapshots are left; the same call continues")
        return self.measured[loaded.name]


class FinishedTrial:
    """One trial of a run: its settings, records and weights; `evaluate` measures it again."""

    def __init__(self, run: Run, trial_id: str) -> None:
        """Look up a trial of a run by its id."""
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
        records, _ = self.run.records_of([self.trial_id])
        return self.run.with_measured(records).reset_index(drop=True)

    @property
    def details(self) -> pd.DataFrame:
        """One row per record and index of its array columns."""
        return self.run.records_of([self.trial_id])[1].reset_index(drop=True)

    def weights(self, step: int | None = None) -> Any:
        """Restore the tree that the experiment's `weights` returned: the last snapshot, or that of `step`."""
        return self.run.restore(self.trial_id, step)

    def evaluate(self, experiment: Experiment | None = None) -> dict[str, np.ndarray]:
        """Measure the trial again at its last step: every column by name, rare ones included.

        Without `experiment`, use the one passed to `load`, the shipped one of that name, or the one of the
        run's sweep file.
        """
        from topicjax.engine.again import evaluate

        found = experiment or experiment_of(self.run)
        return evaluate(self.run, self.trial_id, found, self.settings, int(self.row["stopped_step"]))


def experiment_of(run: Run) -> Experiment:
    """Find the experiment that trained a run, or raise a UserError if it cannot be located."""
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
    """Open a run folder, or raise a StoreError; pass `experiment` if its trials used your own."""
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
    """Train those trials of a sweep that the folder does not hold yet; return the run.

    `experiment` is your own or the name of a shipped one; `base` holds the settings that all trials share.
    The options are those of `topicjax run`.  All jax devices are used unless `devices` is given (a number, or
    a list of devices).  On a machine without accelerators call `topicjax.use_all_cores()` first, before jax
    starts.  An interrupt (Ctrl-C, or a notebook's stop button) saves unfinished trials and raises
    KeyboardInterrupt; the same call resumes them.  If the workers of a `cluster` cannot train some trials, a
    RuntimeError is raised at the end.
    """
    chosen = make_options(options)
    from topicjax.engine.admission import fitted_to_folder
    from topicjax.engine.resources import open_resources
    from topicjax.engine.run import run_sweep

    folder, settings = Path(folder), trial_settings(experiment)
    base = settings.converted(base or {})
    named = NamedSweep(name or folder.name, "", experiment, base, bind(settings, sweep))
    with open_resources(chosen) as (chosen, resources):
        named = fitted_to_folder(named, folder)
        outcome = run_sweep(named, expand(settings, base, named.sweep), folder, chosen, resources)
    if outcome.failures:
        raise RuntimeError(f"{outcome.left} trials are left: {outcome.failures[0].reason}")
    if not outcome.is_whole:
        raise KeyboardInterrupt(f"{outcome.left} trials are left; the same call continues")
    return load(folder, load_experiment(experiment))


def use_all_cores() -> None:
    """Make every CPU core a jax device and cache compiled programs; call it before jax starts."""
    from topicjax.engine.resources import use_all_cores

    use_all_cores()
