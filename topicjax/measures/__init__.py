"""Measures: functions of a Snapshot, applied after training: shipped ones, and functions of a user."""

import inspect
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown, unknown_name
from topicjax.store.measured import NAME
from topicjax.sweep.files import run_file

SHIPPED = {  # by name: the module
    "participation": "weights",
    "sharpness": "curvature",
    "learning_coefficient": "learning_coefficient",
}
FUNCTION = "measure"  # in a user's file, unless a name is typed


class Measure(NamedTuple):
    """A function of a Snapshot, its name, and the user's file that it is from, if any."""

    name: str
    function: Callable[[Any], Any]
    file: str = ""


def load_measure(what: str | Callable[[Any], Any]) -> Measure:
    """Load a measure by its name or from FILE[:NAME], or wrap a function of Python."""
    if not isinstance(what, str):
        if not inspect.isfunction(what):  # a change of what a partial or an object holds would go unnoticed
            known = ", ".join(SHIPPED)
            raise UserError(
                f"the measure is {shown(what)}; allowed: a function made with def, or one of {known}"
            )
        return named(Measure(what.__name__, what))
    if what in SHIPPED:
        return Measure(what, getattr(import_module(f"{__name__}.{SHIPPED[what]}"), what))
    file, colon, name = what.rpartition(":") if not what.endswith(".py") else (what, "", FUNCTION)
    if not file.endswith(".py"):
        raise UserError(f"{unknown_name('measure', what, SHIPPED)}, or a function of a file, FILE.py[:NAME]")
    if not os.path.isfile(file):
        raise UserError(f"there is no file {shown(file)}; allowed: FILE.py[:NAME], or {', '.join(SHIPPED)}")
    found = run_file(Path(file), "file")
    functions = [
        key for key, own in found.items() if inspect.isfunction(own) and own.__module__ == "<run_path>"
    ]
    if not callable(found.get(name)):
        raise UserError(f"in {file}: {unknown_name('function', name, functions)}; as {file}:NAME")
    return named(Measure(name if colon else Path(file).stem, found[name], str(Path(file).resolve())))


def named(measure: Measure) -> Measure:
    """Return the measure if its name can name a folder, or raise a UserError."""
    if not NAME.fullmatch(measure.name):
        raise UserError(
            f"the measure is named {shown(measure.name)}; allowed: a function with a name of letters, digits "
            "and _, not a lambda"
        )
    if measure.name in SHIPPED and measure.function != load_measure(measure.name).function:
        raise UserError(f"the measure is named {measure.name}, as a shipped one is; allowed: another name")
    return measure
