"""Declare a setting once, as an annotated field: the kind of its values, one line of help, its default.

    class Spec:
        topics: Annotated[int, Whole(1), "T: the number of topics", Role.DOCUMENTS] = 10

`declared(Spec)` returns the settings of such a class.  A kind parses and converts input, states what is
allowed, and turns values into the numbers that compiled programs take.  The kind of a `Literal` or `bool`
field follows from its type.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from topicjax.errors import UserError, shown

SEEDS = ("seed", "init_seed")  # settings that replicate a trial: those of a cell differ only in them
MAX_WHOLE = 2**63  # no array holds larger integers
NUMBERS = (int, float, np.integer, np.floating)
MAX_INT32 = 2**31 - 1  # compiled programs count in int32 ...
SEEDS = ("seed", "init_seed")  # settings that replicate a trial: those of a cell differ only in them
FORM = 'Annotated[type, kind, "one line of help"], with at most one Role and one Only, or a Literal or bool'
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)  # ... and in float32


class Role(Enum):
    """Special role of a setting; most have none."""

    DOCUMENTS = "how documents are written, masked and seen"
    TOPIC_WORDS = "the words of each topic: theory takes the resulting distributions, not the setting"
    EXECUTION = "the layout of a compiled program: no part of a trial's identity"


@dataclass(frozen=True)
class Only:
    """Marks a setting that has an effect only where another setting has one of these values.

    Elsewhere it is not part of the trial: it is reset to its default, whatever value it was given.
    """

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Whole:
    """A whole number of at least `low` and at most `high`."""

    low: int
    high: int | None = None  # None: the int32 maximum
    described = "a whole number"

    @property
    def allowed(self) -> str:
        """Describe the range in words."""
        return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"

    def remark(self, value: int) -> str:
        """Explain why a value is refused, if `allowed` does not."""
        return f", at most {MAX_INT32}" if self.high is None and value > MAX_INT32 else ""

    def read(self, text: str) -> Any:
        """Parse the text as a number; return it unchanged if it is not one."""
        return as_number(text)

    def convert(self, value: Any) -> Any:
        """Convert the value to an int, or return None if it is not a whole number."""
        return int(value) if is_number(value) and float(value).is_integer() else None

    def holds(self, value: Any) -> bool:
        """Check whether the value is in the range."""
        return self.low <= value <= (MAX_INT32 if self.high is None else self.high)

    def traced(self, value: Any) -> np.generic:
        """Convert the value to what compiled programs take."""
        return np.int32(value)


@dataclass(frozen=True)
class Real:
    """A number in the float32 range; `low` and `high` are inclusive bounds, `above` and `below` exclusive."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    smallest: float = SMALLEST  # smallest magnitude other than 0
    described = "a number"

    @property
    def allowed(self) -> str:
        """Describe the range in words."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        ends = {
            "above {:g}": self.above,
            "{:g} or more": self.low,
            "below {:g}": self.below,
            "at most {:g}": self.high,
        }
        return ", ".join(text.format(end) for text, end in ends.items() if end is not None) or "finite"

    def remark(self, value: float) -> str:
        """Explain why a value is refused, if `allowed` does not."""
        if not self.bounds_hold(value):
            return ""
        if not self.is_float32(value):
            zero = "0 or " if self.bounds_hold(0) else ""
            return f", as float32: {zero}{self.smallest:.3g} to {LARGEST:.2g} in size"
        return f", as float32: this is {np.float32(value):g}"

    def read(self, text: str) -> Any:
        """Parse the text as a number; return it unchanged if it is not one."""
        return as_number(text)

    def convert(self, value: Any) -> Any:
        """Convert the value to a float, or return None if it is not a number."""
        if type(value) is float and value:
            return value
        return float(value) + 0.0 if is_number(value) else None  # + 0.0: -0.0 and 0.0 are one setting

    def holds(self, value: Any) -> bool:
        """Check whether the value is in the range, also after rounding to float32."""
        is_inside = self.bounds_hold(value) and self.is_float32(value)
        return is_inside and (self.below is None or bool(np.float32(value) < self.below))

    def is_float32(self, value: float) -> bool:
        """Check whether the value is 0 or within the magnitudes that float32 programs can hold."""
        return value == 0 or self.smallest <= abs(value) <= LARGEST

    def bounds_hold(self, value: float) -> bool:
        """Check whether the value is finite and within the bounds."""
        return math.isfinite(value) and (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def traced(self, value: Any) -> np.generic:
        """Convert the value to what compiled programs take."""
        return np.float32(value)


@dataclass(frozen=True)
class Choice:
    """One of several names; compiled programs take its position in the list."""

    names: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """List the names."""
        return ", ".join(self.names)

    described = allowed

    def read(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def convert(self, value: Any) -> Any:
        """Return the name, or None if it is not in the list."""
        return str(value) if isinstance(value, str) and value in self.names else None

    def holds(self, value: Any) -> bool:
        """Check whether the value is one of the names."""
        return value in self.names

    def code(self, name: str) -> int:
        """Return the number that encodes the name in compiled programs."""
        return self.names.index(name)

    def traced(self, value: Any) -> np.generic:
        """Convert the value to what compiled programs take."""
        return np.int32(self.code(value))


@dataclass(frozen=True)
class Flag:
    """True or false."""

    described = allowed = "true or false"

    def read(self, text: str) -> Any:
        """Parse the text as true or false; return it unchanged if it is neither."""
        return {"true": True, "false": False}.get(text.lower(), text)

    def convert(self, value: Any) -> Any:
        """Convert the value to a bool, or return None if it is not one."""
        return bool(value) if isinstance(value, bool | np.bool_) else None

    def holds(self, value: Any) -> bool:
        """Return True: both values are allowed."""
        return True

    def traced(self, value: Any) -> np.generic:
        """Convert the value to what compiled programs take."""
        return np.bool_(value)


@dataclass(frozen=True)
class Key:
    """A name for external data; `find` returns an identity that does not depend on the name, or None."""

    find: Callable[[str], str | None]
    described: str

    @property
    def allowed(self) -> str:
        """Describe what is allowed."""
        return self.described

    def read(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def convert(self, value: Any) -> Any:
        """Look up the identity of what has this name; None if nothing has."""
        return self.find(value) if isinstance(value, str) else None

    def holds(self, value: Any) -> bool:
        """Return True: `convert` has already refused unknown names."""
        return True

    def traced(self, value: Any) -> np.generic:
        """Raise: compiled programs take numbers."""
        raise TypeError("a key is not a number; allowed: in a Spec only")


Kind = Whole | Real | Choice | Flag | Key

# Fields of a Stream or Hypers hold plain values first and arrays later, so their type is Any; their kind says
# what is allowed.
AutomaticSize = Annotated[int, Whole(0)]  # 0: chosen automatically
RecordsPerDecade = Annotated[
    int, Whole(0, 1000), "records per tenfold of the steps, at multiples of record_every; 0: at all of them"
]
Probability = Annotated[Any, Real(low=0, high=1)]
NotNegative = Annotated[Any, Real(low=0)]
BelowOne = Annotated[Any, Real(low=0, below=1)]


class Setting(NamedTuple):
    """One setting, as its class declares it."""

    name: str
    kind: Kind
    default: Any
    help: str
    role: Role | None
    only: Only | None = None

    @property
    def meaning(self) -> str:
        """The line of help, with the condition under which the setting has an effect."""
        if self.only is None:
            return self.help
        return f"{self.help} ({self.only.name}={', '.join(map(str, self.only.values))})"

    def convert(self, value: Any) -> Any:
        """Convert a value to the type of the setting, or raise a UserError that says what is allowed."""
        converted = self.kind.convert(value)
        if converted is None:
            raise UserError(f"{self.name} is {shown(value)}; allowed: {self.kind.described}")
        return converted

    def check(self, value: Any) -> None:
        """Raise a UserError that says what is allowed if the value is out of range."""
        if not self.kind.holds(value):
            remark = self.kind.remark(value) if isinstance(self.kind, Whole | Real) else ""
            raise UserError(f"{self.name} is {value}; allowed: {self.kind.allowed}{remark}")


def declared(owner: type) -> dict[str, Setting]:
    """Collect the settings that a class declares as annotated fields with defaults, by name."""
    hints = get_type_hints(owner, include_extras=True)  # base classes first
    inherited = {name: getattr(owner, name) for name in hints if hasattr(owner, name)}
    defaults = getattr(owner, "_field_defaults", None) or inherited
    for name in hints:
        if name not in defaults:
            raise UserError(f"setting {name} has no default; allowed: {FORM}, and a default")
    return {name: read_field(name, hint, defaults[name]) for name, hint in hints.items()}


def read_field(name: str, hint: Any, default: Any) -> Setting:
    """Read a setting from a field's annotation and default."""
    base, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    texts = [extra for extra in extras if isinstance(extra, str)]
    roles = [extra for extra in extras if isinstance(extra, Role)]
    only = [extra for extra in extras if isinstance(extra, Only)]
    kinds: list[Kind] = [extra for extra in extras if isinstance(extra, Kind)]
    if get_origin(base) is Literal:
        kinds.append(Choice(get_args(base)))
    elif base is bool:
        kinds.append(Flag())
    if len(kinds) != 1 or len(texts) > 1 or len(roles) > 1 or len(only) > 1:
        raise UserError(f"setting {name} is declared by {shown(hint)}; allowed: {FORM}")
    text, role = texts[0] if texts else "", roles[0] if roles else None
    return Setting(name, kinds[0], default, text, role, only[0] if only else None)


def is_number(value: Any) -> bool:
    """Check whether the value is a number that an array can hold."""
    if type(value) is float:
        return True
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        return False
    return not isinstance(value, int) or abs(value) <= MAX_WHOLE


def as_number(text: str) -> Any:
    """Parse the text as a number; return it unchanged if it is not one."""
    try:
        return float(text)
    except ValueError:
        return text
