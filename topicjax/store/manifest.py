"""manifest.json: the sweep of a run folder, every run that added to it, and its reference losses.

    format      3; a folder of another format is refused
    sweep       the sweep of the folder's first run
    runs        an entry per run, see RUN_FIELDS; from `finished` on only if it has trained something
    references  reference losses, see `reference_problem`
    digest      of everything else

`plan` names a file in plans/ with the ids of all trials that the run was asked for.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topicjax.store.files import (
    MANIFEST,
    StoreError,
    explained,
    first_line,
    is_hex_name,
    plain,
    read_regular,
    write_whole,
)

FORMAT = 3
FULL_PRECISION = ("highest", "float32")  # two names of jax for the same
SET_ASIDE = "`topicjax repair` sets it aside and writes what it can find out"
NUMBER = (int, float)
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    "sweep": str,
    "file": str,  # the sweep file, if it is the user's own
    "experiment": str,
    "description": str,
    "base": dict,
    "axes": dict,
    "details": list,  # the indices of its details, if any
    "overrides": list,  # as they were typed
    "claims": list,  # names of the claims that the sweep is about, if any
    "refine": dict,  # axes and levels, if boundaries are refined: the plan then grows from run to run
    "added": dict,  # settings that the folder's older trials lack: their defaults
    "code": dict,  # fingerprint of the experiment's code, by part
    "plan": str,
    "planned": (int, type(None)),  # trials of the plan
    "left": int,  # of these, unfinished when the run started
    "snapshots": str,
    "lanes": int,
    "order": str,  # as it was asked for; empty: chosen for each program
    "orders": dict,  # of each program; "together:128" if the trials per device were timed too
    "arithmetic": dict,  # options of jax that change numbers; round_products, if it was given
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
REQUIRED = ("sweep", "experiment")  # fields that every run has

Manifest = dict[str, Any]


def experiment_of(manifest: Manifest) -> str:
    """Return the experiment of a folder's trials; empty before the first run."""
    return str(last_run(manifest).get("experiment", ""))


def new_manifest(sweep: str) -> Manifest:
    """Make the manifest of a folder without runs."""
    return {"format": FORMAT, "sweep": sweep, "runs": [], "references": []}


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a folder, empty if there is none yet; a StoreError if it cannot be used."""
    path = Path(folder) / MANIFEST
    try:
        with explained("read", path, FileNotFoundError):
            manifest = json.loads(read_regular(path).decode())
    except FileNotFoundError:
        if path.is_symlink():
            raise StoreError(f"{path} is a link to a file that is not there") from None
        return {}
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {first_line(error)}; {SET_ASIDE}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("sweep"), str):
        raise StoreError(f"{path} is not the manifest of a run: it does not name its sweep")
    written = manifest.pop("digest", None)
    is_whole = written == digest(manifest)
    if manifest.get("format") != FORMAT and (is_whole or written is None):
        raise OtherFormat(
            f"{path} was written by another version of topicjax (format {manifest.get('format', 1)!r:.20}, "
            f"not {FORMAT}); allowed: another folder (--out)"
        )
    if not is_whole:
        raise StoreError(f"{path} is damaged: its digest does not match; {SET_ASIDE}")
    for problem in problems(manifest):
        raise StoreError(f"{path} is damaged: {problem}; {SET_ASIDE}")
    return manifest


class OtherFormat(StoreError):
    """The folder is intact, but this version cannot read, write or repair its format."""


def problems(manifest: Manifest) -> list[str]:
    """List what is wrong with the values of a manifest."""
    found = [
        f"{name} is not a list of objects"
        for name in ("runs", "references")
        if not isinstance(manifest.get(name), list) or not all(isinstance(e, dict) for e in manifest[name])
    ]
    return found or [
        *(problem for entry in manifest["runs"] for problem in run_problems(entry)),
        *filter(None, map(reference_problem, manifest["references"])),
    ]


def run_problems(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the entry of a run."""
    yield from (f"a run does not name its {name}" for name in REQUIRED if name not in entry)
    for name in RUN_FIELDS.keys() & entry.keys():
        value = entry[name]
        is_wrong = not isinstance(value, RUN_FIELDS[name]) or isinstance(value, bool)
        if isinstance(value, list):
            is_wrong = is_wrong or not all(isinstance(text, str) for text in value)
        if is_wrong or (name == "plan" and not is_hex_name(value)):
            yield f"{name} of runs is {value!r:.60}"


def reference_problem(entry: Mapping[str, Any]) -> str:
    """Describe what is wrong with an entry of references; empty if nothing is.

    {"settings": {name: value, ...}, "values": {name: number or null, ...}} has reference losses by name for
    the trials with these settings; {"settings": ..., "error": "why"} says why they have none.
    """
    settings, values, error = (entry.get(name) for name in ("settings", "values", "error"))
    has_settings = isinstance(settings, dict) and all(
        isinstance(value, (*NUMBER, str)) for value in settings.values()
    )
    has_values = isinstance(values, dict) and all(
        isinstance(value, (*NUMBER, type(None))) and not isinstance(value, bool) for value in values.values()
    )
    is_entry = entry.keys() == {"settings", "values"} and has_values
    is_error = entry.keys() == {"settings", "error"} and isinstance(error, str)
    return "" if has_settings and (is_entry or is_error) else f"references has {entry!r:.80}"


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest; non-finite numbers become null."""
    values = plain(manifest)
    for problem in problems(values):  # never write what could not be read back
        raise StoreError(f"cannot write {folder / MANIFEST}: {problem}")
    content = encode(values)
    write_whole(folder / MANIFEST, lambda file: file.write(content))


def encode(content: Manifest) -> bytes:
    """Encode a manifest, with its digest."""
    text = json.dumps(content | {"digest": digest(content)}, indent=2, allow_nan=False)
    return f"{text}\n".encode()


def digest(content: Mapping[str, Any]) -> str:
    """Compute 16 hexadecimal digits that depend on every value."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def added_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """List the settings that came after the folder's first trials, with their defaults."""
    return {name: value for run in manifest.get("runs", []) for name, value in run.get("added", {}).items()}


def with_unknown_runs(manifest: Manifest, count: int) -> Manifest:
    """Return a manifest with at least `count` runs: those that were lost are entries without any detail.

    A run's number is its place in the list, and trials have the number of theirs: no other run may get it.
    """
    lost = {"sweep": manifest["sweep"], "experiment": experiment_of(manifest)}
    return manifest | {"runs": [*manifest["runs"], *[lost] * (count - len(manifest["runs"]))]}


def code_name(entry: Mapping[str, Any]) -> str:
    """Name the code of a run's experiment: its version, or 8 digits of its fingerprint."""
    code = entry.get("code", {})
    if not code:
        return "code unknown"
    return f"version {code['version']}" if code.keys() == {"version"} else f"code {digest(code)[:8]}"


def arithmetic_in_words(entry: Mapping[str, Any]) -> str:
    """Describe the numbers of a run and the precision of its matrix products; empty if it does not say."""
    options = entry.get("arithmetic", {})
    if not options:
        return ""
    numbers = (
        "float64 where the code does not ask for float32" if options.get("jax_enable_x64") else "float32"
    )
    precision, rounding = options.get("jax_default_matmul_precision"), options.get("round_products")
    if rounding:
        return f"{numbers}, factors of matrix products rounded to {str(rounding).upper()}"
    if precision in FULL_PRECISION:
        return f"{numbers}, matrix products at full precision"
    return f"{numbers}, matrix products at the precision that jax calls {precision}"


def last_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the last run; empty if there is none."""
    runs = manifest.get("runs", [])
    return runs[-1] if runs else {}


def distinct_plans(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entry of the last run of each plan, in the order of their first runs.

    For a refined sweep only the last plan counts: it includes the trials of earlier ones.
    """
    by_plan = {}
    for position, entry in enumerate(manifest["runs"]):
        key = plan_in_words(entry) if "refine" in entry else entry.get("plan", position)
        by_plan[str(key)] = entry
    return list(by_plan.values())


def plan_in_words(entry: Mapping[str, Any]) -> str:
    """Describe the sweep of a run with its overrides, as they were typed."""
    return " ".join([str(entry.get("sweep")), *entry.get("overrides", [])])
