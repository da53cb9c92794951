"""Parquet parts: the tables of a run folder, stored as one small file per chunk and read as one."""

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.pace import PER_DECADE, record_count
from topicjax.store.files import (
    COLUMNS,
    DETAILS,
    TABLES,
    TRAJECTORIES,
    TRIALS,
    FileMark,
    StoreError,
    chunk_of,
    first_line,
    is_hex_name,
    part_files,
    part_path,
    read_regular,
    reason,
    write_whole,
)

REPAIR = "`topicjax repair` sets its trials aside, and the next run computes them again"
FORGET = "`topicjax repair` forgets that plan, and the next run writes its own"
COMPLETE = ("trial_id", "stopped_step", "stop_reason", "record_every", "snapshot_steps")
TABLES_KEY = (
    b"topicjax_tables"  # in the metadata of a part of trials/: the tables in which its chunk has parts
)
SNAPSHOT_COLUMNS = {"snapshot_steps": pa.list_(pa.int64()), "snapshot_checksums": pa.list_(pa.string())}

Columns = dict[str, pa.DataType]  # types of a table's columns, by name


def make_tables(
    trials: pd.DataFrame,
    trajectories: pd.DataFrame,
    details: pd.DataFrame | None,
    checksums: Sequence[Sequence[str]],
) -> dict[str, pa.Table]:
    """Make the parts of a chunk by table, in the order in which they are written.

    `checksums` are those of each trial's snapshots.  Column types do not depend on the values in a part.  The
    part of trials/ names the other parts: it is written last, and a copy of the folder may lack them.
    """
    snapshots = zip(SNAPSHOT_COLUMNS.items(), (trials["snapshot_steps"].tolist(), checksums), strict=True)
    settled = trials.drop(columns="snapshot_steps").astype({"diverged_step": "float64"})
    frames = {TRAJECTORIES: trajectories, TRIALS: settled}
    frames = frames if details is None else {DETAILS: details, **frames}
    tables = {name: pa.Table.from_pandas(frame, preserve_index=False) for name, frame in frames.items()}
    for (name, kind), values in snapshots:
        tables[TRIALS] = tables[TRIALS].append_column(name, pa.array(values, kind))
    said = {**(tables[TRIALS].schema.metadata or {}), TABLES_KEY: " ".join(tables).encode()}
    tables[TRIALS] = tables[TRIALS].replace_schema_metadata(said)
    return tables


def tables_of(folder: Path, trials: pa.Table | None) -> tuple[str, ...]:
    """List the tables in which a chunk has parts, given its part of trials/ if that can be read.

    One that does not say so, of an earlier version, has details if any chunk of the folder has.
    """
    said = ((trials.schema.metadata or {}) if trials is not None else {}).get(TABLES_KEY, b"")
    named = tuple(name for name in TABLES if name.encode() in said.split())
    return named or (TABLES if part_files(folder / DETAILS) else TABLES[1:])


def column_types(schema: pa.Schema) -> Columns:
    """Map each column name to its type."""
    return dict(zip(schema.names, schema.types, strict=True))


def write_table(path: Path, table: pa.Table) -> FileMark:
    """Write a parquet file atomically, with page checksums; return its mark."""
    with io.BytesIO() as buffer:
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        content = buffer.getvalue()
    write_whole(path, lambda file: file.write(content))
    return FileMark.of(content)


def read_columns(
    parts: Sequence[Path],
    columns: Sequence[str] | None = None,
    marks: Mapping[Path, FileMark] = MappingProxyType({}),
) -> pa.Table:
    """Read these columns (default: all) of all parts as one table, checked against their marks.

    A column that only some parts have is null in the others: nothing is dropped.
    """
    tables = [read_part(path, columns, marks.get(path)) for path in parts]
    if not tables:
        return pa.table({name: pa.array([], pa.string()) for name in columns or ()})
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise StoreError(
            f"the parts of {parts[0].parent} differ in their columns: {first_line(error)}"
        ) from error


def read_part(
    path: Path, columns: Sequence[str] | None, mark: FileMark | None = None, mend: str = REPAIR
) -> pa.Table:
    """Read these columns (default: all) of a part, or raise a StoreError that names it.

    Its bytes are checked against the journal's mark, or without one against the checksums of its pages.
    """
    with explained_part(path, mend):
        content = read_regular(path)
        if mark is not None and FileMark.of(content) != mark:
            raise pa.ArrowInvalid("its bytes are not those that were written")
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=mark is None) as file:
            table = file.read(None if columns is None else list(columns))
    for name in columns or ():
        if name not in table.column_names:
            raise StoreError(f"{path} is not part of a run: it has no column {name}")
    return table


@contextlib.contextmanager
def explained_part(path: Path, mend: str) -> Iterator[None]:
    """Turn any error from reading a part into a StoreError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {mend}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise StoreError(f"cannot read {path}: {reason(error)}") from error
        raise StoreError(f"{path} is damaged: {first_line(error)}; {mend}") from error


def read_schema(path: Path) -> Columns:
    """Read the columns of a part, or raise a StoreError that names it."""
    with explained_part(path, REPAIR):
        return column_types(pq.read_schema(pa.BufferReader(read_regular(path))))


def read_plan(path: Path, mark: FileMark | None = None) -> list[str]:
    """Read the trial ids of a plan, or raise a StoreError that names its file."""
    return read_part(path, ["trial_id"], mark, mend=FORGET)["trial_id"].to_pylist()


def largest_run(table: pa.Table) -> int:
    """Return the largest number of a run that these trials name; 0 if they name none."""
    return max(table["run"].to_pylist(), default=0) if "run" in table.column_names else 0


def is_as_written(path: Path, mark: FileMark) -> bool:
    """Check whether a file exists and has the bytes that were written."""
    try:
        return FileMark.of(read_regular(path)) == mark
    except OSError:
        return False


def columns_of(folder: Path) -> dict[str, Columns]:
    """Read the columns of a folder's tables; empty if no chunk is finished.

    They are those of the first finished chunk, or of columns.parquet where later chunks have more.
    """
    finished = part_files(folder / TRIALS)[:1]
    parts = {name: part_path(folder / name, chunk_of(path)) for path in finished for name in TABLES}
    parts = {name: folder / name / COLUMNS if is_extended(folder, name) else parts[name] for name in parts}
    return {name: read_schema(path) for name, path in parts.items() if path.exists()}


def is_extended(folder: Path, table: str) -> bool:
    """Return whether some parts of a table have more columns than others."""
    return (folder / table / COLUMNS).exists()


def write_columns(folder: Path, table: str, schema: pa.Schema) -> None:
    """Write columns.parquet of a table: all its columns, and no row."""
    write_table(folder / table / COLUMNS, schema.empty_table())


def check_columns(
    folder: Path, tables: Mapping[str, Columns], there: Mapping[str, Columns] | None = None
) -> None:
    """Raise a StoreError unless a folder can take parts with these columns (by table, the type of each name).

    Columns may be added, not removed or retyped.  `tables` are those passed to `Writer.commit`; the snapshot
    columns, which it adds, need not be included.
    """
    there = columns_of(folder) if there is None else there
    if there and (DETAILS in tables) != (DETAILS in there):
        raise StoreError(
            f"{folder} holds trials {'without' if DETAILS in tables else 'with'} {DETAILS}, unlike these; "
            "allowed: another folder (--out)"
        )
    for name, known in there.items():
        own = {**tables[name], **(SNAPSHOT_COLUMNS if name == TRIALS else {})}
        lost = sorted(known.keys() - own.keys())
        retyped = sorted(
            f"{n} was {known[n]}, is {own[n]}" for n in known if own.get(n, known[n]) != known[n]
        )
        if lost or retyped:
            what = f"columns that these trials lack ({', '.join(lost)})" if lost else ""
            what = what or f"columns of another type ({'; '.join(retyped)})"
            raise StoreError(f"{folder / name} has {what}; allowed: another folder (--out)")


def check_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Raise a StoreError unless these rows of trials/ locate weights, with values that are safe in a path."""
    for row in rows:
        names, steps = (row["trial_id"], row["chunk"]), row["snapshot_steps"]
        is_place = isinstance(row["row"], int) and row["row"] >= 0
        is_steps = isinstance(steps, list) and all(isinstance(step, int) and step >= 0 for step in steps)
        if not (all(map(is_hex_name, names)) and is_place and is_steps):
            raise StoreError(f"{path} does not say where the weights of trial {names[0]!r:.40} are")


def incomplete_trials(trials: pa.Table, records: pa.Table, keeps_end: bool) -> Iterator[str]:
    """Describe each finished trial that lacks a record, its stop reason or its last weights.

    A trial has a record at every step that is due before its `stopped_step` (see `topicjax.pace`), and one
    there.  With `keeps_end` it also has weights there.
    """
    lasts: dict[str, tuple[int, int, int]] = {}  # by trial: the number of its records, first and last step
    if records.num_rows:
        steps = records.group_by("trial_id").aggregate(
            [("step", "count_distinct"), ("step", "min"), ("step", "max")]
        )
        names = ("step_count_distinct", "step_min", "step_max")
        found = zip(*(steps[name].to_pylist() for name in names), strict=True)
        lasts = dict(zip(steps["trial_id"].to_pylist(), found, strict=True))
    known = [name for name in (*COMPLETE, PER_DECADE) if name in trials.column_names]
    for row in trials.select(known).to_pylist():
        trial_id, end, every = row["trial_id"], row["stopped_step"], row["record_every"]
        if not row["stop_reason"]:
            yield f"trial {trial_id} has no reason why it stopped at step {end}"
        count, first, last = lasts.get(trial_id, (0, 0, -1))
        wanted = record_count(every, row.get(PER_DECADE) or 0, max(end, 0))
        if end < 0 or end % every or (count, first, last) != (wanted, 0, end):
            yield (
                f"trial {trial_id} stopped at step {end} and has {count} of its {wanted} records, "
                f"the last at step {last}"
            )
        if keeps_end and end not in row["snapshot_steps"]:
            yield f"trial {trial_id} stopped at step {end} and has no weights of that step"


def snapshot_places(snapshot_steps: Iterable[Sequence[int]]) -> list[dict[int, int]]:
    """Find the index of each trial of a chunk in each snapshot, given the steps of its snapshots.

    A snapshot holds the trials of the chunk that have weights at its step, in the order of the chunk.
    """
    counts: dict[int, int] = {}
    places = []
    for steps in snapshot_steps:
        places.append({step: counts.get(step, 0) for step in steps})
        counts |= {step: place + 1 for step, place in places[-1].items()}
    return places
