"""Verify and repair a run folder: compare every byte with its checksum, and set aside what is damaged.

Nothing is deleted: damaged files and the other files of their chunks are moved to set_aside/, and the next
run computes those trials again.  Files are moved before the journal drops them, so a repair that is killed
can be repeated.
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from topicjax.store import checkpoints, files, journal, measured
from topicjax.store.files import (
    CHECKPOINTS,
    COLUMNS,
    JOURNAL,
    MANIFEST,
    SET_ASIDE,
    TABLES,
    TRIALS,
    StoreError,
    check_kind,
    chunk_of,
    explained,
    files_of,
    first_line,
    is_hex_name,
    is_known,
    make_folder,
    part_files,
    part_path,
    partial_path,
    plan_path,
    read_regular,
    state_path,
    sync,
    write_whole,
)
from topicjax.store.journal import (
    Commit,
    Journal,
    commit_of,
    read_journal,
    unknown_files,
    unknown_in_words,
    unknown_parts,
)
from topicjax.store.manifest import (
    Manifest,
    OtherFormat,
    encode,
    new_manifest,
    read_manifest,
    with_unknown_runs,
    write_manifest,
)
from topicjax.store.parts import (
    Columns,
    check_rows,
    incomplete_trials,
    largest_run,
    read_part,
    read_plan,
    read_schema,
    snapshot_places,
    tables_of,
    write_columns,
)

BLOCK = 64  # trials whose weights are read together
LOCATION = ("trial_id", "chunk", "row", "snapshot_steps", "snapshot_checksums")
Say = Callable[[int, int], object]  # called with the number of chunks checked so far, and of all chunks


@dataclass(frozen=True)
class Problem:
    """A file that is not as it was written; `chunk` names the trials to compute again, if any."""

    path: Path
    sentence: str
    chunk: str | None = None


@dataclass
class Verdict:
    """Result of `verify`."""

    problems: list[Problem] = field(default_factory=list)
    chunks: int = 0
    trials: int = 0
    bytes_read: int = 0
    last_run: int = 0  # the largest number of a run that trials name


def verify(folder: Path, say: Say = lambda done, total: None) -> Verdict:
    """Read everything in a run folder and report what is not as it was written."""
    check_kind(folder)
    verdict = Verdict()
    manifest = check_manifest(folder, verdict)
    found = check_journal(folder, verdict)
    verdict.problems += check_plans(folder, manifest, found)
    chunks = sorted({chunk_of(path) for path in part_files(folder / TRIALS)} | found.commits.keys())
    for done, chunk in enumerate(chunks):
        say(done, len(chunks))
        verdict.problems += check_chunk(folder, chunk, found.commits.get(chunk), verdict, manifest)
    say(len(chunks), len(chunks))
    verdict.problems += check_run_numbers(folder, verdict.last_run)
    unknown = unknown_files(folder, found)
    verdict.problems += [Problem(path, unknown_in_words(folder, path)) for path in unknown]
    verdict.problems += check_states(folder, found)
    verdict.problems += check_measured(folder, found, verdict)
    verdict.problems += check_column_files(folder)
    verdict.chunks = len(chunks)
    return verdict


def check_measured(folder: Path, found: Journal, verdict: Verdict) -> Iterator[Problem]:
    """Yield the parts of measured/ that are damaged or missing, and those that the journal does not know."""
    for part, own in sorted(found.measured.items()):
        path = measured.place_of(folder, part)
        try:
            read_part(path, measured.KEYS, own.file, measured.AGAIN)
            verdict.bytes_read += own.file.size
        except StoreError as error:
            yield Problem(path, str(error))
    for part in measured.unknown_measured(folder, found):
        path = measured.place_of(folder, part)
        try:
            measured.describe(folder, part)
        except StoreError as error:
            yield Problem(path, str(error))
        else:  # `repair` takes it into the journal again
            yield Problem(folder / JOURNAL, f"{unknown_in_words(folder, path)}: its checksum is lost")


def check_column_files(folder: Path) -> Iterator[Problem]:
    """Yield the tables in which pandas would not see the columns of some parts."""
    for name in TABLES:
        path = folder / name / COLUMNS
        if hidden_columns(folder, name):
            yield Problem(path, f"{path} does not list every column; `topicjax repair` writes it again")


def hidden_columns(folder: Path, table: str) -> Columns:
    """Return all columns of a table if pandas, which takes those of the first file, would miss one."""
    columns: Columns = {}
    paths = [part_path(folder / table, chunk_of(path)) for path in part_files(folder / TRIALS)]
    first: Columns | None = None
    for path in [folder / table / COLUMNS, *paths]:
        with contextlib.suppress(StoreError):  # one that cannot be read is a problem of its chunk
            if path.exists():
                own = read_schema(path)
                first = own if first is None else first
                columns |= own
    return columns if columns.keys() != (first or {}).keys() else {}


def mend_column_files(folder: Path) -> None:
    """Write columns.parquet again where it does not list every column."""
    for name in TABLES:
        if columns := hidden_columns(folder, name):
            write_columns(folder, name, pa.schema(list(columns.items())))


def check_manifest(folder: Path, verdict: Verdict) -> Manifest:
    """Read the manifest; one without runs if it is damaged or missing."""
    path = folder / MANIFEST
    try:
        manifest = read_manifest(folder)
        if not manifest:
            raise StoreError(f"{path} is missing")
        with explained("read", path):
            if read_regular(path) != encode(manifest):
                raise StoreError(f"{path} was changed, though not what it says")
        return manifest
    except OtherFormat:
        raise
    except StoreError as error:
        verdict.problems.append(Problem(path, str(error)))
        return new_manifest("")


def check_journal(folder: Path, verdict: Verdict) -> Journal:
    """Read the journal, or what is left of it if it is damaged."""
    path = folder / JOURNAL
    try:
        found = read_journal(folder)
    except StoreError as error:
        verdict.problems.append(Problem(path, str(error)))
        return read_journal(folder, skip_damaged=True)
    if found.is_torn:
        verdict.problems.append(Problem(path, f"{path} ends in the middle of a line"))
    for part in unknown_parts(folder, found)[:1]:
        verdict.problems.append(Problem(path, f"{unknown_in_words(folder, part)}: its checksums are lost"))
    return found


def check_run_numbers(folder: Path, last: int) -> Iterator[Problem]:
    """Yield a problem if trials name a run that the manifest lacks, as in a copy taken during that run.

    The manifest is read again: a run that goes on writes its entry before its first trials.
    """
    with contextlib.suppress(StoreError):  # a damaged manifest is a problem already
        manifest = read_manifest(folder)
        if manifest and last > len(manifest["runs"]):
            path = folder / MANIFEST
            yield Problem(path, f"{path} does not know run {last}, which trials name")


def check_plans(folder: Path, manifest: Manifest, found: Journal) -> Iterator[Problem]:
    """Yield the plans that are damaged, or missing though the manifest names them."""
    named = {entry["plan"] for entry in manifest["runs"] if "plan" in entry}
    for plan in sorted(named | found.plans.keys()):
        path = plan_path(folder, plan)
        if plan not in named and not path.exists():
            continue
        try:
            read_plan(path, found.plans.get(plan))
        except StoreError as error:
            yield Problem(path, str(error))


def check_chunk(
    folder: Path, chunk: str, commit: Commit | None, verdict: Verdict, manifest: Manifest
) -> Iterator[Problem]:
    """Yield what is wrong with the files of one finished chunk."""
    path = part_path(folder / TRIALS, chunk)
    if not is_hex_name(chunk):
        yield Problem(path, f"{path} is not part of a run: its name is not 12 hexadecimal digits")
        return
    marks, rows, trials = commit.files if commit else {}, [], None
    try:
        trials = read_part(path, None, marks.get(TRIALS))
        rows = read_rows(path, trials)
        verdict.trials += len(rows)
        verdict.last_run = max(verdict.last_run, largest_run(trials))
        verdict.bytes_read += path.stat().st_size
    except StoreError as error:
        yield Problem(path, str(error), chunk)
    for name in (name for name in marks or tables_of(folder, trials) if name != TRIALS):
        path = part_path(folder / name, chunk)
        try:
            table = read_part(path, None, marks.get(name))
            verdict.bytes_read += path.stat().st_size
            if rows and set(table["trial_id"].to_pylist()) != {row["trial_id"] for row in rows}:
                raise StoreError(f"{path} has records of other trials than {TRIALS}/")
            if trials is not None:
                for problem in incomplete_trials(trials, table, keeps_end(trials, manifest)):
                    raise StoreError(f"{path} is not whole: {problem}")
        except (StoreError, KeyError) as error:
            yield Problem(path, str(error), chunk)
    yield from check_snapshots(
        folder / CHECKPOINTS / chunk, chunk, rows, commit.snapshots if commit else {}, verdict
    )


def keeps_end(trials: pa.Table, manifest: Manifest) -> bool:
    """Whether the final weights of these trials should have been kept, and the experiment has any."""
    runs = manifest["runs"]
    numbers = set(trials["run"].to_pylist()) if "run" in trials.column_names else set()
    wanted = [str(runs[number - 1].get("snapshots")) for number in numbers if 0 < number <= len(runs)]
    has_weights = any(trials["snapshot_steps"].to_pylist())
    return has_weights and any(text == "last" or text.startswith("log:") for text in wanted)


def read_rows(path: Path, table: pa.Table) -> list[dict[str, Any]]:
    """Read where the weights of a part's trials are, or raise a StoreError."""
    missing = set(LOCATION) - set(table.column_names)
    if missing:
        raise StoreError(f"{path} is not part of a run: it has no column {min(missing)}")
    rows = table.select(list(LOCATION)).to_pylist()
    check_rows(rows, path)
    for row in rows:
        sums = row["snapshot_checksums"]
        if row["chunk"] != chunk_of(path) or sums is None or len(sums) != len(row["snapshot_steps"]):
            raise StoreError(f"{path} does not say where the weights of trial {row['trial_id']} are")
    return rows


def check_snapshots(
    folder: Path, chunk: str, rows: list[dict[str, Any]], trees: Mapping[int, str], verdict: Verdict
) -> Iterator[Problem]:
    """Yield the snapshots of a chunk that are missing or whose weights differ from what was written.

    The journal has a checksum of all files of a snapshot.  If that is lost, each trial has its own.
    """
    wanted: dict[int, dict[int, str]] = {step: {} for step in trees}  # by step and place
    places = snapshot_places(row["snapshot_steps"] for row in rows)
    for row, own in zip(rows, places, strict=True):
        for (step, place), written in zip(own.items(), row["snapshot_checksums"], strict=True):
            wanted.setdefault(step, {})[place] = written
    for step, sums in sorted(wanted.items()):
        path = folder / str(step)
        try:
            if step not in trees:
                check_weights(path, sums)
            elif checkpoints.tree_checksum(path) != trees[step]:
                raise ValueError("its files are not those that were written")
            verdict.bytes_read += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        except Exception as error:  # damaged checkpoints may raise any exception
            why = "it is missing" if isinstance(error, FileNotFoundError) else first_line(error)
            yield Problem(path, f"the snapshot {path} is damaged: {why.split(' [tensorstore')[0]}", chunk)


def check_weights(path: Path, sums: Mapping[int, str]) -> None:
    """Raise unless the weights in a snapshot match their checksums, given by index."""
    for start in range(0, max(sums) + 1, BLOCK):
        block = slice(start, min(start + BLOCK, max(sums) + 1))
        structure, leaves = checkpoints.read_trials(path, block)
        for place in range(block.start, block.stop):
            own = {name: array[place - start] for name, array in leaves.items()}
            if place in sums and checkpoints.checksum(structure, own) != sums[place]:
                raise ValueError(f"the weights in row {place} are not those written")


def check_states(folder: Path, found: Journal) -> Iterator[Problem]:
    """Yield the damaged states: saved ones of unfinished chunks, and final ones of finished trials."""
    paths = [partial_path(folder, chunk) for chunk in sorted(found.begun)]
    for path in [*paths, *(state_path(folder, chunk) for chunk in sorted(found.commits))]:
        try:
            checkpoints.load_state(path)
        except checkpoints.OtherVersion:
            continue
        except checkpoints.StateError as error:
            yield Problem(path, f"{path} {error}; trials that need it start again")


def repair(folder: Path, say: Say = lambda done, total: None) -> tuple[Verdict, list[Path]]:
    """Move damaged files into set_aside/; return what was found, and where the files are now."""
    check_kind(folder)
    descriptor = files.lock_folder(folder)
    try:
        with explained("write", folder):
            files.sync_names(folder)
        verdict = verify(folder, say)
        check_ours(folder, verdict)
        with explained("write", folder):
            return verdict, set_aside(folder, verdict.problems) if verdict.problems else []
    finally:
        files.unlock_folder(folder, descriptor)


def check_ours(folder: Path, verdict: Verdict) -> None:
    """Raise a StoreError if only the name of a damaged manifest suggests that this is a run folder."""
    path = folder / MANIFEST
    is_damaged = path in {problem.path for problem in verdict.problems}
    if is_damaged and not is_known(folder):
        what = "is damaged or not of a run" if path.exists() else "is missing"
        raise StoreError(
            f"{path} {what}, and there are no trials: nothing to repair; allowed: another folder (--out)"
        )


def set_aside(folder: Path, problems: Iterable[Problem]) -> list[Path]:
    """Move the files of these problems, and all other files of the same chunks; return their new paths."""
    problems, found = list(problems), read_journal(folder, skip_damaged=True)
    place = new_place(folder)
    chunks = {problem.chunk for problem in problems if problem.chunk is not None}
    single = {problem.path for problem in problems if problem.chunk is None}
    replaced = single & {folder / MANIFEST, folder / JOURNAL}
    paths = sorted(single - replaced)
    paths += [
        path for chunk in sorted(chunks) for path in files_of(folder, chunk) if is_ours(path, found, chunk)
    ]
    moved = [copy(path, folder, place) for path in sorted(replaced) if path.exists()]
    paths = [path for path in paths if os.path.lexists(path)]
    moved += [move(path, folder, place) for path in paths]
    for parent in {path.parent for path in (*paths, *moved)}:
        sync(parent)  # both names of what was moved, before the journal forgets it
    damaged = [part for part in sorted(found.measured) if measured.place_of(folder, part) in single]
    gone = [
        *({"event": "drop", "chunk": chunk} for chunk in sorted(chunks)),
        *(journal.measure_entry("unmeasured", part) for part in damaged),
    ]
    if folder / JOURNAL in single:
        rewrite_journal(folder, found, chunks, gone)
    elif gone:
        journal.append(folder, *gone)
    mend_manifest(folder, found.sweep)
    mend_column_files(folder)
    sync(folder)
    return moved


def is_ours(path: Path, found: Journal, chunk: str) -> bool:
    """Check whether a path of a chunk may be moved; behind a link, only what the journal knows."""
    return chunk in found.commits or chunk in found.begun or not path.parent.is_symlink()


def rewrite_journal(
    folder: Path, found: Journal, damaged: set[str], gone: Iterable[Mapping[str, Any]]
) -> None:
    """Rebuild the journal from its undamaged lines, those of what is gone, and the complete parts."""
    for entry in gone:
        found.apply(entry)
    for path in part_files(folder / TRIALS):
        chunk = chunk_of(path)
        if chunk not in found.commits and chunk not in damaged:
            found.apply(journal.commit_entry(commit_of(folder, chunk)))
    for part in measured.unknown_measured(folder, found):
        own = measured.describe(folder, part)
        found.apply(journal.measure_entry("measured", part, own))
    journal.replace(folder, found)


def mend_manifest(folder: Path, sweep: str) -> None:
    """Rewrite the manifest if it cannot be read, drop plans whose files are missing, count lost runs."""
    try:
        manifest = read_manifest(folder) or new_manifest(sweep)
    except StoreError:
        manifest = new_manifest(sweep)
    last = max((largest_run(read_part(path, None)) for path in part_files(folder / TRIALS)), default=0)
    manifest = with_unknown_runs(manifest, last)
    runs = [
        entry
        if "plan" not in entry or plan_path(folder, entry["plan"]).exists()
        else {name: value for name, value in entry.items() if name != "plan"}
        for entry in manifest["runs"]
    ]
    write_manifest(folder, manifest | {"runs": runs})


def new_place(folder: Path) -> Path:
    """Create a folder in set_aside/, named after the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1000):
        place = folder / SET_ASIDE / (stamp if not number else f"{stamp}-{number}")
        try:
            make_folder(place.parent)
            place.mkdir()
            sync(place.parent)
        except FileExistsError:
            continue
        return place
    raise StoreError(f"{folder / SET_ASIDE} is full")


def move(path: Path, folder: Path, place: Path) -> Path:
    """Move a file or folder to the same relative path below `place`; return its new path."""
    target = place / path.relative_to(folder)
    make_folder(target.parent)
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        move_to_disk(path, target)  # behind a link to another disk
    return target


def move_to_disk(path: Path, target: Path) -> None:
    """Move a file or a folder to another disk; the copy is synced before the original is removed."""
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder:
        shutil.copytree(path, target, symlinks=True)
    else:
        shutil.copy2(path, target, follow_symlinks=False)
    for copied in (target, *target.rglob("*")):
        if not copied.is_symlink():
            sync(copied)
    sync(target.parent)
    shutil.rmtree(path) if is_folder else path.unlink()


def copy(path: Path, folder: Path, place: Path) -> Path:
    """Copy a file to the same relative path below `place`; return the path of the copy."""
    target = place / path.relative_to(folder)
    content = read_regular(path)
    write_whole(target, lambda file: file.write(content))
    return target
