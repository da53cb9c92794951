"""Weights on disk: snapshots of a chunk of trials, and the state to continue it from.

A snapshot is an ordinary orbax checkpoint in which each trial is a piece of its own, so that
tensorstore reads one trial of 512 without the others.  Imports are inside the functions: orbax
brings jax and takes seconds, reading needs neither.
"""

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from topicjax.store.files import first_line, plain, sync, write_whole

METADATA = "_METADATA"  # orbax: the names of the arrays
INDEX_BYTES = 100_000_000  # room for the list of pieces, read once for all arrays, not per array
PAYLOAD, META = "payload.", "meta"  # members of a state: its arrays, and the rest as JSON


def save(folder: Path, params: Mapping[str, np.ndarray]) -> None:
    """Write arrays with a leading trial axis as one checkpoint; replaces one that is there."""
    import orbax.checkpoint as ocp

    arrays = {name: np.asarray(array) for name, array in params.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder.parent).free < sum(array.nbytes for array in arrays.values()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # orbax would fail with pages
    pieces = {name: ocp.SaveArgs(shard_axes=(0,)) for name in arrays}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    try:
        with quiet_absl(), ocp.Checkpointer(handler) as checkpointer:
            arguments = ocp.args.PyTreeSave(arrays, save_args=pieces)
            checkpointer.save(folder.resolve(), args=arguments, force=True)
        sync_tree(folder)
    except BaseException:
        for unfinished in folder.parent.glob(f"{folder.name}.*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_trial(folder: Path, row: int) -> dict[str, np.ndarray]:
    """Return the arrays of one trial, reading no other; raises OSError, KeyError or ValueError."""
    import tensorstore as ts

    tree = json.loads((folder / METADATA).read_text())["tree_metadata"]
    names = [leaf["key_metadata"][0]["key"] for leaf in tree.values()]
    base = {"driver": "file", "path": f"{folder.resolve()}/"}
    context = ts.Context({"cache_pool": {"total_bytes_limit": INDEX_BYTES}})
    opened = {}
    for name in names:
        pieces = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        spec = {"driver": "zarr3", "kvstore": pieces, "fill_missing_data_reads": False}
        opened[name] = ts.open(spec, open=True, read=True, context=context)
    reads = {name: array.result()[row].read() for name, array in opened.items()}
    return {name: np.asarray(read.result()) for name, read in reads.items()}


@contextlib.contextmanager
def quiet_absl() -> Iterator[None]:
    """Keep orbax from printing the traceback of every thread that an error passes through."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def sync_tree(folder: Path) -> None:
    """Call fsync on a folder, on everything in it, and on the folders that hold its name."""
    for path in (folder.parent.parent, folder.parent, folder, *folder.rglob("*")):
        sync(path)


def save_state(path: Path, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Replace the state inside a chunk from which an interrupted run continues."""
    arrays = {PAYLOAD + name: np.asarray(array) for name, array in payload.items()}
    arrays[META] = np.frombuffer(json.dumps(plain(meta)).encode(), np.uint8)
    write_whole(path, lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def load_state(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return (payload, meta) of a state; None if there is none or, with a warning, damaged."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop(META).tobytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive raises almost anything
        logging.getLogger(__name__).warning(
            "%s is damaged and ignored, its trials start again: %s", path, first_line(error)
        )
        return None
    return {name.removeprefix(PAYLOAD): array for name, array in arrays.items()}, meta
