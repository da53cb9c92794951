"""Columns measured after training: a folder per measure in measured/, of parts with a row per snapshot.

A row has the trial, the step, and the checksum of the weights that were measured: it counts only while the
trial has these weights at this step.  A part names in its metadata the code that measured it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.store.files import (
    MEASURED,
    FileMark,
    chunk_of,
    explained,
    ids_name,
    is_hex_name,
    part_files,
    part_path,
    read_regular,
    scan,
)
from topicjax.store.journal import Journal, Measured, Part, read_journal, unknown_in_words
from topicjax.store.parts import explained_part, read_part

KEYS = ("trial_id", "step", "weights")
ORIGIN = b"topicjax_origin"  # in the metadata of a part: the code and arithmetic that measured it
AGAIN = "`topicjax repair` sets it aside, and the same `topicjax measure` measures it again"
NAME = re.compile(r"[A-Za-z]\w{0,59}", re.ASCII)  # of a measure: it names a folder


def place_of(folder: Path, part: Part) -> Path:
    """Locate the file of a part."""
    return part_path(folder / MEASURED / part[0], part[1])


def part_of(frame: pd.DataFrame, measure: str) -> Part:
    """Name the part of these rows, after the snapshots that it measures."""
    keys = (" ".join(map(str, row)) for row in frame[list(KEYS)].itertuples(index=False))
    return measure, ids_name(sorted(keys))


def make_table(frame: pd.DataFrame, origin: Mapping[str, Any]) -> pa.Table:
    """Make a part from its rows, with the origin of what was measured."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    said = {**(table.schema.metadata or {}), ORIGIN: json.dumps(origin, sort_keys=True).encode()}
    return table.replace_schema_metadata(said)


def describe(folder: Path, part: Part) -> Measured:
    """Describe a part from its file, or raise a StoreError: it is whole, for it was written atomically."""
    path = place_of(folder, part)
    with explained("read", path, FileNotFoundError):
        content = read_regular(path)
    rows = len(read_part(path, KEYS, mend=AGAIN))
    return Measured(rows, FileMark.of(content))


def origin_of(folder: Path, part: Part) -> dict[str, Any]:
    """Read the code and arithmetic that measured a part; empty if it does not say."""
    path = place_of(folder, part)
    with explained_part(path, AGAIN):
        metadata = pq.read_schema(pa.BufferReader(read_regular(path))).metadata or {}
    try:
        return dict(json.loads(metadata[ORIGIN]))
    except (KeyError, ValueError, TypeError):
        return {}


def read_measured(
    folder: Path, found: Journal, checksums: Mapping[tuple[str, int], str]
) -> dict[str, pd.DataFrame]:
    """Read the columns of every measure: the rows whose weights are still the trials'.

    `checksums` are those of the weights of finished trials, by trial and step.
    """
    tables: dict[str, list[pd.DataFrame]] = {}
    for part, own in sorted(found.measured.items()):
        frame = read_part(place_of(folder, part), None, own.file, AGAIN).to_pandas()
        keys = zip(frame["trial_id"], frame["step"], strict=True)
        is_current = [checksums.get(key) == sum_ for key, sum_ in zip(keys, frame["weights"], strict=True)]
        tables.setdefault(part[0], []).append(frame[is_current])
    return {
        measure: pd.concat(frames, ignore_index=True).drop_duplicates(list(KEYS[:2]))
        for measure, frames in tables.items()
    }


def measured_files(folder: Path) -> Iterator[Part]:
    """Yield the parts that are there, known or not."""
    for entry in sorted(scan(folder / MEASURED), key=lambda entry: entry.name):
        if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            for path in part_files(folder / MEASURED / entry.name):
                if is_hex_name(chunk_of(path)):
                    yield entry.name, chunk_of(path)


def unknown_measured(folder: Path, found: Journal) -> list[Part]:
    """List the parts that the journal does not know, not even by now."""
    unknown = [part for part in measured_files(folder) if part not in {*found.measured, *found.measuring}]
    if unknown:  # a process that goes on may have written some since the journal was read
        later = read_journal(folder, skip_damaged=True)
        unknown = [part for part in unknown if part not in {*later.measured, *later.measuring}]
    return unknown


def misplaced_measured(folder: Path, found: Journal) -> Iterator[str]:
    """Describe the parts that are missing or truncated, and those that the journal does not know."""
    for part, own in sorted(found.measured.items()):
        path = place_of(folder, part)
        try:
            size = path.stat().st_size
        except OSError:
            yield f"{path} is missing, though its snapshots are measured"
            continue
        if size != own.file.size:
            yield f"{path} has {size:,} bytes instead of {own.file.size:,}, though its snapshots are measured"
    for part in unknown_measured(folder, found):
        yield unknown_in_words(folder, place_of(folder, part))


def counts(found: Journal) -> dict[str, int]:
    """Count the rows of each measure."""
    total: dict[str, int] = {}
    for (measure, _), own in sorted(found.measured.items()):
        total[measure] = total.get(measure, 0) + own.rows
    return total
