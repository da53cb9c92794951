"""Override a sweep from the command line: --set name=value and --axis name=values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from topicjax.errors import UserError, shown
from topicjax.sweep import (
    MAX_VALUES,
    Settings,
    Sweep,
    axis_values,
    bind,
    distinct,
    linspace,
    logspace,
    product,
)
from topicjax.sweep.files import NamedSweep
from topicjax.trial import TrialSettings

MOST_LISTED = 8  # values of a setting in a message


def override(named: NamedSweep, sets: Iterable[str], axes: Iterable[str]) -> tuple[NamedSweep, list[str]]:
    """Fix some settings and replace or add some axes; return the changed sweep and notes for the user.

    Fixing a setting that the sweep itself sets selects the trials with that value, so that each keeps the
    other settings of its branch; any other fixed setting goes into the base.  An axis replaces what the sweep
    says about its setting and is crossed with all trials.  `where` is not applied again.
    """
    known = named.settings
    fixed, added = parse_once(known, sets, parse_setting), parse_once(known, axes, parse_axis)
    if both := sorted(fixed.keys() & added.keys()):
        raise UserError(given_twice(both[0]))
    if not fixed and not added:
        return named, []
    kept, notes, default = named.sweep.settings, [], known.defaults | named.base
    for name, value in fixed.items():
        if name not in named.sweep.names:
            continue
        before = len(distinct(default, kept))
        kept = select(name, value, kept, default)
        if (left := len(distinct(default, kept))) < before:
            notes.append(f"--set {name}={value} keeps {left:,} of {before:,} trials")
    base, replaced = named.base | fixed, fixed.keys() | added.keys()
    rest = ({name: value for name, value in settings.items() if name not in replaced} for settings in kept)
    combined = Sweep(distinct(known.defaults | base, rest)) * bind(known, product(**added))
    return replace(named, base=base, sweep=combined), notes


def select(name: str, value: Any, candidates: Sequence[Settings], default: Settings) -> tuple[Settings, ...]:
    """Keep the settings with this value; if there are none, raise a UserError that lists its values."""
    found = [settings.get(name, default[name]) for settings in candidates]
    if value not in found:
        values = list(dict.fromkeys(found))
        more = ", ..." if len(values) > MOST_LISTED else ""
        raise UserError(
            f"--set {name}={value} leaves no trial: the sweep has {name} at "
            f"{', '.join(map(str, values[:MOST_LISTED]))}{more}; to use another value instead: --axis "
            f"{name}={value}"
        )
    return tuple(settings for settings, own in zip(candidates, found, strict=True) if own == value)


def parse_once(
    known: TrialSettings, texts: Iterable[str], parse: Callable[[TrialSettings, str], tuple[str, Any]]
) -> dict[str, Any]:
    """Parse the texts into a dict by name; a name given twice is an error."""
    found: dict[str, Any] = {}
    for text in texts:
        name, value = parse(known, text)
        if name in found:
            raise UserError(given_twice(name))
        found[name] = value
    return found


def given_twice(name: str) -> str:
    """Word the message for a setting that is given by several options."""
    return f"{name} is given twice; allowed: once, as a setting or as an axis"


def parse_setting(known: TrialSettings, text: str) -> tuple[str, Any]:
    """Parse name=value."""
    name, value = split_name(known, text)
    return name, parse_value(known, name, value)


def parse_axis(known: TrialSettings, text: str) -> tuple[str, tuple[Any, ...]]:
    """Parse name=v1,v2 or name=log:lo:hi:n (or lin, or range:lo:hi) into the name and its values."""
    name, values = split_name(known, text)
    if ":" not in values:
        return name, tuple(parse_value(known, name, value) for value in values.split(","))
    spacing, *ends = values.split(":")
    spacings: dict[str, Callable[..., Any]] = dict(log=logspace, lin=linspace, range=range)
    types = (int, int) if spacing == "range" else (float, float, int)
    try:
        points = spacings[spacing](*(read(end) for read, end in zip(types, ends, strict=True)))
    except (ValueError, KeyError):
        forms = "v1,v2 or log:lo:hi:n (lo and hi above 0) or lin:lo:hi:n or range:lo:hi"
        raise UserError(
            f"axis {shown(text)} cannot be read; allowed after =: {forms}, up to {MAX_VALUES} values"
        ) from None
    return name, tuple(known.convert(name, value) for value in axis_values(name, points))


def split_name(known: TrialSettings, text: str) -> tuple[str, str]:
    """Split at the first = into the name of a setting and the text after it."""
    name, _, value = (part.strip() for part in text.partition("="))
    return known.setting(name).name, value


def parse_value(known: TrialSettings, name: str, text: str) -> Any:
    """Parse the text as a value of the setting's type."""
    return known.convert(name, known.settings[name].kind.read(text.strip()))
