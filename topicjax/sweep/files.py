"""Sweep files: the shipped ones in sweeps/, and a user's own files."""

import inspect
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from topicjax.errors import UserError, shown, unknown_name
from topicjax.experiments import SHIPPED, Experiment, trial_settings
from topicjax.sweep import Settings, Sweep, bind
from topicjax.sweep.refine import Refinement
from topicjax.trial import TrialSettings

MOST_SAID = 300  # characters of an exception in a message


@dataclass(frozen=True)
class NamedSweep:
    """A sweep file: its name, docstring, experiment, the settings that its trials share, and its sweep."""

    name: str
    description: str
    experiment: str | Experiment  # the name of a shipped one, or an Experiment
    base: Settings
    sweep: Sweep
    refinement: Refinement | None = None  # how to refine the boundaries between its cells
    claims: tuple[str, ...] = ()  # names of the claims that it is about: the report opens with them
    snapshots: str = ""  # steps whose weights are kept, unless --snapshots says otherwise; "": the default
    overrides: tuple[str, ...] = ()  # changes to the file, as they were typed
    file: str = ""  # the path of a user's own file

    @property
    def settings(self) -> TrialSettings:
        """The settings of the experiment's trials."""
        return trial_settings(self.experiment)


def shipped_folder() -> Path:
    """Locate the shipped sweeps: sweeps/ of a checkout, topicjax/sweeps when installed."""
    return Path(str(files("topicjax.sweeps")))


def sweep_names() -> list[str]:
    """List the names of the shipped sweeps."""
    return sorted(path.stem for path in shipped_folder().glob("*.py") if not path.stem.startswith("_"))


def load_sweep(name: str) -> NamedSweep:
    """Load the sweep of sweeps/NAME.py, or of the file at a path that ends in .py."""
    path = Path(name) if name.endswith(".py") else shipped_folder() / f"{name}.py"
    if name.endswith(".py") and not os.path.isfile(path):
        listed = ", ".join(sweep_names())
        raise UserError(f"there is no file {shown(name)}; allowed: a sweep file, or one of {listed}")
    if not os.path.isfile(path):
        unknown = unknown_name("sweep", name, sweep_names())
        raise UserError(f"{unknown}, or the path of a file that ends in .py")
    if name.endswith(".py") and (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE` does: it can import modules beside it
    found = run_file(path)
    try:
        description, experiment = found.get("__doc__") or "", found.get("EXPERIMENT")
        if not isinstance(description, str):
            raise UserError(f"its docstring is {shown(description)}; allowed: a text")
        description.encode()  # raises if files and terminals cannot encode it
        if not isinstance(sweep := found.get("SWEEP"), Sweep):
            raise UserError("it has no SWEEP; allowed: SWEEP = product(...)")
        if experiment is None:
            raise UserError(
                f"it has no EXPERIMENT; allowed: EXPERIMENT = an Experiment, or {names_of_shipped()}"
            )
        settings = trial_settings(experiment)
        base, sweep = settings.converted(found.get("BASE", {})), bind(settings, sweep)
        refinement = read_refinement(found.get("REFINE"))
        claims = read_claims(found.get("CLAIMS", ()))
        snapshots = read_snapshots(found.get("SNAPSHOTS", ""))
    except UserError as error:
        raise UserError(f"sweep file {path} fails: {error}") from error
    except UnicodeEncodeError:
        raise UserError(f"sweep file {path} fails: its docstring is not valid Unicode") from None
    file = str(path.resolve()) if name.endswith(".py") else ""
    text = inspect.cleandoc(description)
    return NamedSweep(path.stem, text, experiment, base, sweep, refinement, claims, snapshots, file=file)


def names_of_shipped() -> str:
    """List the names of the shipped experiments, as a sweep file writes them."""
    return " or ".join(f'"{name}"' for name in SHIPPED)


def read_refinement(given: Any) -> Refinement | None:
    """Read the REFINE of a sweep file, if it has one."""
    if given is None:
        return None
    if not isinstance(given, dict) or not {"axes"} <= given.keys() <= {"axes", "levels", "budget"}:
        raise UserError(f"its REFINE is {shown(given)}; allowed: dict(axes=('learning_rate', ...), levels=2)")
    axes, levels, budget = given["axes"], given.get("levels", 2), given.get("budget")
    if not isinstance(levels, int) or not isinstance(budget, int | None):
        raise UserError(f"its REFINE is {shown(given)}; allowed: whole numbers of levels and budget")
    return Refinement((axes,) if isinstance(axes, str) else tuple(axes), levels, budget=budget)


def read_snapshots(given: Any) -> str:
    """Read the SNAPSHOTS of a sweep file; its steps are checked with those of the trials."""
    if not isinstance(given, str):
        raise UserError(f"its SNAPSHOTS is {shown(given)}; allowed: a text, as SNAPSHOTS = 'log:12'")
    return given


def read_claims(given: Any) -> tuple[str, ...]:
    """Read the CLAIMS of a sweep file; the page of its experiment says which names there are."""
    is_list = isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)
    if not is_list or len({*given}) < len(given):
        raise UserError(f"its CLAIMS is {shown(given)}; allowed: names of claims, as CLAIMS = ('Theorem 3',)")
    return tuple(given)


def run_file(path: Path, what: str = "sweep file") -> dict[str, Any]:
    """Run a Python file and return what it defines; any exception except Ctrl-C becomes a UserError."""
    try:
        return runpy.run_path(str(path))
    except KeyboardInterrupt:
        raise
    except UserError as error:
        raise UserError(f"{what} {path} fails: {error}") from error
    except SystemExit:
        raise UserError(f"{what} {path} fails: it calls sys.exit; allowed: definitions only") from None
    except BaseException as error:
        raise UserError(failure_sentence(error, path, failing_line(error, path), what)) from error


def failure_sentence(error: BaseException, path: Path, place: str, what: str = "sweep file") -> str:
    """Word the message for an exception in a user's code."""
    said = error.msg if isinstance(error, SyntaxError) else str(error).strip().partition("\n")[0]
    return f"{what} {path} fails: {type(error).__name__}: {said[:MOST_SAID]} ({place or 'unknown line'})"


def failing_line(error: BaseException, path: Path | None, experiment: Any = None) -> str:
    """Locate where a user's code raised an exception, as `mine.py, line 12, in update`; empty if it did not.

    User code is the sweep file, and the files that define the functions of its experiment.
    """
    members = vars(experiment).values() if isinstance(experiment, Experiment) else ()
    functions = [inspect.unwrap(getattr(member, "func", member)) for member in members if callable(member)]
    codes = {getattr(function, "__code__", None): function for function in functions}
    files = {code.co_filename for code in codes if code is not None}
    raised: BaseException | None = error
    while raised is not None:
        if isinstance(raised, SyntaxError) and raised.filename == str(path):
            return f"{path}, line {raised.lineno}"
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(raised.__traceback__)]
        mine = [each for each in frames if each[0].co_filename == str(path)]
        for code, line in (mine or [each for each in frames if each[0].co_filename in files])[-1:]:
            inside = "" if code.co_name == "<module>" else f", in {code.co_name}"
            return f"{code.co_filename}, line {line}{inside}"
        raised = raised.__cause__ or raised.__context__
    for code, function in codes.items():
        # A call with the wrong arguments is raised in the caller, not in the function.
        if code and isinstance(error, TypeError) and str(error).startswith(f"{function.__qualname__}() "):
            return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"
    return ""
