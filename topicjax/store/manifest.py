"""manifest.json: the sweep that a folder holds, every run that added to it, and the limit lines.

    format       2; a folder of format 1 (topicjax 0.1) is read, not written
    sweep        the sweep of the folder's first run
    runs         an entry per run, see RUN_FIELDS; from `finished` on only if it has trained something
    limit_lines  an entry per data setting and objective
    digest       of all else

`plan` names a file in plans/ with the ids of all trials that the run was asked for.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topicjax.store.files import (
    StoreError,
    explained,
    first_line,
    is_hex_name,
    plain,
    read_regular,
    write_whole,
)
from topicjax.store.folder import MANIFEST

FORMAT = 2
FIRST_EXPERIMENT = "one_layer"  # what folders hold that do not name their experiment
NUMBER = (int, float)
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    "sweep": str,
    "experiment": str,  # one_layer, where it is not said
    "file": str,  # the sweep file, if it is the user's own
    "description": str,
    "base": dict,
    "axes": dict,
    "overrides": list,  # as they were typed
    "refine": dict,  # axes and levels, if boundaries are refined: its plan grows from run to run
    "plan": str,
    "planned": (int, type(None)),  # trials of the plan
    "left": int,  # of these, not finished when the run started
    "snapshots": str,
    "lanes": int,
    "order": str,
    "started": str,
    "versions": dict,
    "python": str,
    "git_commit": (str, type(None)),
    "devices": list,
    "finished": str,
    "trials": int,
    "trial_steps": NUMBER,
    "wall_seconds": NUMBER,
    "compile_seconds": NUMBER,
    "trial_steps_per_second": NUMBER,
}
ONCE_PER_FOLDER = ("description", "base", "axes", "snapshots", "started", "versions", "python")
ONCE_PER_FOLDER += ("git_commit", "devices")  # what format 1 kept of its last run only

Manifest = dict[str, Any]


def experiment_of(manifest: Manifest) -> str:
    """Return the experiment that a folder's trials are of; empty if there was no run yet."""
    runs = manifest.get("runs", [])
    return str(runs[-1].get("experiment", FIRST_EXPERIMENT)) if runs else ""


def new_manifest(sweep: str) -> Manifest:
    """Return the manifest of a folder without runs."""
    return {"format": FORMAT, "sweep": sweep, "runs": [], "limit_lines": []}


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest in the shape of format 2; empty if there is none yet."""
    path = Path(folder) / MANIFEST
    try:
        with explained("read", path, FileNotFoundError):
            manifest = json.loads(read_regular(path).decode())
    except FileNotFoundError:
        if path.is_symlink():
            raise StoreError(f"{path} is a link to a file that is not there") from None
        return {}
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("sweep"), str):
        raise StoreError(f"{path} is not the manifest of a run: it does not name its sweep")
    version = manifest.get("format", 1)
    if version not in (1, FORMAT):
        raise StoreError(
            f"{path} has format {version!r}, of a newer topicjax; this one reads formats 1 and {FORMAT}"
        )
    is_signed = version == FORMAT or "digest" in manifest
    if is_signed and manifest.pop("digest", None) != digest(manifest):
        raise StoreError(f"{path} is damaged: its digest does not match; `topicjax repair` sets it aside")
    manifest = manifest if version == FORMAT else from_format_1(manifest, path)
    check_values(manifest, path)
    return manifest


def from_format_1(manifest: Mapping[str, Any], path: Path) -> Manifest:
    """Return a manifest of format 1 in the shape of format 2; it knew the settings of its last run only."""
    found, lines = manifest.get("runs", []), manifest.get("limit_lines", [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise StoreError(f"{path} is damaged: runs is no list of objects")
    runs = [{"sweep": manifest["sweep"], **entry} for entry in found] or [{"sweep": manifest["sweep"]}]
    runs[-1] |= {name: manifest[name] for name in ONCE_PER_FOLDER if name in manifest}
    runs[-1]["planned"] = manifest.get("trials_planned")
    return {"format": 1, "sweep": manifest["sweep"], "runs": runs, "limit_lines": lines}


def check_values(manifest: Manifest, path: Path) -> None:
    """Raise a StoreError if a value is not of the kind that readers expect."""
    problems = [
        f"{name} is no list of objects"
        for name in ("runs", "limit_lines")
        if not isinstance(manifest.get(name), list) or not all(isinstance(e, dict) for e in manifest[name])
    ]
    problems = problems or [
        *(problem for entry in manifest["runs"] for problem in run_problems(entry)),
        *(f"limit_lines has {entry!r:.60}" for entry in manifest["limit_lines"] if not is_line(entry)),
    ]
    if problems:
        raise StoreError(f"{path} is damaged: {problems[0]}")


def run_problems(entry: Mapping[str, Any]) -> Iterator[str]:
    """Give what is wrong with the entry of a run."""
    for name in RUN_FIELDS.keys() & entry.keys():
        value = entry[name]
        is_wrong = not isinstance(value, RUN_FIELDS[name]) or isinstance(value, bool)
        if isinstance(value, list):
            is_wrong = is_wrong or not all(isinstance(text, str) for text in value)
        if is_wrong or (name == "plan" and not is_hex_name(value)):
            yield f"{name} of runs is {value!r:.60}"


def is_line(entry: Mapping[str, Any]) -> bool:
    """Return whether this is an entry of limit_lines."""
    settings, objective = entry.get("settings"), entry.get("objective")
    if not isinstance(settings, dict) or not isinstance(objective, str):
        return False
    values = [value for name, value in entry.items() if name not in ("settings", "objective", "error")]
    return all(isinstance(value, (*NUMBER, type(None))) for value in values) and all(
        isinstance(value, (*NUMBER, str)) for value in settings.values()
    )


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest; numbers that are not finite become null."""
    content = encode(plain(manifest))
    write_whole(folder / MANIFEST, lambda file: file.write(content))


def encode(content: Manifest) -> bytes:
    """Return the bytes of a manifest, with its digest."""
    text = json.dumps(content | {"digest": digest(content)}, indent=2, allow_nan=False)
    return f"{text}\n".encode()


def digest(content: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that depend on every value."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def last_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the last run; empty if there is none."""
    runs = manifest.get("runs", [])
    return runs[-1] if runs else {}


def distinct_plans(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entry of the last run of each plan, in the order in which the plans first came.

    Of a refined sweep the last plan counts, which has the trials of those before.
    """
    by_plan = {}
    for position, entry in enumerate(manifest["runs"]):
        key = plan_in_words(entry) if "refine" in entry else entry.get("plan", position)
        by_plan[str(key)] = entry
    return list(by_plan.values())


def plan_in_words(entry: Mapping[str, Any]) -> str:
    """Return the sweep of a run with its overrides, as they were typed."""
    return " ".join([str(entry.get("sweep")), *entry.get("overrides", [])])
