"""The experiments that topicjax ships, by name, and how one is loaded: itself, or by its name."""

import pkgutil
from importlib import import_module
from typing import Any

from topicjax.errors import UserError, shown, unknown_name
from topicjax.experiments.contract import Experiment
from topicjax.trial import TrialSettings

SHIPPED = {  # every package here with settings.TRIALS and experiment.EXPERIMENT: all but what they share
    found.name: f"{__name__}.{found.name}"
    for found in pkgutil.iter_modules(__path__)
    if found.ispkg and found.name != "shared"
}


def trial_settings(experiment: Any) -> TrialSettings:
    """Return the settings of an experiment, given itself or its name; a shipped one is not imported."""
    if isinstance(experiment, Experiment):
        return experiment.settings
    return import_module(f"{package_of(experiment)}.settings").TRIALS


def load_experiment(experiment: str | Experiment) -> Experiment:
    """Return the experiment, given itself or its name."""
    if isinstance(experiment, Experiment):
        return experiment
    return import_module(f"{package_of(experiment)}.experiment").EXPERIMENT


def package_of(name: Any) -> str:
    """Return the package of a shipped experiment, or raise a UserError that lists them."""
    if not isinstance(name, str):
        raise UserError(
            f"EXPERIMENT is {shown(name)}; allowed: an Experiment, or one of {', '.join(SHIPPED)}"
        )
    if name not in SHIPPED:
        raise UserError(unknown_name("experiment", name, SHIPPED))
    return SHIPPED[name]
