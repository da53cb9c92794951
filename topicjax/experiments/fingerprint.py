"""Fingerprint of the code that an experiment's results depend on, part by part.

A folder never mixes results of different code silently: each run records the fingerprint of its experiment,
and a later run compares.  An experiment may declare a `version` instead; it then says itself when its results
change.  Docstrings, comments, formatting and what describes a sweep or a page do not count: in a user's file
SWEEP, `report`, and what only `report` uses.
"""

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from topicjax.experiments.contract import Experiment

Fingerprint = dict[str, str]  # a hash by part: a definition of a user's file, or a module
PACKAGE = Path(__file__).resolve().parents[1]
RESULTS = ("experiments/shared", "theory")  # folders that every shipped experiment depends on
FOR_MEASURES = ("loss", "trained")  # fields of an Experiment that change no training
NOT_RESULTS = {
    "BASE",
    "SWEEP",
    "REFINE",
    "SNAPSHOTS",
    "report",
}  # names of a user's file that change no result
DIGITS = 8


def fingerprint(experiment: Experiment) -> Fingerprint:
    """Hash the code of an experiment: its version, its slice, or the user's files that define it."""
    if experiment.version is not None:
        return {"version": str(experiment.version)}
    found = [function for function in functions_of(experiment) if hasattr(function, "__code__")]
    files = {Path(function.__code__.co_filename).resolve() for function in found}
    slices = {path.parent for path in files if path.is_relative_to(PACKAGE / "experiments")}
    own = slices - {PACKAGE / "experiments"}  # one_shot.py is there: it is not the user's code
    if own and all(path.is_relative_to(PACKAGE) for path in files):
        folders = [*sorted(own), *(PACKAGE / name for name in RESULTS)]
        modules = sorted({path for folder in folders for path in folder.glob("*.py")})
        return {str(path.relative_to(PACKAGE)): digest(plain_code(path.read_text())) for path in modules}
    return users_code(found)


def measure_code(function: Callable[..., Any], experiment: Experiment) -> Fingerprint:
    """Hash the code of a measure, and of the experiment that gives it data and a loss.

    The experiment counts as one part: if it changes, so may everything that is measured with it.
    """
    found = [own for own in with_closures([function]) if hasattr(own, "__code__")]
    code = users_code(found)
    named = [own for each in found for own in getattr(each, "__globals__", {}).values()]
    if any(str(getattr(own, "__module__", "")).startswith("topicjax.measures") for own in (*found, *named)):
        modules = sorted((PACKAGE / "measures").glob("*.py"))
        code |= {str(path.relative_to(PACKAGE)): digest(plain_code(path.read_text())) for path in modules}
    own = fingerprint(experiment) | users_code(
        [each for each in with_closures([experiment.loss, experiment.trained]) if hasattr(each, "__code__")]
    )
    return code | {f"experiment {experiment.name}": digest(repr(sorted(own.items())))}


def users_code(found: Iterable[Any]) -> Fingerprint:
    """Hash the user's own code that these functions are from: their files, or what was compiled."""
    found = list(found)
    files = {Path(function.__code__.co_filename).resolve() for function in found}
    parts: Fingerprint = {}
    for path in sorted(path for path in files if path.is_file() and is_users(path)):
        parts |= parts_of(path)
    for function in found:
        path = Path(function.__code__.co_filename)
        if not path.is_file():  # a cell of a notebook, or exec: what was compiled
            parts[function.__qualname__] = digest(compiled(function.__code__))
    return parts


def changed_parts(before: Fingerprint, after: Fingerprint) -> list[str]:
    """List the parts that differ between two fingerprints."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def functions_of(experiment: Experiment) -> Iterator[Any]:
    """Yield the functions that training depends on, with those that they close over."""
    kept = vars(experiment).items()
    yield from with_closures(own for name, own in kept if name not in (*NOT_RESULTS, *FOR_MEASURES))


def with_closures(members: Iterable[Any]) -> Iterator[Any]:
    """Yield those of these that are functions, and the functions that they close over."""
    waiting = list(members)
    seen: set[int] = set()
    while waiting:
        member = waiting.pop()
        if not callable(member) or id(member) in seen:
            continue
        seen.add(id(member))
        function = inspect.unwrap(getattr(member, "func", member))
        yield function
        waiting += [*getattr(member, "args", ()), *(getattr(member, "keywords", None) or {}).values()]
        for cell in getattr(function, "__closure__", None) or ():
            try:
                waiting.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue


def parts_of(path: Path, seen: frozenset[Path] = frozenset()) -> Fingerprint:
    """Hash each definition of a user's file, and of the user's own modules that it imports."""
    parts: Fingerprint = {}
    body = ast.parse(path.read_text()).body
    left_out = NOT_RESULTS if seen else NOT_RESULTS | only_for_report(body)
    for node in body:
        names = defined_names(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for other in imported_files(node, path):
                if other not in seen | {path}:
                    own = parts_of(other, seen | {path})
                    parts |= {f"{other.stem}.{name}": value for name, value in own.items()}
        elif names and not left_out & {*names}:
            parts[", ".join(names)] = digest(plain_code(ast.unparse(node)))
    return parts


def only_for_report(body: list[ast.stmt]) -> set[str]:
    """Find the definitions that `report` uses, itself or through others, and nothing else does."""
    uses: dict[str, set[str]] = {}
    for node in body:
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        for name in defined_names(node):
            uses[name] = uses.get(name, set()) | used

    def reached(names: set[str]) -> set[str]:
        found, waiting = set(names), [*names]
        while waiting:
            new = uses[waiting.pop()] & uses.keys() - found - NOT_RESULTS
            found |= new
            waiting += new
        return found

    of_report = reached({"report"} & uses.keys())
    return of_report - reached(uses.keys() - of_report - NOT_RESULTS)


def defined_names(node: ast.stmt) -> list[str]:
    """List the names that a statement of a module defines; "..." for any other statement but a docstring."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [
        each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)
    ]
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return names or ([] if is_text else ["..."])


def imported_files(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[Path]:
    """Yield the files beside a user's file that a statement imports."""
    bases = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        bases = [node.module] if node.module else bases
    for name in bases:
        found = path.parent / f"{name.replace('.', '/')}.py"
        if found.is_file():
            yield found.resolve()


def is_users(path: Path) -> bool:
    """Return whether a file is the user's own: neither topicjax nor an installed package."""
    installed = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")]
    return not any(path.is_relative_to(Path(folder).resolve()) for folder in (*installed, PACKAGE))


def plain_code(source: str) -> str:
    """Normalise source code: no comments, docstrings or formatting."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[0] = ast.Pass()
    return ast.dump(tree)


def compiled(code: CodeType) -> str:
    """Describe a compiled function: its instructions, names and constants, inner functions included."""
    constants = [compiled(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr((sys.version_info[:2], code.co_code, code.co_names, constants))


def digest(text: str) -> str:
    """Hash a text to a few hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
