"""Is a run folder what was written?  Every byte is read and checked against the checksums kept with it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from topicjax.store import checkpoints
from topicjax.store.files import StoreError, first_line, is_hex_name
from topicjax.store.folder import (
    CHECKPOINTS,
    JOURNAL,
    MANIFEST,
    PARTIAL,
    TRAJECTORIES,
    TRIALS,
    check_kind,
    part_files,
    part_path,
    plan_path,
)
from topicjax.store.journal import Journal, read_journal
from topicjax.store.manifest import FORMAT, read_manifest
from topicjax.store.parts import read_part
from topicjax.store.recovery import scan

BLOCK = 64  # trials whose weights are read together
COLUMNS = ("trial_id", "row", "snapshot_steps", "snapshot_checksums")
Say = Callable[[int, int], object]  # is called with the chunks that are done and all chunks


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written; `chunk` is whose trials must be computed again, if any."""

    path: Path
    sentence: str
    chunk: str | None = None


@dataclass
class Verdict:
    """What verify found."""

    problems: list[Problem] = field(default_factory=list)
    chunks: int = 0
    trials: int = 0
    bytes_read: int = 0


def verify(folder: Path, say: Say = lambda done, total: None) -> Verdict:
    """Read everything in a run folder and return what is not as it was written."""
    check_kind(folder)
    verdict = Verdict()
    version = check_manifest(folder, verdict)
    found = check_journal(folder, verdict, needed=version == FORMAT)
    names = {path.stem.removeprefix("part-") for path in part_files(folder / TRIALS)}
    chunks = sorted(names | found.commits.keys())
    for done, chunk in enumerate(chunks):
        say(done, len(chunks))
        verdict.problems += check_chunk(folder, chunk, found, verdict, has_sums=version == FORMAT)
    say(len(chunks), len(chunks))
    verdict.problems += check_states(folder)
    verdict.chunks = len(chunks)
    return verdict


def check_manifest(folder: Path, verdict: Verdict) -> int:
    """Check the manifest and the plans it names; return the format of the folder."""
    try:
        manifest = read_manifest(folder)
        if not manifest:
            raise StoreError(f"{folder / MANIFEST} is missing")
    except StoreError as error:
        verdict.problems.append(Problem(folder / MANIFEST, str(error)))
        return FORMAT
    for plan in {entry["plan"] for entry in manifest["runs"] if "plan" in entry}:
        path = plan_path(folder, plan)
        try:
            read_part(path, ["trial_id"])
        except StoreError as error:
            verdict.problems.append(Problem(path, str(error)))
    return manifest["format"]


def check_journal(folder: Path, verdict: Verdict, needed: bool) -> Journal:
    """Return the journal; an empty one if it is damaged or missing."""
    path = folder / JOURNAL
    try:
        found = read_journal(folder)
    except StoreError as error:
        verdict.problems.append(Problem(path, str(error)))
        return Journal()
    if found is None and needed and part_files(folder / TRIALS):
        verdict.problems.append(Problem(path, f"{path} is missing: its checksums are lost"))
    return found or Journal()


def check_chunk(
    folder: Path, chunk: str, found: Journal, verdict: Verdict, has_sums: bool
) -> Iterator[Problem]:
    """Give what is wrong with the files of one finished chunk."""
    commit, rows = found.commits.get(chunk), []
    if not is_hex_name(chunk):
        path = part_path(folder / TRIALS, chunk)
        yield Problem(path, f"{path} is no part of a run: its name is not 12 hexadecimal digits")
        return
    for name in (TRIALS, TRAJECTORIES):
        path = part_path(folder / name, chunk)
        try:
            table = read_part(path, None, commit.files.get(name) if commit else None)
            verdict.bytes_read += path.stat().st_size
            if name == TRIALS:
                columns = [column for column in COLUMNS if column in table.column_names]
                rows = table.select(columns).to_pylist()
                verdict.trials += len(rows)
            elif rows and set(table["trial_id"].to_pylist()) != {row["trial_id"] for row in rows}:
                yield Problem(path, f"{path} has records of other trials than {TRIALS}/", chunk)
        except (StoreError, KeyError) as error:
            yield Problem(path, str(error), chunk)
    if has_sums:
        trees = commit.snapshots if commit else {}
        yield from check_snapshots(folder / CHECKPOINTS / chunk, chunk, rows, trees, verdict)


def check_snapshots(
    folder: Path, chunk: str, rows: list[dict[str, Any]], trees: Mapping[int, str], verdict: Verdict
) -> Iterator[Problem]:
    """Give the snapshots of a chunk that are missing or have other weights than were written."""
    wanted: dict[int, dict[int, str]] = {}
    for row in rows:
        sums = zip(row["snapshot_steps"].split(), row["snapshot_checksums"].split(), strict=True)
        for step, written in sums:
            wanted.setdefault(int(step), {})[row["row"]] = written
    for step, sums in sorted(wanted.items()):
        path = folder / str(step)
        try:
            if step in trees and checkpoints.tree_checksum(path) != trees[step]:
                raise ValueError("its files are not those that were written")
            for start in range(0, max(sums) + 1, BLOCK):
                block = checkpoints.read_trials(path, slice(start, min(start + BLOCK, max(sums) + 1)))
                verdict.bytes_read += sum(array.nbytes for array in block.values())
                for place in range(start, start + len(next(iter(block.values())))):
                    own = {name: np.asarray(array[place - start]) for name, array in block.items()}
                    if place in sums and checkpoints.checksum(own) != sums[place]:
                        raise ValueError(f"the weights in row {place} are not those written")
        except Exception as error:  # damaged checkpoints raise almost anything
            why = "it is missing" if isinstance(error, FileNotFoundError) else first_line(error)
            yield Problem(path, f"the snapshot {path} is damaged: {why.split(' [tensorstore')[0]}", chunk)


def check_states(folder: Path) -> Iterator[Problem]:
    """Give the saved states that cannot be read."""
    for entry in scan(folder / PARTIAL):
        chunk = entry.name.removesuffix(".npz")
        if is_hex_name(chunk) and checkpoints.load_state(Path(entry.path)) is None:
            yield Problem(Path(entry.path), f"{entry.path} is damaged: its trials start again", chunk)
