"""Which cluster is meant: one that runs (auto, HOST:PORT), or one started here for a while (local:N)."""

import importlib.util
import re
from typing import NamedTuple

from topicjax.errors import UserError, shown

MAX_LOCAL = 1024
FORMS = re.compile(
    r"auto|local:(?P<count>[0-9]{1,9})|(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>[0-9]{1,5})"
)
NOT_INSTALLED = "--cluster needs Ray, which is not installed; install it with: make ray"


class Address(NamedTuple):
    """Where workers are."""

    text: str
    local: int = 0  # workers of a cluster that is started here and ends with the run; 0: one that is there
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Address:
    """Return the cluster that is meant, or raise a UserError."""
    found = FORMS.fullmatch(text)
    if found is None or not 1 <= int(found["count"] or 1) <= MAX_LOCAL:
        raise UserError(
            f"--cluster is {shown(text)}; allowed: auto or HOST:PORT, for a Ray cluster that this machine is "
            f"part of, or local:1 to local:{MAX_LOCAL}"
        )
    if found["count"]:
        return Address(text, local=int(found["count"]))
    return Address(text, host=(found["host"] or "").strip("[]"), port=int(found["port"] or 0))


def check_installed() -> None:
    """Raise a UserError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(NOT_INSTALLED)
