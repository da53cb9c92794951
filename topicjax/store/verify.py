"""Is a run folder what was written?  Every byte is read and checked against the checksums kept with it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from topicjax.store import checkpoints
from topicjax.store.files import StoreError, explained, first_line, is_hex_name, read_regular
from topicjax.store.folder import (
    CHECKPOINTS,
    JOURNAL,
    MANIFEST,
    PARTIAL,
    TRIALS,
    check_kind,
    chunk_of,
    ids_name,
    part_files,
    part_path,
    plan_path,
    state_path,
    tables_of,
)
from topicjax.store.journal import Commit, Journal, read_journal, salvage
from topicjax.store.manifest import FORMAT, Manifest, encode, read_manifest
from topicjax.store.parts import check_rows, incomplete_trials, read_part, read_plan, snapshot_places
from topicjax.store.recovery import unknown_parts

BLOCK = 64  # trials whose weights are read together
COLUMNS = ("trial_id", "chunk", "row", "snapshot_steps", "snapshot_checksums")
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
    manifest = check_manifest(folder, verdict)
    found = check_journal(folder, verdict, needed=manifest["format"] == FORMAT)
    verdict.problems += check_plans(folder, manifest, found)
    chunks = sorted({chunk_of(path) for path in part_files(folder / TRIALS)} | found.commits.keys())
    for done, chunk in enumerate(chunks):
        say(done, len(chunks))
        verdict.problems += check_chunk(folder, chunk, found.commits.get(chunk), verdict, manifest)
    say(len(chunks), len(chunks))
    verdict.problems += check_states(folder, found)
    verdict.chunks = len(chunks)
    return verdict


def check_manifest(folder: Path, verdict: Verdict) -> Manifest:
    """Return the manifest; one without runs if it is damaged or missing."""
    path = folder / MANIFEST
    try:
        manifest = read_manifest(folder)
        if not manifest:
            raise StoreError(f"{path} is missing")
        with explained("read", path):
            if manifest["format"] == FORMAT and read_regular(path) != encode(manifest):
                raise StoreError(f"{path} was changed, though not what it says")
        return manifest
    except StoreError as error:
        verdict.problems.append(Problem(path, str(error)))
        return {"format": FORMAT, "runs": []}


def check_journal(folder: Path, verdict: Verdict, needed: bool) -> Journal:
    """Return the journal; what is left of it if it is damaged."""
    path = folder / JOURNAL
    try:
        found = read_journal(folder) or Journal()
    except StoreError as error:
        verdict.problems.append(Problem(path, str(error)))
        return salvage(folder)
    if found.is_torn:
        verdict.problems.append(Problem(path, f"{path} ends in the middle of a line"))
    unknown = unknown_parts(folder, found) if needed else []
    if unknown:
        verdict.problems.append(Problem(path, f"{path} does not know {unknown[0]}: its checksums are lost"))
    return found


def check_plans(folder: Path, manifest: Manifest, found: Journal) -> Iterator[Problem]:
    """Give the plans that are damaged, or missing though the manifest names them."""
    named = {entry["plan"] for entry in manifest["runs"] if "plan" in entry}
    for plan in sorted(named | found.plans.keys()):
        path = plan_path(folder, plan)
        if plan not in named and not path.exists():
            continue
        try:
            if ids_name(read_plan(path, found.plans.get(plan))) != plan:
                raise StoreError(f"{path} is damaged: it has other trials than its name says")
        except StoreError as error:
            yield Problem(path, str(error))


def check_chunk(
    folder: Path, chunk: str, commit: Commit | None, verdict: Verdict, manifest: Manifest
) -> Iterator[Problem]:
    """Give what is wrong with the files of one finished chunk."""
    path = part_path(folder / TRIALS, chunk)
    if not is_hex_name(chunk):
        yield Problem(path, f"{path} is no part of a run: its name is not 12 hexadecimal digits")
        return
    marks, rows, trials = commit.files if commit else {}, [], None
    has_sums = manifest["format"] == FORMAT
    try:
        trials = read_part(path, None, marks.get(TRIALS))
        rows = read_rows(path, trials, COLUMNS if has_sums else COLUMNS[:-1])
        verdict.trials += len(rows)
        verdict.bytes_read += path.stat().st_size
    except StoreError as error:
        yield Problem(path, str(error), chunk)
    for name in (name for name in marks or tables_of(folder) if name != TRIALS):
        path = part_path(folder / name, chunk)
        try:
            table = read_part(path, None, marks.get(name))
            verdict.bytes_read += path.stat().st_size
            if rows and set(table["trial_id"].to_pylist()) != {row["trial_id"] for row in rows}:
                raise StoreError(f"{path} has records of other trials than {TRIALS}/")
            if trials is not None and has_sums:
                for problem in incomplete_trials(trials, table, keeps_end(trials, manifest)):
                    raise StoreError(f"{path} is not whole: {problem}")
        except (StoreError, KeyError) as error:
            yield Problem(path, str(error), chunk)
    if has_sums:
        trees = commit.snapshots if commit else {}
        yield from check_snapshots(folder / CHECKPOINTS / chunk, chunk, rows, trees, verdict)


def keeps_end(trials: pa.Table, manifest: Manifest) -> bool:
    """Return whether the weights that these trials ended with were to be kept, and there are any to keep."""
    runs, numbers = (
        manifest["runs"],
        set(trials["run"].to_pylist()) if "run" in trials.column_names else set(),
    )
    wanted = [str(runs[number - 1].get("snapshots")) for number in numbers if 0 < number <= len(runs)]
    has_weights = any(trials["snapshot_steps"].to_pylist())
    return has_weights and any(text == "last" or text.startswith("log:") for text in wanted)


def read_rows(path: Path, table: pa.Table, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return where the weights of a part's trials are, or raise a StoreError."""
    missing = set(columns) - set(table.column_names)
    if missing:
        raise StoreError(f"{path} is not part of a run: it has no column {min(missing)}")
    rows = table.select(list(columns)).to_pylist()
    check_rows(rows, path)
    for row in rows:
        sums = row.get("snapshot_checksums", row["snapshot_steps"])
        if row["chunk"] != chunk_of(path) or len(str(sums).split()) != len(row["snapshot_steps"].split()):
            raise StoreError(f"{path} does not say where the weights of trial {row['trial_id']} are")
    return rows


def check_snapshots(
    folder: Path, chunk: str, rows: list[dict[str, Any]], trees: Mapping[int, str], verdict: Verdict
) -> Iterator[Problem]:
    """Give the snapshots of a chunk that are missing or have other weights than were written."""
    wanted: dict[int, dict[int, str]] = {}
    places = snapshot_places([[int(step) for step in row["snapshot_steps"].split()] for row in rows])
    for row, own in zip(rows, places, strict=True):
        for (step, place), written in zip(own.items(), row["snapshot_checksums"].split(), strict=True):
            wanted.setdefault(step, {})[place] = written
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


def check_states(folder: Path, found: Journal) -> Iterator[Problem]:
    """Give the damaged states: those of unfinished chunks, and those that finished trials ended in."""
    paths = [folder / PARTIAL / f"{chunk}.npz" for chunk in sorted(found.begun)]
    for path in [*paths, *(state_path(folder, chunk) for chunk in sorted(found.commits))]:
        try:
            checkpoints.load_state(path)
        except checkpoints.OtherVersion:
            continue
        except checkpoints.StateError as error:
            yield Problem(path, f"{path} {error}; trials that need it start again")
