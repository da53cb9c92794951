"""Sweeps as data: an algebra of axes, and its expansion to trials.

A sweep is an ordered sequence of partial settings of any experiment.  Missing settings come from the base
settings of its file, then from the experiment's defaults.  Equal trials are trained once, at the position of
the first.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topicjax.errors import UserError, shown, unknown_name
from topicjax.trial import Trial, TrialSettings

MAX_VALUES = 100_000  # of one axis: a typo must not fill the memory
MAX_TRIALS = 1_000_000  # of a sweep: planning that many takes about 30 s and 1 GB
Settings = dict[str, Any]  # partial settings of a trial, by name


@dataclass(frozen=True)
class Sweep:
    """Ordered partial settings: made by product, zipped and sample, combined by chain, where and *."""

    settings: tuple[Settings, ...]
    bound_to: TrialSettings | None = field(default=None, compare=False, repr=False)  # values are of its types

    @property
    def names(self) -> set[str]:
        """Collect the names of all settings that the sweep sets."""
        return set().union(*self.settings)

    def __post_init__(self) -> None:
        check_count(len(self.settings))
        for settings in self.settings:
            if not isinstance(settings, dict):
                raise UserError(f"a sweep has {shown(settings)}; allowed: dicts of settings")

    def __len__(self) -> int:
        return len(self.settings)

    def __iter__(self) -> Iterator[Settings]:
        return map(dict, self.settings)

    def __mul__(self, other: "Sweep") -> "Sweep":
        """Combine each setting of this sweep with each of the other; the right one varies faster."""
        if both := ", ".join(sorted(self.names & other.names)):
            raise UserError(f"both sides of * set {both}; allowed: each setting on one side only")
        check_count(len(self) * len(other))
        return Sweep(tuple(a | b for a, b in itertools.product(self.settings, other.settings)))


def product(**axes: Any) -> Sweep:
    """Make all combinations of the axes' values; the last axis varies fastest."""
    columns = [axis_values(name, values) for name, values in axes.items()]
    check_count(math.prod(map(len, columns)))
    return Sweep(tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*columns)))


def zipped(**axes: Any) -> Sweep:
    """Pair the axes' values by position; a single value is repeated."""
    columns = {name: axis_values(name, values) for name, values in axes.items()}
    lengths = {name: len(columns[name]) for name in axes if np.ndim(axes[name]) > 0}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UserError(f"zipped axes differ in length: {found}; allowed: equal lengths")
    positions = range(max(lengths.values(), default=1))
    return Sweep(
        tuple({name: column[i % len(column)] for name, column in columns.items()} for i in positions)
    )


@dataclass(frozen=True)
class Stretch:
    """A range from lo to hi to sample from, uniform in the value or in its logarithm."""

    lo: float
    hi: float
    is_log: bool

    def at(self, share: float) -> float:
        """Compute the value at this share of the range, rounded to 6 digits."""
        if self.is_log:
            return float(f"{self.lo * (self.hi / self.lo) ** share:.6g}")
        return float(f"{self.lo + (self.hi - self.lo) * share:.6g}")


def uniform(lo: float, hi: float) -> Stretch:
    """Make a uniform range from lo to hi, for `sample`."""
    if not -math.inf < lo < hi < math.inf:
        raise UserError(f"uniform has {lo}, {hi}; allowed: two finite numbers, the smaller first")
    return Stretch(lo, hi, is_log=False)


def loguniform(lo: float, hi: float) -> Stretch:
    """Make a range from lo to hi that is uniform in the logarithm, for `sample`."""
    if not 0 < lo < hi < math.inf:
        raise UserError(f"loguniform has {lo}, {hi}; allowed: two finite numbers above 0, the smaller first")
    return Stretch(lo, hi, is_log=True)


def sample(n: int, number: int = 0, /, **axes: Any) -> Sweep:
    """Draw n points spread evenly over all axes jointly; an axis is uniform, loguniform or a list of values.

    The points are a scrambled Halton sequence: a larger sample begins with the points of a smaller one, so a
    sweep can be extended.  `number` seeds the scrambling.
    """
    if not 1 <= n <= MAX_VALUES or not axes:
        raise UserError(
            f"sample has {n} points of {len(axes)} axes; allowed: 1 to {MAX_VALUES}, 1 axis or more"
        )
    from scipy.stats import qmc  # slow to import

    columns = {
        name: stretch if isinstance(stretch, Stretch) else axis_values(name, stretch)
        for name, stretch in axes.items()
    }
    points = qmc.Halton(len(axes), rng=np.random.default_rng(number)).random(n)
    return Sweep(
        tuple({name: value_at(columns[name], u) for name, u in zip(axes, row, strict=True)} for row in points)
    )


def value_at(column: Stretch | tuple[Any, ...], share: float) -> Any:
    """Compute the value at this share of a range or list."""
    return column.at(share) if isinstance(column, Stretch) else column[int(share * len(column))]


def chain(*sweeps: Sweep) -> Sweep:
    """Concatenate sweeps."""
    check_count(sum(map(len, sweeps)))
    return Sweep(tuple(settings for sweep in sweeps for settings in sweep.settings))


def where(sweep: Sweep, predicate: Callable[[Settings], object]) -> Sweep:
    """Keep the settings that the predicate accepts; it sees only settings that the sweep sets."""
    return Sweep(tuple(settings for settings in sweep if predicate(_Named(settings))))


def logspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Space n values evenly in the logarithm: exact ends (n = 1: lo), rounded to 6 digits between them."""
    if not 1 <= n <= MAX_VALUES or not all(0 < end < math.inf for end in (lo, hi)):
        raise UserError(f"logspace has {lo}, {hi}, {n}; allowed: above 0, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.6g}") for value in np.geomspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def linspace(lo: float, hi: float, n: int) -> tuple[float, ...]:
    """Space n values evenly: exact ends (n = 1: lo), rounded to 12 digits between them."""
    if not 1 <= n <= MAX_VALUES or not (math.isfinite(lo) and math.isfinite(hi)):
        raise UserError(f"linspace has {lo}, {hi}, {n}; allowed: finite, n 1 to {MAX_VALUES}")
    inner = (float(f"{value:.12g}") for value in np.linspace(lo, hi, n)[1:-1])
    return (float(lo), *inner, float(hi))[:n]


def bind(settings: TrialSettings, sweep: Sweep) -> Sweep:
    """Convert every value of the sweep to the type of its setting, or raise a UserError."""
    if sweep.bound_to is settings:
        return sweep
    convert = functools.lru_cache(maxsize=MAX_VALUES, typed=True)(settings.convert)

    def bound(own: Settings) -> Settings:
        try:
            converted = {name: convert(name, value) for name, value in own.items()}
        except TypeError:  # unhashable values are not valid settings
            converted = {name: settings.convert(name, value) for name, value in own.items()}
        is_same = all(map(operator.is_, converted.values(), own.values()))
        return own if is_same else converted  # a million dicts need not be there twice

    return Sweep(tuple(map(bound, sweep.settings)), bound_to=settings)


def expand(settings: TrialSettings, base: Mapping[str, Any], sweep: Sweep) -> list[Trial]:
    """Expand the sweep over the base to distinct, validated trials, in order.

    A million trials share most of their values: a value is checked once, and equal parts are one object.
    """
    base, sweep = settings.converted(base), bind(settings, sweep)
    names = sweep.names
    conditional = [each for each in settings.conditional if each.name in base or each.name in names]
    makers: dict[tuple[str, ...], Callable[[Settings], Trial]] = {}
    made: dict[Trial, None] = {}
    for own in sweep.settings:
        try:
            given = tuple(own)
            if given not in makers:
                makers[given] = trial_maker(settings, base, given)
            trial = settings.settled(makers[given](own), conditional)
        except UserError as error:
            which = ", ".join(f"{name}={value}" for name, value in own.items())
            raise UserError(f"{error} (in the trial with {which or 'the base alone'})") from None
        made[trial] = None
    if not made:
        raise UserError("the sweep has no trials; allowed: one or more (see its where and chain)")
    check_axes_act(settings, base, sweep, made)
    return list(made)


def check_axes_act(
    settings: TrialSettings, base: Mapping[str, Any], sweep: Sweep, trials: Iterable[Trial]
) -> None:
    """Raise a UserError if the sweep varies a setting that has no effect on any of its trials."""
    for name, values in axes_of(settings, base, sweep).items():
        only = settings.settings[name].only
        if only is not None and all(settings.value(trial, only.name) not in only.values for trial in trials):
            raise UserError(
                f"axis {name} has {len(values)} values and acts on no trial; allowed: with "
                f"{only.name} = {' or '.join(map(str, only.values))}"
            )


def axes_of(settings: TrialSettings, base: Mapping[str, Any], sweep: Sweep) -> dict[str, list[Any]]:
    """List the distinct values, in order, of each setting that differs between trials."""
    default = settings.defaults | settings.converted(base)
    columns = {
        name: list(dict.fromkeys(own.get(name, default[name]) for own in sweep.settings))
        for name in dict.fromkeys(itertools.chain.from_iterable(sweep.settings))
    }
    return {name: values for name, values in columns.items() if len(values) > 1}


class _Named(dict[str, Any]):
    """The settings that a predicate of `where` sees."""

    def __missing__(self, name: str) -> Any:
        raise UserError(f"where sees what the sweep sets: {unknown_name('setting', name, self)}")


def axis_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an axis as a tuple; a single value becomes a tuple of one."""
    values = values.tolist() if hasattr(values, "tolist") else values
    column = values if isinstance(values, list | tuple | range) else (values,)
    if not column or column[MAX_VALUES:]:
        raise UserError(f"axis {name} has no values or too many; allowed: 1 to {MAX_VALUES}")
    return tuple(column)


def check_count(count: int) -> None:
    """Raise a UserError if a sweep would have too many trials, before it is built."""
    if count > MAX_TRIALS:
        raise UserError(f"the sweep has {count:,} trials; allowed: up to {MAX_TRIALS:,}; shorten an axis")


def distinct(default: Settings, candidates: Iterable[Settings]) -> tuple[Settings, ...]:
    """Keep the first settings of each distinct combination, with `default` for missing settings."""
    first: dict[frozenset[Any], Settings] = {}
    for settings in candidates:
        changed = frozenset(item for item in settings.items() if default[item[0]] != item[1])
        first.setdefault(changed, settings)
    return tuple(first.values())


def trial_maker(
    settings: TrialSettings, base: Settings, given: tuple[str, ...]
) -> Callable[[Settings], Trial]:
    """Make the function from these settings, the rest as in the base, to a trial with checked parts."""
    makers = [part_maker(settings, number, base, given) for number in range(3)]
    make_spec, make_stream, make_hypers = makers
    return lambda own: Trial(make_spec(own), make_stream(own), make_hypers(own))


def part_maker(
    settings: TrialSettings, number: int, base: Settings, given: tuple[str, ...]
) -> Callable[[Settings], Any]:
    """Make the function from settings to a checked Spec, Stream or Hypers; equal ones are one object."""
    part, names = settings.classes[number], settings.names[number]
    fixed = {name: value for name, value in base.items() if name in names}
    axes = [name for name in given if name in names]
    unchecked = [name for name in names if name not in axes]  # those that all parts share: checked once

    @functools.lru_cache(maxsize=MAX_VALUES)  # as many as an axis may have
    def make(values: tuple[Any, ...]) -> Any:
        made = part(**fixed | dict(zip(axes, values, strict=True)))
        settings.check_part(made, [*unchecked, *axes])
        unchecked.clear()
        return made

    if len(axes) > 1:
        values_of = operator.itemgetter(*axes)
        return lambda own: make(values_of(own))
    return lambda own: make(tuple([own[name] for name in axes]))
