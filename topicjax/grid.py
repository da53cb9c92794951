"""Sweeps as data: an algebra of axes, its overrides on the command line, and the way to trials.

A sweep is an ordered sequence of partial settings.  What it leaves open comes from the base
settings of its file, then from the defaults; equal trials are one, where they first appear.
"""

import contextlib
import functools
import inspect
import itertools
import math
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topicjax import config

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"
MAX_VALUES = 1_000_000  # of one axis: a typing error must not fill the memory
Settings = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """Partial settings in order; made by product and zipped, joined by chain, where and *."""

    settings: tuple[Settings, ...]

    @property
    def _names(self) -> set[str]:
        return set().union(*self.settings)

    def __post_init__(self) -> None:
        for name in self._names - set(config.IDENTITY):
            raise ValueError(config.unknown_name("setting", name, config.IDENTITY))

    def __len__(self) -> int:
        return len(self.settings)

    def __iter__(self) -> Iterator[Settings]:
        return (dict(row) for row in self.settings)

    def __mul__(self, other: "Sweep") -> "Sweep":
        """Return every settings of self with every settings of other, which varies faster."""
        if both := ", ".join(sorted(self._names & other._names)):
            raise ValueError(f"both sides of * set {both}; allowed: each setting on one side only")
        return Sweep(tuple(a | b for a, b in itertools.product(self.settings, other.settings)))


@dataclass(frozen=True)
class NamedSweep:
    """A sweep file: its name, its docstring, the settings all its trials share, and its sweep."""

    name: str
    description: str
    base: Settings
    sweep: Sweep


def product(**axes: Any) -> Sweep:
    """Return all combinations of the axes' values; the last axis varies fastest."""
    columns = [_values(name, values) for name, values in axes.items()]
    return Sweep(tuple(dict(zip(axes, row, strict=True)) for row in itertools.product(*columns)))


def zipped(**axes: Any) -> Sweep:
    """Return the axes' values paired by position; a single value goes with every position."""
    columns = {name: _values(name, values) for name, values in axes.items()}
    lengths = {name: len(columns[name]) for name in axes if np.ndim(axes[name]) > 0}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"zipped axes differ in length: {found}; allowed: equal lengths")
    rows = range(max(lengths.values(), default=1))
    return Sweep(tuple({n: c[i % len(c)] for n, c in columns.items()} for i in rows))


def chain(*sweeps: Sweep) -> Sweep:
    """Return the settings of the first sweep, then those of the second, and so on."""
    return Sweep(tuple(row for sweep in sweeps for row in sweep.settings))


def where(sweep: Sweep, predicate: Callable[[Settings], object]) -> Sweep:
    """Return the settings the predicate accepts; it sees them over the defaults (not the base)."""
    return Sweep(tuple(row for row in sweep if predicate(_Complete(config.DEFAULTS, **row))))


def logspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Return n values of equal ratio: the exact ends (n = 1: lo), 6 significant digits between."""
    if not 1 <= n <= MAX_VALUES or not all(0 < end < math.inf for end in (lo, hi)):
        raise ValueError(f"logspace has {lo}, {hi}, {n}; allowed: above 0, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.6g}") for value in np.geomspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def linspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Return n values of equal distance: the exact ends (n = 1: lo), 12 digits between."""
    if not 1 <= n <= MAX_VALUES or not (math.isfinite(lo) and math.isfinite(hi)):
        raise ValueError(f"linspace has {lo}, {hi}, {n}; allowed: finite, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.12g}") for value in np.linspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def trials(base: Mapping[str, Any], sweep: Sweep) -> list[config.Trial]:
    """Return the distinct, validated trials of the sweep over the base, in order."""
    base = _checked(base)
    rows = _distinct(base, sweep.settings)
    if not rows:
        raise ValueError("the sweep has no trials; allowed: one or more (see its where and chain)")
    spec, stream, hypers = (_maker(k, base) for k in (config.Spec, config.Stream, config.Hypers))
    made = []
    for row in rows:
        try:
            trial = config.Trial(spec(row), stream(row), hypers(row))
            config.validate(trial)
        except ValueError as error:
            which = ", ".join(f"{name}={value}" for name, value in row.items())
            raise ValueError(f"{error} (in the trial with {which or 'the base alone'})") from None
        made.append(trial)
    return made


def axes_of(base: Mapping[str, Any], sweep: Sweep) -> dict[str, list[Any]]:
    """Return the distinct values, in order, of each setting that differs between the trials."""
    default, rows = config.DEFAULTS | _checked(base), sweep.settings
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    columns = {n: list(dict.fromkeys(row.get(n, default[n]) for row in rows)) for n in names}
    return {name: values for name, values in columns.items() if len(values) > 1}


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value that name=value means."""
    name, value = _split(text)
    return name, _parse_value(name, value)


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the values that name=v1,v2 or name=log:lo:hi:n and the like mean."""
    name, values = _split(text)
    if ":" not in values:
        return name, tuple(_parse_value(name, value) for value in values.split(","))
    kind, *ends = values.split(":")
    spacings: dict[str, Callable[..., Any]] = dict(log=logspace, lin=linspace, range=range)
    types = (int, int) if kind == "range" else (float, float, int)
    try:
        points = spacings[kind](*(read(end) for read, end in zip(types, ends, strict=True)))
    except (ValueError, KeyError):
        forms = "v1,v2 or log:lo:hi:n (lo and hi above 0) or lin:lo:hi:n or range:lo:hi"
        raise ValueError(f"axis {text!r} cannot be read; allowed after =: {forms}") from None
    return name, _values(name, points)


def override(
    base: Mapping[str, Any], sweep: Sweep, sets: Iterable[str], axes: Iterable[str]
) -> tuple[Settings, Sweep]:
    """Return both with settings fixed, axes replaced or added (fastest); where is not rerun."""
    fixed = [parse_setting(text) for text in sets]
    added = [parse_axis(text) for text in axes]
    names = [name for name, _ in fixed + added]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{repeated[0]} is given twice; allowed: once, as a setting or as an axis")
    base = _checked(base) | dict(fixed)
    rest = ({n: v for n, v in row.items() if n not in names} for row in sweep.settings)
    return base, Sweep(_distinct(base, rest)) * product(**dict(added))


def sweep_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    return sorted(path.stem for path in SWEEPS.glob("*.py") if not path.stem.startswith("_"))


def load_sweep(name: str) -> NamedSweep:
    """Return the sweep of sweeps/NAME.py, or of the file at a path that ends in .py."""
    path = Path(name) if name.endswith(".py") else SWEEPS / f"{name}.py"
    if not path.is_file():
        unknown = config.unknown_name("sweep", name, sweep_names())
        raise ValueError(f"{unknown}, or the path of a file that ends in .py")
    try:
        found = runpy.run_path(str(path))
        base = _checked(found.get("BASE", {}))
    except Exception as error:
        raise ValueError(f"sweep file {path} fails: {type(error).__name__}: {error}") from error
    if not isinstance(sweep := found.get("SWEEP"), Sweep):
        raise ValueError(f"sweep file {path} has no SWEEP; allowed: SWEEP = product(...)")
    return NamedSweep(path.stem, inspect.cleandoc(found["__doc__"] or ""), base, sweep)


class _Complete(dict[str, Any]):  # the settings that a predicate sees
    def __missing__(self, name: str) -> Any:
        raise ValueError(config.unknown_name("setting", name, config.IDENTITY))


def _checked(base: Mapping[str, Any]) -> Settings:
    if not isinstance(base, Mapping):
        raise ValueError(f"the base is {base!r}; allowed: a dict of settings")
    return {name: config.coerce(name, value) for name, value in base.items()}


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an axis, or the single value, in the type of the setting."""
    values = values.tolist() if hasattr(values, "tolist") else values
    column = values if isinstance(values, list | tuple | range) else (values,)
    if not column or column[MAX_VALUES:]:
        raise ValueError(f"axis {name} has no values or too many; allowed: 1 to {MAX_VALUES}")
    return tuple(config.coerce(name, value) for value in column)


def _distinct(base: Settings, rows: Iterable[Settings]) -> tuple[Settings, ...]:
    """Return the first settings of each distinct trial; a trial is how it differs from the base."""
    default = config.DEFAULTS | base
    first: dict[frozenset[Any], Settings] = {}
    for row in rows:
        changed = frozenset(item for item in row.items() if default[item[0]] != item[1])
        first.setdefault(changed, row)
    return tuple(first.values())


def _maker(kind: Callable[..., Any], base: Settings) -> Callable[[Settings], Any]:
    """Return the function from settings to Spec, Stream or Hypers; equal parts are one object."""
    names = frozenset(inspect.signature(kind).parameters)
    fixed = {name: value for name, value in base.items() if name in names}

    @functools.cache
    def make(part: tuple[tuple[str, Any], ...]) -> Any:
        return kind(**fixed | _checked(dict(part)))

    return lambda row: make(tuple(item for item in row.items() if item[0] in names))


def _split(text: str) -> tuple[str, str]:
    """Return the known name before the first = and the text after it."""
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in config.IDENTITY:
        raise ValueError(config.unknown_name("setting", name, config.IDENTITY))
    return name, value


def _parse_value(name: str, text: str) -> Any:
    """Return the value a text means in the type of the setting."""
    value: Any = text.strip()
    if config.TYPES[name] is bool:
        value = {"true": True, "false": False}.get(value.lower(), value)
    elif config.TYPES[name] in (int, float):
        with contextlib.suppress(ValueError):
            value = float(value)
    return config.coerce(name, value)
