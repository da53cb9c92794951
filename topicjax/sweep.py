"""Sweeps as data: an algebra of axes, and their expansion to trials.

A sweep is an ordered sequence of partial settings.  What it leaves open comes from the base settings of its
file, then from the defaults.  Equal trials are trained once and keep the place of the first.
"""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from topicjax.errors import UserError, shown, unknown_name
from topicjax.trial import DEFAULTS, SETTINGS, Hypers, Spec, Stream, Trial, convert, validate

MAX_VALUES = 100_000  # of one axis: a slip of the keyboard must not fill the memory
MAX_TRIALS = 1_000_000  # of a sweep: planning takes about 30 s and 1 GB for so many
PLAIN = (bool, int, float, str)
Settings = dict[str, Any]  # partial settings of a trial, by name


@dataclass(frozen=True)
class Sweep:
    """Partial settings in order: made by product and zipped, combined by chain, where and *."""

    settings: tuple[Settings, ...]

    @property
    def names(self) -> set[str]:
        """Return the names of all settings that the sweep sets."""
        return set().union(*self.settings)

    def __post_init__(self) -> None:
        check_count(len(self.settings))
        for settings in self.settings:
            if not isinstance(settings, dict):
                raise UserError(f"a sweep has {shown(settings)}; allowed: dicts of settings")
            for name, value in settings.items():
                if name not in SETTINGS or not isinstance(value, PLAIN):
                    convert(name, value)  # raises, unless it is a number of NumPy

    def __len__(self) -> int:
        return len(self.settings)

    def __iter__(self) -> Iterator[Settings]:
        return map(dict, self.settings)

    def __mul__(self, other: "Sweep") -> "Sweep":
        """Return all combinations of the settings of both sweeps; those of the right one vary faster."""
        if both := ", ".join(sorted(self.names & other.names)):
            raise UserError(f"both sides of * set {both}; allowed: each setting on one side only")
        check_count(len(self) * len(other))
        return Sweep(tuple(a | b for a, b in itertools.product(self.settings, other.settings)))


def product(**axes: Any) -> Sweep:
    """Return all combinations of the axes' values; the last axis varies fastest."""
    columns = [axis_values(name, values) for name, values in axes.items()]
    check_count(math.prod(map(len, columns)))
    return Sweep(tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*columns)))


def zipped(**axes: Any) -> Sweep:
    """Return the axes' values paired by position; a single value is repeated."""
    columns = {name: axis_values(name, values) for name, values in axes.items()}
    lengths = {name: len(columns[name]) for name in axes if np.ndim(axes[name]) > 0}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UserError(f"zipped axes differ in length: {found}; allowed: equal lengths")
    positions = range(max(lengths.values(), default=1))
    return Sweep(
        tuple({name: column[i % len(column)] for name, column in columns.items()} for i in positions)
    )


def chain(*sweeps: Sweep) -> Sweep:
    """Return the settings of the first sweep, then those of the second, and so on."""
    check_count(sum(map(len, sweeps)))
    return Sweep(tuple(settings for sweep in sweeps for settings in sweep.settings))


def where(sweep: Sweep, predicate: Callable[[Settings], object]) -> Sweep:
    """Return the settings that the predicate accepts; it sees defaults (not the base) for all others."""
    return Sweep(tuple(settings for settings in sweep if predicate(_Complete(DEFAULTS, **settings))))


def logspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Return n values of equal ratio: exact ends (n = 1: lo), rounded to 6 digits between them."""
    if not 1 <= n <= MAX_VALUES or not all(0 < end < math.inf for end in (lo, hi)):
        raise UserError(f"logspace has {lo}, {hi}, {n}; allowed: above 0, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.6g}") for value in np.geomspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def linspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Return n values of equal distance: exact ends (n = 1: lo), rounded to 12 digits between them."""
    if not 1 <= n <= MAX_VALUES or not (math.isfinite(lo) and math.isfinite(hi)):
        raise UserError(f"linspace has {lo}, {hi}, {n}; allowed: finite, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.12g}") for value in np.linspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def trials(base: Mapping[str, Any], sweep: Sweep) -> list[Trial]:
    """Return the distinct, validated trials of the sweep over the base, in order."""
    base = checked(base)
    kept = distinct(base, sweep.settings)
    if not kept:
        raise UserError("the sweep has no trials; allowed: one or more (see its where and chain)")
    spec, stream, hypers = (part_maker(part, base) for part in (Spec, Stream, Hypers))
    made = []
    for settings in kept:
        try:
            trial = Trial(spec(settings), stream(settings), hypers(settings))
            validate(trial)
        except UserError as error:
            which = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise UserError(f"{error} (in the trial with {which or 'the base alone'})") from None
        made.append(trial)
    return made


def axes_of(base: Mapping[str, Any], sweep: Sweep) -> dict[str, list[Any]]:
    """Return the distinct values, in order, of each setting that differs between the trials."""
    default = DEFAULTS | checked(base)
    columns = {
        name: list(dict.fromkeys(settings.get(name, default[name]) for settings in sweep.settings))
        for name in dict.fromkeys(itertools.chain.from_iterable(sweep.settings))
    }
    return {name: values for name, values in columns.items() if len(values) > 1}


class _Complete(dict[str, Any]):
    """The settings that a predicate of `where` sees."""

    def __missing__(self, name: str) -> Any:
        raise UserError(unknown_name("setting", name, SETTINGS))


def checked(base: Mapping[str, Any]) -> Settings:
    """Return the base with every value in the type of its setting."""
    if not isinstance(base, Mapping):
        raise UserError(f"the base is {shown(base)}; allowed: a dict of settings")
    return {name: convert(name, value) for name, value in base.items()}


def axis_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an axis, or the single value, in the type of the setting."""
    values = values.tolist() if hasattr(values, "tolist") else values
    column = values if isinstance(values, list | tuple | range) else (values,)
    if not column or column[MAX_VALUES:]:
        raise UserError(f"axis {name} has no values or too many; allowed: 1 to {MAX_VALUES}")
    return tuple(convert(name, value) for value in column)


def check_count(count: int) -> None:
    """Raise a UserError if a sweep of so many trials would be too large, before it is made."""
    if count > MAX_TRIALS:
        raise UserError(f"the sweep has {count:,} trials; allowed: up to {MAX_TRIALS:,}; shorten an axis")


def distinct(base: Settings, candidates: Iterable[Settings]) -> tuple[Settings, ...]:
    """Return the first settings of each distinct trial over the base."""
    default = DEFAULTS | base
    first: dict[frozenset[Any], Settings] = {}
    for settings in candidates:
        changed = frozenset(item for item in settings.items() if default[item[0]] != item[1])
        first.setdefault(changed, settings)
    return tuple(first.values())


def part_maker(part: Callable[..., Any], base: Settings) -> Callable[[Settings], Any]:
    """Return the function from settings to a Spec, Stream or Hypers; equal parts are one object."""
    names = frozenset(inspect.signature(part).parameters)
    fixed = {name: value for name, value in base.items() if name in names}

    @functools.cache
    def make(items: tuple[tuple[str, Any], ...]) -> Any:
        return part(**fixed | checked(dict(items)))

    return lambda settings: make(tuple(item for item in settings.items() if item[0] in names))
