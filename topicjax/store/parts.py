"""Parquet parts: the tables of a folder are many small files that are read as one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from topicjax.store.files import StoreError, first_line, read_regular, reason
from topicjax.store.journal import REPAIR, FileMark


def read_columns(
    parts: Sequence[Path],
    columns: Sequence[str] | None = None,
    marks: Mapping[Path, FileMark] = MappingProxyType({}),
) -> pa.Table:
    """Return these columns (all by default) of all parts as one table, checked against their marks.

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


def read_part(path: Path, columns: Sequence[str] | None, mark: FileMark | None = None) -> pa.Table:
    """Return these columns (all by default) of a part, or raise a StoreError that names it."""
    try:
        content = read_regular(path)
        if mark is not None and FileMark.of(content) != mark:
            raise pa.ArrowInvalid("its bytes are not those that were written")
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            table = file.read(None if columns is None else list(columns))
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {REPAIR}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise StoreError(f"cannot read {path}: {reason(error)}") from error
        raise StoreError(f"{path} is damaged: {first_line(error)}; {REPAIR}") from error
    for name in columns or ():
        if name not in table.column_names:
            raise StoreError(f"{path} is not part of a run: it has no column {name}")
    return table
