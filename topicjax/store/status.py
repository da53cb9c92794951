"""How far a run folder is: finished trials of each plan, files that are missing, who is writing to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topicjax.store import lock
from topicjax.store.files import StoreError, explained
from topicjax.store.folder import LOCK, TRIALS, check_kind, chunk_of, part_files, plan_path
from topicjax.store.journal import Journal, read_journal
from topicjax.store.manifest import FORMAT, Manifest, distinct_plans, plan_in_words, read_manifest
from topicjax.store.parts import read_columns, read_plan
from topicjax.store.recovery import missing_files


@dataclass(frozen=True)
class PlanStatus:
    """How far one plan is: a sweep with its overrides, as it was asked for."""

    words: str
    planned: int
    finished: int


@dataclass(frozen=True)
class Status:
    """How far a folder is."""

    sweep: str | None
    finished: int
    ok: int
    diverged: int
    planned: int | None  # distinct trials of all plans; None: unknown
    beyond: int  # finished trials that no plan names
    plans: tuple[PlanStatus, ...]
    problems: tuple[str, ...]  # files of finished trials that are missing or cut off
    versions: tuple[str, ...]  # of the code that trained them, if there are several
    running: Mapping[str, Any] | None  # who is writing to the folder; None: nobody


def status(folder: str | Path) -> Status:
    """Return how far a folder is, or raise a StoreError."""
    folder = Path(folder)
    check_kind(folder)
    manifest, found = read_manifest(folder), read_journal(folder) or Journal()
    finished, diverged = finished_trials(folder, found)
    problems = list(missing_files(folder, found)) if manifest.get("format") == FORMAT else []
    plans, planned_ids = [], set()
    for entry in distinct_plans(manifest) if manifest else ():
        try:
            trial_ids = planned_trials(folder, entry, found)
        except StoreError as error:
            problems.append(str(error))
            continue
        planned_ids |= trial_ids
        plans.append(PlanStatus(plan_in_words(entry), len(trial_ids), len(trial_ids & finished)))
    with explained("read", folder / LOCK):
        running = lock.holder(folder / LOCK)
    planned = len(planned_ids) or last_planned(manifest)
    return Status(
        sweep=manifest.get("sweep") or None,
        finished=len(finished),
        ok=len(finished) - diverged,
        diverged=diverged,
        planned=planned,
        beyond=len(finished - planned_ids) if planned_ids else 0,
        plans=tuple(plan for plan in plans if plan.planned),
        problems=tuple(problems),
        versions=code_versions(manifest),
        running=running,
    )


def finished_trials(folder: Path, found: Journal) -> tuple[set[str], int]:
    """Return the finished trials and how many of them diverged.

    The journal knows without opening a table; parts that it does not know are read.
    """
    trial_ids: set[str] = set()
    diverged, unknown = 0, []
    for path in part_files(folder / TRIALS):
        commit = found.commits.get(chunk_of(path))
        if commit is None:
            unknown.append(path)
        else:
            trial_ids.update(commit.trial_ids)
            diverged += commit.diverged
    table = read_columns(unknown, ["trial_id", "status"])
    trial_ids.update(table["trial_id"].to_pylist())
    return trial_ids, diverged + table["status"].to_pylist().count("diverged")


def committed(folder: Path) -> set[str]:
    """Return the ids of all trials that are finished in a folder."""
    return finished_trials(folder, read_journal(folder) or Journal())[0]


def code_versions(manifest: Manifest) -> tuple[str, ...]:
    """Return the versions and commits of the code that trained the trials, if there are several."""
    found = {}
    for entry in manifest.get("runs", []):
        if entry.get("trials"):
            version = (
                f"topicjax {entry.get('versions', {}).get('topicjax')}, commit {entry.get('git_commit')}"
            )
            found[f"{version}, jax {entry.get('versions', {}).get('jax')}"] = None
    return tuple(found) if len(found) > 1 else ()


def planned_trials(folder: Path, entry: Mapping[str, Any], found: Journal) -> set[str]:
    """Return the ids of the trials that a run was asked for; empty if the folder does not say."""
    if "plan" not in entry:
        return set()
    path = plan_path(folder, entry["plan"])
    return set(read_plan(path, found.plans.get(entry["plan"])))


def last_planned(manifest: Manifest) -> int | None:
    """Return how many trials a folder of format 1 was to hold."""
    runs = manifest.get("runs", [])
    return runs[-1].get("planned") if runs else None
