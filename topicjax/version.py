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
    """Return the commit of the code, with + if there are uncommitted changes; None outside a checkout.

    An installed copy may lie in the repository of somebody's own project, whose commit is not ours.
    """
    here = Path(__file__).parent
    if not (here.parent / ".git").exists() or not shutil.which("git"):
        return None
    ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
