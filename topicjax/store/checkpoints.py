"""Weights on disk: snapshots of a chunk of trials, and the states from which training resumes.

A snapshot is an ordinary orbax checkpoint of a flat dict: the arrays of the weights, each under its path in
the tree (`layers.0.W`), with one storage chunk per trial, so that tensorstore reads one trial of 512 without
the others.  `structure.json` next to them holds the shape of the tree.  Imports are inside the functions:
orbax imports jax and takes seconds, and reading needs neither.
"""

import contextlib
import errno
import functools
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from topicjax.errors import UserError
from topicjax.store.files import first_line, plain, sync, write_whole
from topicjax.version import __version__

SUCCESS = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # how orbax names unfinished checkpoints
STRUCTURE = "structure.json"
BARE = "weights"  # the name of an array that is the whole tree
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple}
NUMBERS = "biufcV"  # kinds of dtypes; V: bfloat16 and others of ml_dtypes
INDEX_BYTES = 100_000_000  # cache for the list of storage chunks, read once for all arrays
PAYLOAD, META = "payload.", "meta"  # members of a state file: its arrays, and the rest as JSON
STATE = {"format": 1, "version": __version__}  # only the same version can resume from a state
CRC_BYTES = 8  # hexadecimal digits at the end of a state file: the CRC-32 of all bytes before
BLOCK = 1 << 20

Leaves = dict[str, Any]  # the arrays of a tree by their paths


def flatten(tree: Any) -> tuple[Leaves, Any]:
    """Flatten a tree to arrays by path and a structure in JSON values, or raise a UserError.

    {"layers": [a, b]} becomes the arrays {"layers.0": a, "layers.1": b}.  Dicts with string keys, lists,
    tuples, named tuples and None are allowed, nested in any way.
    """
    leaves: Leaves = {}
    structure = walk(tree, "", leaves)
    if not leaves:
        raise UserError("the weights have no array; allowed: a tree with at least one")
    return leaves, structure


def describe_tree(tree: Any) -> Any:
    """Return the structure of a tree, or raise a UserError if it cannot be stored.

    Anything with a shape and a dtype counts as an array: a tree can be checked before its arrays are
    computed.
    """
    return flatten(tree)[1]


def unflatten(structure: Any, leaves: Mapping[str, Any]) -> Any:
    """Rebuild a tree from its structure and arrays; named tuples get new classes."""
    if structure is None or isinstance(structure, str):
        return None if structure is None else leaves[structure]
    items = {key: unflatten(item, leaves) for key, item in structure["items"].items()}
    if structure["kind"] == "named tuple":
        return named_tuple(structure["name"], tuple(items))(*items.values())
    return items if structure["kind"] == "dict" else SEQUENCES[structure["kind"]](items.values())


def walk(tree: Any, path: str, leaves: Leaves) -> Any:
    """Describe the tree at a path: the name of an array, or a kind and its items by key."""
    if tree is None:
        return None
    kind, items = type(tree).__name__, None
    if type(tree) is dict:
        items = tree
    elif kind in SEQUENCES and type(tree) is SEQUENCES[kind]:
        items = {str(number): item for number, item in enumerate(tree)}
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        items = tree._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if items is None:
        check_leaf(tree, path)
        return add_leaf(tree, path or BARE, leaves)
    for key in items:
        if not isinstance(key, str):
            raise UserError(
                f"the key {key!r} of {words(path)} is not a string; allowed: dicts with string keys"
            )
    own = {key: walk(item, f"{path}.{key}" if path else key, leaves) for key, item in items.items()}
    if kind == "dict" or kind in SEQUENCES:
        return {"kind": kind, "items": own}
    return {"kind": "named tuple", "name": kind, "items": own}


def check_leaf(leaf: Any, path: str) -> None:
    """Raise a UserError unless this is an array that a checkpoint can hold."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise UserError(
            f"{words(path)} is of type {type(leaf).__name__}, which cannot be kept; "
            "allowed: arrays in dicts with string keys, lists, tuples and named tuples"
        )
    if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in NUMBERS:
        raise UserError(f"{words(path)} has dtype {leaf.dtype}; allowed: arrays of numbers")
    if 0 in leaf.shape:
        raise UserError(f"{words(path)} has shape {leaf.shape}; allowed: arrays with at least one number")


def add_leaf(leaf: Any, name: str, leaves: Leaves) -> str:
    """Store an array under a name, which must be unique; return the name."""
    if name in leaves:
        raise UserError(f"the weights have two arrays named {name!r}; allowed: keys that tell them apart")
    leaves[name] = leaf
    return name


def words(path: str) -> str:
    """Describe a path of the weights in words."""
    return f"{path!r} of the weights" if path else "what weights returns"


def leaf_names(structure: Any) -> list[str]:
    """List the names of the arrays of a tree, in its order."""
    if structure is None or isinstance(structure, str):
        return [] if structure is None else [structure]
    return [name for item in structure["items"].values() for name in leaf_names(item)]


@functools.cache
def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Make the named tuple class of this name; cached, so that trees can be compared."""
    return namedtuple(name, fields)


def save(folder: Path, structure: Any, leaves: Mapping[str, np.ndarray]) -> None:
    """Write arrays with a leading trial axis as one checkpoint; replaces an existing one."""
    import orbax.checkpoint as ocp

    folder.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder.parent).free < sum(array.nbytes for array in leaves.values()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # orbax would fail with pages of output
    pieces = {name: ocp.SaveArgs(shard_axes=(0,)) for name in leaves}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    try:
        with quiet_absl(), harmless(folder) as path, ocp.Checkpointer(handler) as checkpointer:
            arguments = ocp.args.PyTreeSave(dict(leaves), save_args=pieces)
            checkpointer.save(path, args=arguments, force=True)
        if (folder / SUCCESS).exists():  # it names the folder, which would be wrong in a copy
            (folder / SUCCESS).write_text("Checkpoint commit was successful.\n")
        (folder / STRUCTURE).write_text(json.dumps(structure))
        sync_tree(folder)
    except BaseException:
        for unfinished in folder.parent.glob(f"{folder.name}{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_trials(folder: Path, place: int | slice) -> tuple[Any, Leaves]:
    """Read the structure of a snapshot and the arrays of one trial or several, and no others.

    Raises whatever the libraries raise.
    """
    import tensorstore as ts

    structure = json.loads((folder / STRUCTURE).read_text())
    context = ts.Context({"cache_pool": {"total_bytes_limit": INDEX_BYTES}})
    opened = {}
    with harmless(folder) as path:
        base = {"driver": "file", "path": f"{path}/"}
        for name in leaf_names(structure):
            pieces = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            spec = {"driver": "zarr3", "kvstore": pieces, "fill_missing_data_reads": False}
            opened[name] = ts.open(spec, open=True, read=True, context=context)
        reads = {name: array.result()[place].read() for name, array in opened.items()}
        return structure, {name: np.asarray(read.result()) for name, read in reads.items()}


def checksum(structure: Any, leaves: Mapping[str, np.ndarray]) -> str:
    """Compute 8 hexadecimal digits that depend on every bit of one trial's arrays and on their structure."""
    crc = zlib.crc32(json.dumps(structure).encode())
    for name, array in leaves.items():
        crc = zlib.crc32(f"{name} {array.dtype.name} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return f"{crc:08x}"


def tree_checksum(folder: Path) -> str:
    """Compute 8 hexadecimal digits that depend on every file of a snapshot, its name and its bytes.

    Files whose names begin with a dot are ignored: macOS Finder leaves some.
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
    """Yield a path to the folder without [ ] * ? and \\, which the libraries do not take literally."""
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
    """Call fsync on a folder, on everything in it, and on its two parents."""
    for path in (folder.parent.parent, folder.parent, folder, *folder.rglob("*")):
        sync(path)


class StateError(Exception):
    """Why a saved state cannot be used, worded to follow its name."""


class OtherVersion(StateError):
    """The state is intact, but from another version."""


def save_state(path: Path, payload: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write or replace a state from which training resumes."""
    arrays = {PAYLOAD + name: np.asarray(array) for name, array in payload.items()}
    arrays[META] = np.frombuffer(json.dumps(plain({**STATE, "meta": meta})).encode(), np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        size = file.seek(0, os.SEEK_END)
        file.write(b"%08x" % stream_crc(file, size))

    write_whole(path, write)


def is_of_use(path: Path) -> bool:
    """Check quickly, without reading arrays, whether a state exists and is from this version."""
    try:
        with np.load(path, allow_pickle=False) as members:
            found = json.loads(members[META].tobytes())
    except Exception:  # a damaged archive may raise any exception; reading its arrays will report it
        return False
    return all(found.get(name) == value for name, value in STATE.items())


def load_state(
    path: Path, expected: Mapping[str, Any] | None = None
) -> tuple[dict[str, np.ndarray], Any] | None:
    """Read (payload, meta) of a state; None if there is none, StateError if it cannot be used.

    A usable state is intact, from this version, and its meta has the expected values.
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
    except Exception as error:  # a damaged archive may raise any exception
        raise StateError(f"is damaged: {first_line(error)}") from error
    for name, value in STATE.items():
        if found.get(name) != value:
            raise OtherVersion(f"was saved by another version: {name} {found.get(name)}, not {value}")
    for name, value in plain(expected or {}).items():
        if meta.get(name) != value:
            raise OtherVersion(f"was saved with another {name}: {meta.get(name)!r:.80}, not {value!r:.80}")
    return {name.removeprefix(PAYLOAD): array for name, array in arrays.items()}, meta


def stream_crc(file: IO[bytes], size: int) -> int:
    """Compute the CRC-32 of the first `size` bytes of a file, and leave the position after them."""
    crc = 0
    file.seek(0)
    for start in range(0, size, BLOCK):
        crc = zlib.crc32(file.read(min(BLOCK, size - start)), crc)
    return crc
