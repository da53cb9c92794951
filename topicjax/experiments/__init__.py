"""Shipped experiments by name; load one by its name, or pass one through."""

import pkgutil
from importlib import import_module
from typing import Any

from topicjax.errors import UserError, shown, unknown_name
from topicjax.experiments.contract import Experiment
from topicjax.trial import TrialSettings

SHIPPED = {  # every package here with settings.TRIALS and experiment.EXPERIMENT: all but `shared`
    found.name: f"{__name__}.{found.name}"
    for found in pkgutil.iter_modules(__path__)
    if found.ispkg and found.name != "shared"
}


def trial_settings(experiment: Any) -> TrialSettings:
    """Look up the settings of an experiment, given by itself or by name; a shipped one is not imported."""
    if isinstance(experiment, Experiment):
        return experiment.settings
    return import_module(f"{package_of(experiment)}.settings").TRIALS


def load_experiment(experiment: str | Experiment) -> Experiment:
    """Load an experiment by name; pass an Experiment through."""
    if isinstance(experiment, Experiment):
        return experiment
    return import_module(f"{package_of(experiment)}.experiment").EXPERIMENT


def package_of(name: Any) -> str:
    """Find the package of a shipped experiment, or raise a UserError that lists them."""
    if not isinstance(name, str):
        raise UserError(
            f"EXPERIMENT is {shown(name)}; allowed: an Experiment, or one of {', '.join(SHIPPED)}"
        )
    if name not in SHIPPED:
        raise UserError(unknown_name("experiment", name, SHIPPED))
    return SHIPPED[name]
