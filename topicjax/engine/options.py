"""Options of a run, each declared once: how to train a sweep, as opposed to what.

Each field of `Options` is a flag of `topicjax plan` and `topicjax run`, an argument of `topicjax.sweep`, a
key of the run's entry in manifest.json (unless `unrecorded` gives a reason against it), and known to the
workers of a cluster, which receive the whole object.  Nothing here imports jax.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from topicjax.errors import UserError, shown, unknown_name

ORDERS = ("lane", "together")
MANTISSA_BITS = {"tf32": 10, "bf16": 7}  # that are stored, of the formats to round to
MAX_LOCAL = 1024
ADDRESSES = re.compile(
    r"auto|local:(?P<count>[0-9]{1,9})|(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>[0-9]{1,5})"
)
DEVICES_VARIABLE = "JAX_NUM_CPU_DEVICES"
DEVICES_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\S*)")
MAX_DEVICES = 4096
MAX_NAME, MAX_PATH = 255, 4095  # bytes, in most file systems


class Address(NamedTuple):
    """Address of a cluster."""

    text: str
    local: int = 0  # workers of a cluster that is started here and ends with the run; 0: join a running one
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Address:
    """Parse the address of a cluster, or raise a ValueError."""
    found = ADDRESSES.fullmatch(text)
    if found is None or not 1 <= int(found["count"] or 1) <= MAX_LOCAL:
        raise ValueError
    if found["count"]:
        return Address(text, local=int(found["count"]))
    return Address(text, host=(found["host"] or "").strip("[]"), port=int(found["port"] or 0))


def parse_path(text: Any) -> Path:
    """Parse a path, or raise a ValueError if no file system can hold it."""
    encoded = os.fsencode(text)
    if not encoded or b"\0" in encoded:
        raise ValueError("not a path; allowed: the name of a file or folder")
    if b"://" in encoded:
        raise ValueError("not on this machine; allowed: the name of a file or folder")
    if len(encoded) > MAX_PATH or max(map(len, encoded.split(b"/"))) > MAX_NAME:
        raise ValueError(f"too long; allowed: names of up to {MAX_NAME} bytes, {MAX_PATH} in all")
    return Path(text)


@dataclass(frozen=True)
class Option:
    """Declaration of an option, besides its type and default."""

    help: str
    check: Callable[[Any], Any]  # returns the value in its type, or raises a ValueError
    allowed: str  # what passes the check, in words
    read: Callable[[str], Any] = str  # parses the typed text, or raises a ValueError
    metavar: str | None = None
    unrecorded: str = ""  # why the manifest omits it; empty: it is recorded


def at_least(low: float, kind: type = int) -> Callable[[Any], Any]:
    """Make a check for numbers of at least `low`."""

    def check(value: Any) -> Any:
        if isinstance(value, bool | str) or kind(value) != value or value < low:  # NaN differs from itself
            raise ValueError
        return kind(value)

    return check


def one_of(*allowed: Any) -> Callable[[Any], Any]:
    """Make a check for one of these values."""

    def check(value: Any) -> Any:
        return allowed[allowed.index(value)]

    return check


def check_text(value: Any) -> str:
    """Return the text, or raise a ValueError if it is not a str."""
    if not isinstance(value, str):
        raise ValueError
    return value


def check_devices(value: Any) -> Any:
    """Check a number of devices, or a list of devices, or raise a ValueError."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return value
    return at_least(1)(value)


@dataclass(frozen=True)
class Options:
    """How to run.  Results agree to rounding for all options, and bit for bit under the same layout.

    Only `round_products` changes numbers on purpose.
    """

    lanes: Annotated[
        int,
        Option(
            help="trials that a device trains together (default: chosen; timed on accelerators)",
            metavar="N",
            read=int,
            check=at_least(0),
            allowed="1 or more, or 0 for automatic",
        ),
    ] = 0
    devices: Annotated[
        int | Sequence[Any] | None,
        Option(
            help="use N of the devices (default: all); on a cluster, those of each worker",
            metavar="N",
            read=int,
            check=check_devices,
            allowed="1 or more (from Python also a list of jax devices)",
            unrecorded="the manifest lists the kind of every device that was used",
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option(
            help="train on the workers of a Ray cluster, or on N workers here (needs the extra ray)",
            metavar="auto|HOST:PORT|local:N",
            check=lambda text: parse_address(text).text,
            allowed="auto or HOST:PORT, for a Ray cluster that this machine is part of, "
            f"or local:1 to local:{MAX_LOCAL}",
            unrecorded="the manifest has the number of workers",
        ),
    ] = None
    order: Annotated[
        str,
        Option(
            help="train a lane at a time or lanes together (default on cores: the faster, timed once)",
            metavar="|".join(ORDERS),
            check=one_of("", *ORDERS),
            allowed=", ".join(ORDERS),
        ),
    ] = ""
    round_products: Annotated[
        str,
        Option(
            help="round the factors of matrix products as GPUs (tf32) or TPUs (bf16) do by default "
            "(default: full precision)",
            metavar="|".join(MANTISSA_BITS),
            check=one_of("", *MANTISSA_BITS),
            allowed=", ".join(MANTISSA_BITS),
            unrecorded="the manifest has it among what numbers depend on: arithmetic",
        ),
    ] = ""
    layout: Annotated[
        Path | None,
        Option(
            help="lanes, devices and orders of that folder's last run, to get the same bits again",
            metavar="FOLDER",
            check=parse_path,
            allowed="a run folder",
            unrecorded="the manifest has the lanes, devices and orders that follow from it",
        ),
    ] = None
    snapshots: Annotated[
        str,
        Option(
            help="steps whose weights are kept: last (default), none, log:N, or S1,S2,... (up to 1000)",
            metavar="WHEN",
            check=check_text,  # the steps are checked against each program (parse_snapshots)
            allowed="last, none, log:N, or S1,S2,...",
        ),
    ] = "last"
    save_every: Annotated[
        float,
        Option(
            help="how often long trials save their state (default: 60)",
            metavar="SECONDS",
            read=float,
            check=at_least(0.0, float),
            allowed="0 or more seconds",
            unrecorded="it changes no result",
        ),
    ] = 60.0
    other_code: Annotated[
        bool,
        Option(
            help="add to a folder whose trials were trained by other code, or under other options of jax",
            check=one_of(False, True),
            allowed="true or false",
            unrecorded="the manifest has the fingerprint of each run's code, and its options of jax",
        ),
    ] = False
    extend: Annotated[
        bool,
        Option(
            help="add to a folder that holds another sweep's trials",
            check=one_of(False, True),
            allowed="true or false",
            unrecorded="it says what may be written, not how trials are trained",
        ),
    ] = False

    def recorded(self) -> dict[str, Any]:
        """Return the options that the manifest records."""
        return {name: getattr(self, name) for name, option in OPTIONS.items() if not option.unrecorded}


OPTIONS: dict[str, Option] = {field.name: get_args(field.type)[1] for field in fields(Options)}


def flag(name: str) -> str:
    """Spell an option as a flag."""
    return f"--{name.replace('_', '-')}"


def read_options(typed: Mapping[str, Any]) -> Options:
    """Parse options typed as flags: texts, and True for a flag without a value."""
    return make_options(typed, flag, lambda name, text: text if text is True else OPTIONS[name].read(text))


def make_options(
    given: Mapping[str, Any],
    spell: Callable[[str], str] = lambda name: name,
    read: Callable[[str, Any], Any] = lambda name, value: value,
) -> Options:
    """Make options with these values, or raise a UserError that says what is allowed.

    `spell` gives the user's name of an option, and `read` parses its value.
    """
    values = {}
    for name, value in given.items():
        if name not in OPTIONS:
            raise UserError(unknown_name("option", name, OPTIONS))
        if value is getattr(Options, name):
            continue  # a default, such as None, counts as not given
        try:
            value = read(name, value)
            values[name] = OPTIONS[name].check(value)
        except (ValueError, TypeError, OverflowError):
            raise UserError(f"{spell(name)} is {shown(value)}; allowed: {OPTIONS[name].allowed}") from None
    options = Options(**values)
    layout, lanes, devices, order, cluster = map(spell, ("layout", "lanes", "devices", "order", "cluster"))
    if options.layout is not None and (options.lanes or options.devices is not None or options.order):
        raise UserError(f"{layout} is given with {lanes}, {devices} or {order}; allowed: either, not both")
    if options.cluster is not None and not isinstance(options.devices, int | None):
        raise UserError(
            f"{devices} names devices of this process and {cluster} is given; "
            "allowed: how many devices each worker uses"
        )
    return options


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(function: Function) -> Function:
    """Replace `**options` by every option in the signature and docstring of a function."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=get_args(field.type)[0],
        )
        for field in fields(Options)
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    listed = "\n".join(f"    {name}: {option.help}" for name, option in OPTIONS.items())
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{listed}\n"
    return function


def requested_cpu_devices() -> int | None:
    """Read how many CPU devices the environment asks jax for; None if it does not say.

    Raises a UserError for values that make jax fail on import.
    """
    flag = DEVICES_FLAG.search(os.environ.get("XLA_FLAGS", ""))
    for name, text in (
        (DEVICES_VARIABLE, os.environ.get(DEVICES_VARIABLE)),
        ("--xla_force_host_platform_device_count in XLA_FLAGS", flag and flag[1]),
    ):
        if text is not None:
            if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_DEVICES:
                raise UserError(f"{name} is {shown(text)}; allowed: 1 to {MAX_DEVICES}")
            return int(text)
    return None
