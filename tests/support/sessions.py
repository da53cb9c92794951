"""Sessions of the store: what a run does with it, step by step, and what readers may see at any time.

Everything that a session writes follows from the names of its chunks, so that any number can be checked.
"""

import functools
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.store_runs import ENTRY, FIRST, SECOND, details_of, files, same, tables, weights

from topicjax.store import checkpoints
from topicjax.store.files import StoreError, ids_name, state_path
from topicjax.store.reader import committed, load, status
from topicjax.store.writer import Writer

THIRD = ["e" * 12, "f" * 12]
LONGER = ["1" * 12, "2" * 12, "3" * 12]  # the trials of FIRST with more steps
CHUNKS = {ids_name(ids): ids for ids in (FIRST, SECOND, THIRD, LONGER)}
STEPS = (2, 4)
KEYS = ["trial_id", "step", "layer"]  # of a row of details
NEW_COLUMN = "new_column"
Say = Callable[[Any], object]  # called with what is acknowledged: nothing may take it back


@dataclass(frozen=True)
class Job:
    """What a run is asked for."""

    plan: tuple[str, ...]
    chunks: tuple[str, ...]
    sweep: str = "demo"
    columns: tuple[str, ...] = ()  # that older chunks lack
    entry: tuple[tuple[str, Any], ...] = ()


ONE, TWO, THREE, LONG = CHUNKS
RUN = Job((*FIRST, *SECOND), (ONE, TWO))
EXTEND = Job((*THIRD,), (THREE,), sweep="other", columns=(NEW_COLUMN,))
REFINE = Job(
    (*FIRST, *SECOND, *THIRD), (THREE,), entry=(("refine", {"axes": ["learning_rate"], "levels": 1}),)
)
ALL = Job((*FIRST, *SECOND, *THIRD), (ONE, TWO, THREE))
MORE_STEPS = Job((*LONGER,), (LONG,))


def session(folder: Path, job: Job = RUN, say: Say = lambda what: None, end_after: str = "") -> None:
    """Do what a run does, from wherever the last one left it; end where it is told, as if interrupted.

    Acknowledged are: ("run", number) once the manifest has it, ("state", chunk, number), and chunks.
    """
    with Writer(folder, job.sweep, extend=True) as writer:
        plan = writer.write_plan(job.plan)
        entry = ENTRY | {"sweep": job.sweep, "plan": plan, "planned": len(job.plan)} | dict(job.entry)
        runs = [*writer.manifest["runs"], entry]
        writer.write_manifest(writer.manifest | {"runs": runs})
        say(("run", len(runs)))
        done = committed(folder)
        left = {chunk: CHUNKS[chunk] for chunk in job.chunks if not done >= {*CHUNKS[chunk]}}
        writer.keep_partials(left)
        for chunk, ids in left.items():
            if chunk == LONG:  # goes on from where the shorter trainings ended
                assert load(folder).end_states(FIRST)[0].tolist() == end_state(ONE).tolist()
            for number in (1, 2):
                found = writer.load_partial(chunk, {"records": ["loss"]})
                assert found is None or found[0]["W"].tolist() == [found[1]["number"]] * 3
                if found is None or found[1]["number"] < number:
                    meta = {"number": number, "records": ["loss"]}
                    writer.save_partial(chunk, {"W": np.full(3, number)}, meta)
                say(("state", chunk, number))
            for step in STEPS:
                writer.save_snapshot(chunk, step, chunk_weights(chunk, step))
                if end_after == f"{chunk} {step}":
                    return
            writer.save_end(chunk, {"0": end_state(chunk)}, {"trial_ids": ids})
            writer.commit(chunk, *chunk_tables(chunk, job.columns))
            say(chunk)
        writer.write_manifest(writer.manifest | {"runs": [*runs[:-1], entry | {"trials": len(job.plan)}]})


@functools.cache
def chunk_weights(chunk: str, step: int) -> dict[str, np.ndarray]:
    return weights(len(CHUNKS[chunk]), seed=step, size=4)


def end_state(chunk: str) -> np.ndarray:
    return np.arange(len(CHUNKS[chunk])) + int(chunk[:4], 16)


@functools.cache
def chunk_tables(
    chunk: str, columns: tuple[str, ...] = ()
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    ids, more = CHUNKS[chunk], dict.fromkeys(columns, 0.5)
    trials, records = tables(ids, chunk, STEPS)
    return trials.assign(**more), records.assign(**more), details_of(ids).assign(**more)


def file_names(folder: Path) -> set[str]:
    """Return the names of all files; orbax gives random ones to some."""
    return {re.sub("[0-9a-f]{32}", "*", name) for name in files(folder)}


def frames(folder: Path) -> list[pd.DataFrame]:
    """Read the tables of a folder, sorted."""
    run = load(folder)
    return [
        run.trials.sort_values(KEYS[:1]),
        run.trajectories.sort_values(KEYS[:2]),
        run.details.sort_values(KEYS),
    ]


NOTHING_YET = (
    "is finished yet",
    "there is no folder",
    "is empty",
    "it has no manifest.json; it holds lock",
)


def check_readers(folder: Path, whole: list[pd.DataFrame]) -> int:
    """Check that readers see whole chunks with the right numbers only; return how many trials."""
    try:
        tables = frames(folder)
    except StoreError as error:
        assert any(text in str(error) for text in NOTHING_YET), error
        return 0
    check_numbers(folder, tables, whole)
    assert status(folder).problems == ()
    return len(tables[0])


def check_numbers(
    folder: Path, tables: list[pd.DataFrame], whole: list[pd.DataFrame], may_lack_states: bool = False
) -> None:
    """Check every number that was read against those of an undisturbed session."""
    ids = set(tables[0]["trial_id"])
    assert all(ids >= {*chunk} or not ids & {*chunk} for chunk in CHUNKS.values())
    for mine, other in zip(tables, whole, strict=True):
        expected = other[other["trial_id"].isin(ids)]
        expected = expected[[name for name in expected if name in mine or expected[name].notna().any()]]
        assert mine.columns.tolist() == expected.columns.tolist()
        pd.testing.assert_frame_equal(mine.reset_index(drop=True), expected.reset_index(drop=True))
    run = load(folder)
    for chunk, own in CHUNKS.items():
        if ids >= {*own}:
            for step in STEPS:
                assert same(run.restore(own[-1], step), chunk_weights(chunk, step), len(own) - 1)
            if state_path(folder, chunk).exists() or not may_lack_states:
                assert run.end_states(own[::-1])[0].tolist() == end_state(chunk).tolist()[::-1]


def save_plainly(folder: Path, structure: Any, leaves: Mapping[str, np.ndarray]) -> None:
    """Stand in for orbax, which takes a tenth of a second: the same names and the same order, plain files."""
    temporary = folder.with_name(f"{folder.name}{checkpoints.UNFINISHED}")
    if folder.exists():
        shutil.rmtree(folder)
    temporary.mkdir(parents=True)
    for name, array in leaves.items():
        data = io.BytesIO()
        np.save(data, array)
        write_plainly(temporary / f"{name}.npy", data.getvalue())
    os.rename(temporary, folder)
    write_plainly(folder / checkpoints.STRUCTURE, json.dumps(structure).encode())
    checkpoints.sync_tree(folder)


def write_plainly(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, content)
    os.close(descriptor)


def read_plainly(folder: Path, place: int | slice) -> tuple[Any, dict[str, np.ndarray]]:
    structure = json.loads((folder / checkpoints.STRUCTURE).read_text())
    names = checkpoints.leaf_names(structure)
    return structure, {name: np.load(folder / f"{name}.npy")[place] for name in names}
