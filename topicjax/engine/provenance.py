"""Where numbers come from: versions, commit, devices and time, for the manifest."""

import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = "topicjax jax jaxlib flax optax numpy scipy orbax-checkpoint pandas pyarrow".split()


def provenance(devices: Sequence[Any]) -> dict[str, Any]:
    """Return with what and on what a run computes, and when it started."""
    return {
        "started": now(),
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "devices": [device.device_kind for device in devices],
    }


def version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def git_commit() -> str | None:
    """Return the commit of the code, with + if it was changed since; None outside a checkout."""
    if not shutil.which("git"):
        return None
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
