"""Small run folders, written chunk by chunk like the engine does."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from topicjax.store import writer as writer_module
from topicjax.store.files import FileMark, StoreError, ids_name
from topicjax.store.manifest import FORMAT
from topicjax.store.writer import Writer

FIRST = ["aa11aa11aa11", "aa22aa22aa22", "bb33bb33bb33"]
SECOND = ["cc44cc44cc44", "dd55dd55dd55"]
ONE, TWO = ids_name(FIRST), ids_name(SECOND)
ENTRY = {"sweep": "demo", "experiment": "demo"}  # of a run
EMPTY = {"format": FORMAT, "sweep": "demo", "runs": [], "references": []}


def weights(trials: int, seed: int = 0, size: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(trials, size, size)).astype(np.float32)
    return {
        "W_K": matrix,
        "W_V": 2 * matrix,
        "b_pred": rng.normal(size=(trials, size)).astype("f4"),
    }


def tables(
    ids: list[str], chunk: str, steps: Sequence[int] = (), **columns: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make trials and records of a chunk whose trials all have snapshots at these steps."""
    settings = dict(learning_rate=0.1, record_every=2)
    ended = dict(stopped_step=4, stop_reason="steps", status="ok", diverged_step=None)
    place = dict(snapshot_steps=[list(steps)] * len(ids), chunk=chunk, row=range(len(ids)))
    trials = pd.DataFrame(dict(trial_id=ids) | settings | ended | place)
    records = [dict(trial_id=trial, step=step, loss=step / 7) for trial in ids for step in (0, 2, 4)]
    return trials.assign(**columns), pd.DataFrame(records)


def details_of(ids: list[str]) -> pd.DataFrame:
    """Make the details that match `tables`: two layers at each record."""
    rows = [(trial, step, layer) for trial in ids for step in (0, 2, 4) for layer in (1, 2)]
    frame = pd.DataFrame(rows, columns=["trial_id", "step", "layer"])
    return frame.astype({"layer": "int32"}).assign(norm=frame["step"] / 7 + frame["layer"])


def write_run(folder: Path) -> None:
    """Write two chunks: the first with snapshots at steps 2 and 4, the second with a diverged trial."""
    with Writer(folder, "demo") as writer:
        plan = writer.write_plan([*FIRST, *SECOND, "e" * 12, "f" * 12])
        writer.write_manifest(EMPTY | {"runs": [ENTRY | {"plan": plan, "planned": 7}]})
        for step in (2, 4):
            writer.save_snapshot(ONE, step, weights(3, seed=step))
        writer.commit(ONE, *tables(FIRST, ONE, (2, 4)))
        lost = dict(status=["ok", "diverged"], diverged_step=[None, 2])
        writer.commit(TWO, *tables(SECOND, TWO, **lost))


@contextlib.contextmanager
def crashing_at(writer: Writer, name: str) -> Iterator[None]:
    """Simulate a full disk when a part of this folder is written."""

    def write_table(path: Path, table: pa.Table) -> FileMark:
        if path.parent.name == name:
            raise StoreError("the disk is full")
        return whole(path, table)

    whole = writer_module.write_table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "write_table", write_table)
        yield


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"lock.json"}


def same(found: dict[str, np.ndarray], given: dict[str, np.ndarray], row: int) -> bool:
    return found.keys() == given.keys() and all(
        found[name].dtype == given[name].dtype and np.array_equal(found[name], given[name][row])
        for name in given
    )


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop root, which may write anywhere, to the user nobody."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
