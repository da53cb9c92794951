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
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from topicjax.store.files import first_line, plain, sync, write_whole
from topicjax.version import __version__

SUCCESS = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # how orbax names what it has not finished
METADATA = "_METADATA"  # orbax: the names of the arrays
INDEX_BYTES = 100_000_000  # room for the list of pieces, read once for all arrays, not per array
PAYLOAD, META = "payload.", "meta"  # members of a state: its arrays, and the rest as JSON
STATE = {"format": 1, "version": __version__}  # a state is of use to the same version only
CRC_BYTES = 8  # hexadecimal digits at the end of a state: the CRC-32 of all before
BLOCK = 1 << 20


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
        with quiet_absl(), harmless(folder) as path, ocp.Checkpointer(handler) as checkpointer:
            arguments = ocp.args.PyTreeSave(arrays, save_args=pieces)
            checkpointer.save(path, args=arguments, force=True)
        if (folder / SUCCESS).exists():  # names where the folder was: of no use to who gets a copy
            (folder / SUCCESS).write_text("Checkpoint commit was successful.\n")
        sync_tree(folder)
    except BaseException:
        for unfinished in folder.parent.glob(f"{folder.name}{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_trials(folder: Path, place: int | slice) -> dict[str, np.ndarray]:
    """Return the arrays of one trial, or of several, and read no other; raises what the libraries raise."""
    import tensorstore as ts

    tree = json.loads((folder / METADATA).read_text())["tree_metadata"]
    names = [leaf["key_metadata"][0]["key"] for leaf in tree.values()]
    context = ts.Context({"cache_pool": {"total_bytes_limit": INDEX_BYTES}})
    opened = {}
    with harmless(folder) as path:
        base = {"driver": "file", "path": f"{path}/"}
        for name in names:
            pieces = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            spec = {"driver": "zarr3", "kvstore": pieces, "fill_missing_data_reads": False}
            opened[name] = ts.open(spec, open=True, read=True, context=context)
        reads = {name: array.result()[place].read() for name, array in opened.items()}
        return {name: np.asarray(read.result()) for name, read in reads.items()}


def checksum(weights: Mapping[str, np.ndarray]) -> str:
    """Return 8 hexadecimal digits that depend on every bit of one trial's arrays, their names and shapes."""
    crc = 0
    for name, array in sorted(weights.items()):
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return f"{crc:08x}"


def tree_checksum(folder: Path) -> str:
    """Return 8 hexadecimal digits that depend on every file of a snapshot, its name and its bytes.

    Files whose names begin with a dot are not orbax's.
    """
    crc = 0
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    for path in sorted(path for path in folder.rglob("[!.]*") if path.is_file()):
        content = path.read_bytes()
        crc = zlib.crc32(f"{path.relative_to(folder).as_posix()} {len(content)}".encode(), crc)
        crc = zlib.crc32(content, crc)
    return f"{crc:08x}"


@contextlib.contextmanager
def harmless(folder: Path) -> Iterator[Path]:
    """Give a path to the folder that the libraries take as it is: to them [ ] * ? and \\ are no letters."""
    absolute = folder.parent.resolve() / folder.name
    if not set("[]*?\\") & set(str(absolute)):
        yield absolute
        return
    with tempfile.TemporaryDirectory() as place:
        alias = Path(place) / "chunk"
        alias.symlink_to(absolute.parent)
        yield alias / folder.name


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


class StateError(Exception):
    """Why a saved state is of no use, in words that follow its name."""


class OtherVersion(StateError):
    """It is whole, but not of this version."""


def save_state(path: Path, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Replace the state inside a chunk from which an interrupted run continues."""
    arrays = {PAYLOAD + name: np.asarray(array) for name, array in payload.items()}
    arrays[META] = np.frombuffer(json.dumps(plain({**STATE, "meta": meta})).encode(), np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        size = file.seek(0, os.SEEK_END)
        file.write(b"%08x" % stream_crc(file, size))

    write_whole(path, write)


def is_of_use(path: Path) -> bool:
    """Return whether a state is there and of this version: a quick look, its arrays are not read."""
    try:
        with np.load(path, allow_pickle=False) as members:
            found = json.loads(members[META].tobytes())
    except Exception:  # a damaged archive raises almost anything; whoever needs its arrays will say so
        return False
    return all(found.get(name) == value for name, value in STATE.items())


def load_state(
    path: Path, expected: Mapping[str, Any] | None = None
) -> tuple[dict[str, np.ndarray], Any] | None:
    """Return (payload, meta) of a state, None if there is none; StateError if it is of no use here.

    It is of use if it is whole, of this version, and its meta has the expected values.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END) - CRC_BYTES
            if size < 0 or b"%08x" % stream_crc(file, size) != file.read():
                raise ValueError("its bytes are not those that were written")
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                arrays = {name: members[name] for name in members.files}
        found = json.loads(arrays.pop(META).tobytes())
        meta = found["meta"]
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive raises almost anything
        raise StateError(f"is damaged: {first_line(error)}") from error
    for name, value in STATE.items():
        if found.get(name) != value:
            raise OtherVersion(f"was saved by another version: {name} {found.get(name)}, not {value}")
    for name, value in plain(expected or {}).items():
        if meta.get(name) != value:
            raise OtherVersion(f"was saved with another {name}: {meta.get(name)!r:.80}, not {value!r:.80}")
    return {name.removeprefix(PAYLOAD): array for name, array in arrays.items()}, meta


def stream_crc(file: IO[bytes], size: int) -> int:
    """Return the CRC-32 of the first bytes of a file; what follows is next to be read."""
    crc = 0
    file.seek(0)
    for start in range(0, size, BLOCK):
        crc = zlib.crc32(file.read(min(BLOCK, size - start)), crc)
    return crc
