"""Sweep files: the shipped ones in sweeps/, and a user's own."""

import inspect
import os
import runpy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from topicjax.errors import UserError, shown, unknown_name
from topicjax.experiments import Experiment, trial_settings
from topicjax.sweep import Settings, Sweep, bind
from topicjax.sweep.refine import Refinement
from topicjax.trial import TrialSettings

DEFAULT = "one_layer"  # the experiment of a file that names none
MOST_SAID = 300  # characters of an exception in a message


@dataclass(frozen=True)
class NamedSweep:
    """A sweep file: its name, its docstring, its experiment, what all its trials share, and its sweep."""

    name: str
    description: str
    experiment: str | Experiment  # the name of a shipped one, or the user's own
    base: Settings
    sweep: Sweep
    refinement: Refinement | None = None  # of the boundaries that its cells show
    file: str = ""  # the path of a user's own file

    @property
    def settings(self) -> TrialSettings:
        """The settings of the experiment's trials."""
        return trial_settings(self.experiment)


def shipped_folder() -> Path:
    """Return the folder of the shipped sweeps: sweeps/ of a checkout, topicjax/sweeps when installed."""
    return Path(str(files("topicjax.sweeps")))


def sweep_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    return sorted(path.stem for path in shipped_folder().glob("*.py") if not path.stem.startswith("_"))


def load_sweep(name: str) -> NamedSweep:
    """Return the sweep of sweeps/NAME.py, or of the file at a path that ends in .py."""
    path = Path(name) if name.endswith(".py") else shipped_folder() / f"{name}.py"
    if not os.path.isfile(path):
        unknown = unknown_name("sweep", name, sweep_names())
        raise UserError(f"{unknown}, or the path of a file that ends in .py")
    found = run_file(path)
    try:
        description, experiment = found.get("__doc__") or "", found.get("EXPERIMENT", DEFAULT)
        if not isinstance(description, str):
            raise UserError(f"its docstring is {shown(description)}; allowed: a text")
        description.encode()  # what files and terminals can take
        if not isinstance(sweep := found.get("SWEEP"), Sweep):
            raise UserError("it has no SWEEP; allowed: SWEEP = product(...)")
        settings = trial_settings(experiment)
        base, sweep = settings.converted(found.get("BASE", {})), bind(settings, sweep)
        refinement = read_refinement(found.get("REFINE"))
    except UserError as error:
        raise UserError(f"sweep file {path} fails: {error}") from error
    except UnicodeEncodeError:
        raise UserError(f"sweep file {path} fails: its docstring is not valid Unicode") from None
    file = str(path.resolve()) if name.endswith(".py") else ""
    return NamedSweep(path.stem, inspect.cleandoc(description), experiment, base, sweep, refinement, file)


def read_refinement(given: Any) -> Refinement | None:
    """Return the refinement that a sweep file asks for, if it does."""
    if given is None:
        return None
    if not isinstance(given, dict) or not {"axes"} <= given.keys() <= {"axes", "levels", "budget"}:
        raise UserError(f"its REFINE is {shown(given)}; allowed: dict(axes=('learning_rate', ...), levels=2)")
    axes, levels, budget = given["axes"], given.get("levels", 2), given.get("budget")
    if not isinstance(levels, int) or not isinstance(budget, int | None):
        raise UserError(f"its REFINE is {shown(given)}; allowed: whole numbers of levels and budget")
    return Refinement((axes,) if isinstance(axes, str) else tuple(axes), levels, budget=budget)


def run_file(path: Path) -> dict[str, Any]:
    """Return what a Python file defines; whatever it raises, except Ctrl-C, becomes a UserError."""
    try:
        return runpy.run_path(str(path))
    except KeyboardInterrupt:
        raise
    except UserError as error:
        raise UserError(f"sweep file {path} fails: {error}") from error
    except SystemExit:
        raise UserError(f"sweep file {path} fails: it calls sys.exit; allowed: a BASE and a SWEEP") from None
    except BaseException as error:
        said = str(error).strip().partition("\n")[0][:MOST_SAID]
        raise UserError(f"sweep file {path} fails: {type(error).__name__}: {said}") from error
