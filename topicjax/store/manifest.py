"""manifest.json: the sweep that a folder holds, every run that added to it, and the limit lines.

    format       2; a folder of format 1 (topicjax 0.1) is read, not written
    sweep        the sweep of the folder's first run
    runs         an entry per run: sweep, description, base, axes, overrides, plan, planned, left,
                 snapshots, lanes, started, versions, python, git_commit, devices; and, once it has
                 trained something, finished, trials, trial_steps, wall_seconds, compile_seconds, trial_steps_per_second
    limit_lines  an entry per data setting and objective

`plan` names a file in plans/ with the ids of all trials that the run was asked for.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topicjax.store.files import StoreError, explained, first_line, plain, write_whole
from topicjax.store.folder import MANIFEST

FORMAT = 2
ONCE_PER_FOLDER = ("description", "base", "axes", "snapshots", "started", "versions", "python")
ONCE_PER_FOLDER += ("git_commit", "devices")  # what format 1 kept of its last run only

Manifest = dict[str, Any]


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest in the shape of format 2; empty if there is none yet."""
    path = Path(folder) / MANIFEST
    try:
        with explained("read", path, FileNotFoundError):
            manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(manifest, dict) or "sweep" not in manifest:
        raise StoreError(f"{path} is not the manifest of a run: it does not name its sweep")
    if manifest.get("format", 1) not in (1, FORMAT):
        raise StoreError(
            f"{path} has format {manifest['format']}, of a newer topicjax; "
            f"this one reads formats 1 and {FORMAT}"
        )
    return manifest if "format" in manifest else from_format_1(manifest)


def from_format_1(manifest: Mapping[str, Any]) -> Manifest:
    """Return a manifest of format 1 in the shape of format 2; it knew the settings of its last run only."""
    runs = [{"sweep": manifest["sweep"], **entry} for entry in manifest.get("runs", [])] or [
        {"sweep": manifest["sweep"]}
    ]
    runs[-1] |= {name: manifest[name] for name in ONCE_PER_FOLDER if name in manifest}
    runs[-1]["planned"] = manifest.get("trials_planned")
    lines = manifest.get("limit_lines", [])
    return {"format": 1, "sweep": manifest["sweep"], "runs": runs, "limit_lines": lines}


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest; numbers that are not finite become null."""
    text = json.dumps(plain(manifest), indent=2, allow_nan=False) + "\n"
    write_whole(folder / MANIFEST, lambda file: file.write(text.encode()))


def last_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the last run; empty if there is none."""
    runs = manifest.get("runs", [])
    return runs[-1] if runs else {}


def distinct_plans(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entry of the last run of each plan, in the order in which the plans first came."""
    by_plan = {str(entry.get("plan", position)): entry for position, entry in enumerate(manifest["runs"])}
    return list(by_plan.values())


def plan_in_words(entry: Mapping[str, Any]) -> str:
    """Return the sweep of a run with its overrides, as they were typed."""
    return " ".join([str(entry.get("sweep")), *entry.get("overrides", [])])
