"""Sweep files: the shipped ones in sweeps/, and a user's own."""

import inspect
import runpy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from topicjax.errors import UserError
from topicjax.settings import unknown_name
from topicjax.sweep import Settings, Sweep, checked


@dataclass(frozen=True)
class NamedSweep:
    """A sweep file: its name, its docstring, the settings all its trials share, and its sweep."""

    name: str
    description: str
    base: Settings
    sweep: Sweep


def shipped_folder() -> Path:
    """Return the folder of the shipped sweeps: sweeps/ of a checkout, topicjax/sweeps when installed."""
    return Path(str(files("topicjax.sweeps")))


def sweep_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    return sorted(path.stem for path in shipped_folder().glob("*.py") if not path.stem.startswith("_"))


def load_sweep(name: str) -> NamedSweep:
    """Return the sweep of sweeps/NAME.py, or of the file at a path that ends in .py."""
    path = Path(name) if name.endswith(".py") else shipped_folder() / f"{name}.py"
    if not path.is_file():
        unknown = unknown_name("sweep", name, sweep_names())
        raise UserError(f"{unknown}, or the path of a file that ends in .py")
    try:
        found = runpy.run_path(str(path))
        base = checked(found.get("BASE", {}))
    except UserError as error:
        raise UserError(f"sweep file {path} fails: {error}") from error
    except Exception as error:
        raise UserError(f"sweep file {path} fails: {type(error).__name__}: {error}") from error
    if not isinstance(sweep := found.get("SWEEP"), Sweep):
        raise UserError(f"sweep file {path} has no SWEEP; allowed: SWEEP = product(...)")
    return NamedSweep(path.stem, inspect.cleandoc(found["__doc__"] or ""), base, sweep)
