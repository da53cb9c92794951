"""Version of the package, and the commit of its code."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("topicjax")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "unknown"


def git_commit() -> str | None:
    """Return the commit of the code, with + if there are uncommitted changes; None outside a checkout."""
    if not shutil.which("git"):
        return None
    here = Path(__file__).parent
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
