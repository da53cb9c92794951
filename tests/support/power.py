"""A machine whose power may be cut: every state that a disk may be in afterwards can be made as a folder.

What was not synced may be lost, in any combination, as on ext4, xfs or btrfs at their worst:
- A name that was made, changed or removed counts once its folder is synced.  Until then each such change may
  have happened or not, whatever happened to others before or after it.
- A rename is atomic.  Between two folders it counts once the new one is synced; the old name may still be
  there until the old one is synced too.
- Bytes of a file count once the file is synced.  Until then they may be missing, be zeros, or be there in
  part, from the front or from the back, even if the name of the file is durable.
After each operation of Python's os the folder is compared with what it was, so that files which other
libraries write by themselves are seen too; they are not synced until somebody does it.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support.machines import Machine


@dataclass(eq=False)
class File:
    """A file: its bytes as everybody sees them, and as they are on the disk."""

    now: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    """A folder: its entries as everybody sees them, and as they are on the disk."""

    now: "dict[str, Node]" = field(default_factory=dict)
    synced: "dict[str, Entry]" = field(default_factory=dict)


Node = File | Folder
Place = tuple[Folder, str]


class Entry(NamedTuple):
    """A name on the disk, and the number of the change that made it; None: it was removed."""

    change: int
    node: Node | None


@dataclass(eq=False)
class Change:
    """A change of names that is not on the disk yet: a node loses its old name, gets a new one, or both."""

    number: int
    node: Node
    old: Place | None
    new: Place | None
    is_old_synced: bool = False

    def sync(self, folder: Folder) -> bool:
        """Bring to the disk what concerns a folder; return whether all of it is there."""
        self.is_old_synced = self.is_old_synced or (self.old is not None and self.old[0] is folder)
        if self.new is not None and self.new[0] is folder:
            put(folder.synced, self.new[1], self.number, self.node)
            self.new = None
        if self.new is None and self.old is not None and self.is_old_synced:
            take(self.old[0].synced, self.old[1], self.number, self.node)
            self.old = None
        return self.old is None and self.new is None


def put(entries: dict[str, Entry], name: str, number: int, node: Node) -> None:
    """Give a name to a node, unless a later change concerned that name."""
    if name not in entries or entries[name].change < number:
        entries[name] = Entry(number, node)


def take(entries: dict[str, Entry], name: str, number: int, node: Node) -> None:
    """Take a name from a node, unless it belongs to another one."""
    if name in entries and entries[name].node is node and entries[name].change < number:
        entries[name] = Entry(number, None)


Tree = dict[str, bytes | None]  # the files of a folder by their paths; None: a folder


@dataclass
class Moment:
    """What the disk has at a moment, and what may be lost of the rest."""

    top: Folder
    entries: dict[Folder, dict[str, Entry]]
    changes: list[tuple[int, Node, Place | None, Place | None]]
    data: dict[File, tuple[bytes, bytes]]  # synced, now
    seen: Tree  # as everybody sees it
    said: frozenset  # what had been acknowledged


class PowerMachine(Machine):
    """Remembers every moment of a session on a disk."""

    def __init__(self, root: Path, last: int = -1) -> None:
        """Begin with the files below a folder, all of them on the disk; kill at operation `last`."""
        super().__init__(last)
        self.root, self.top = root, Folder()
        self.known: dict[int, Node] = {os.stat(root).st_ino: self.top}
        self.changes: list[Change] = []
        self.number = 0
        self.said: set[Any] = set()
        self.guard = threading.RLock()  # orbax has threads
        self.moments: list[Moment] = []
        self.observe()
        self.settle(self.top)
        self.changes = []
        self.remember()

    def settle(self, folder: Folder) -> None:
        """Bring everything to the disk."""
        folder.synced = {name: Entry(0, node) for name, node in folder.now.items()}
        for node in folder.now.values():
            if isinstance(node, Folder):
                self.settle(node)
            else:
                node.synced = node.now

    def before(self, name: str) -> bool:
        """Count an operation, after a look at what libraries have done since the last one."""
        with self.guard:
            if not self.is_dead and self.observe():
                self.remember()
        return super().before(name)

    def after(self, name: str, descriptor: int | None) -> None:
        """Note what an operation changed or synced."""
        with self.guard:
            self.observe()
            if descriptor is not None:
                node = self.known.get(os.fstat(descriptor).st_ino)
                if isinstance(node, File):
                    node.synced = node.now
                elif node is not None:
                    self.changes = [change for change in self.changes if not change.sync(node)]
            self.remember()

    def say(self, what: Any) -> None:
        """Acknowledge something: from now on a power cut must not undo it."""
        self.said.add(what)
        self.remember()

    def observe(self) -> bool:
        """Compare the folder with what it was; return whether something changed."""
        added: list[tuple[Node, Place]] = []
        gone: dict[Node, Place] = {}
        reached: dict[int, Node] = {os.stat(self.root).st_ino: self.top}
        is_written = self.look(self.root, self.top, reached, added, gone)
        self.known = reached
        for node, place in added:
            self.number += 1
            self.changes.append(Change(self.number, node, gone.pop(node, None), place))
        for node, place in gone.items():
            if place[0].now.get(place[1]) is None:  # else another node has its name, which says it all
                self.number += 1
                self.changes.append(Change(self.number, node, place, None))
        return is_written or bool(added) or bool(gone)

    def look(
        self,
        path: Path,
        folder: Folder,
        reached: dict[int, Node],
        added: list[tuple[Node, Place]],
        gone: dict[Node, Place],
    ) -> bool:
        """Compare one folder with what it was; collect the nodes that got or lost a name in it."""
        is_written, entries = False, {}
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as found:  # threads may remove things
            for entry in found:
                is_folder = entry.is_dir(follow_symlinks=False)
                entries[entry.name] = (entry.inode(), None if is_folder else Path(entry.path).read_bytes())
        before, folder.now = folder.now, {}
        for name, (inode, content) in sorted(entries.items()):
            node = self.known.get(inode)
            if node is None or isinstance(node, Folder) != (content is None):
                node = Folder() if content is None else File()
            reached[inode] = folder.now[name] = node
            if before.get(name) is not node:
                added.append((node, (folder, name)))
            if isinstance(node, Folder):
                is_written |= self.look(path / name, node, reached, added, gone)
            else:
                is_written |= content != node.now
                node.now = content or b""
        for name, node in before.items():
            if folder.now.get(name) is not node:
                gone[node] = (folder, name)
        return is_written

    def remember(self) -> None:
        """Remember this moment."""
        folders, data, todo = {}, {}, [self.top]
        todo += [change.node for change in self.changes if isinstance(change.node, Folder)]
        files = [change.node for change in self.changes if isinstance(change.node, File)]
        while todo:
            folder = todo.pop()
            if folder in folders:
                continue
            folders[folder] = dict(folder.synced)
            nodes = [*folder.now.values(), *(entry.node for entry in folder.synced.values())]
            todo += [node for node in nodes if isinstance(node, Folder)]
            files += [node for node in nodes if isinstance(node, File)]
        for file in files:
            data[file] = (file.synced, file.now)
        changes = [(each.number, each.node, each.old, each.new) for each in self.changes]
        seen = tree_of(self.top, lambda folder: folder.now, lambda file: file.now)
        self.moments.append(Moment(self.top, folders, changes, data, seen, frozenset(self.said)))


def tree_of(
    folder: Folder,
    entries: Callable[[Folder], dict[str, Node]],
    content: Callable[[File], bytes],
    prefix: str = "",
) -> Tree:
    """List the files of a folder by their paths."""
    found: Tree = {}
    for name, node in entries(folder).items():
        if isinstance(node, File):
            found[prefix + name] = content(node)
        else:
            found[prefix + name] = None
            found |= tree_of(node, entries, content, f"{prefix}{name}/")
    return found


# What may have become of bytes that were not synced.  `base` are those before them that were.
DATA: dict[str, Callable[[bytes, bytes, float], bytes]] = {
    "lost": lambda base, rest, share: base,
    "kept": lambda base, rest, share: base + rest,
    "zeros": lambda base, rest, share: base + bytes(len(rest)),
    "front": lambda base, rest, share: base + rest[: int(share * len(rest))],
    "front, then zeros": lambda base, rest, share: (
        base + rest[: int(share * len(rest))].ljust(len(rest), b"\0")
    ),
    "zeros, then the end": lambda base, rest, share: (
        base + rest[int(share * len(rest)) :].rjust(len(rest), b"\0")
    ),
}


def left_of(synced: bytes, now: bytes, kind: str, share: float) -> bytes:
    """Return what a power cut leaves of a file."""
    if synced == now:
        return now
    if synced.startswith(now) and kind != "kept":  # it was cut shorter, which may not have happened yet
        return synced
    if not now.startswith(synced):  # it was written over
        return synced if kind == "lost" and synced else DATA[kind](b"", now, share)
    return DATA[kind](synced, now[len(synced) :], share)


Choice = tuple[Callable[[int, int], bool], Callable[[File], str]]  # of changes by place and count; of data
ORDERINGS: dict[str, Callable[[np.random.Generator], Choice]] = {
    "all lost": lambda rng: (lambda place, count: False, lambda file: "lost"),
    "all kept": lambda rng: (lambda place, count: True, lambda file: "kept"),
    "names without data": lambda rng: (lambda place, count: True, lambda file: "lost"),
    "names with zeros": lambda rng: (lambda place, count: True, lambda file: "zeros"),
    "data without names": lambda rng: (lambda place, count: False, lambda file: "kept"),
    "last name only": lambda rng: (lambda place, count: place == count - 1, lambda file: "kept"),
    "all but the first name": lambda rng: (lambda place, count: place > 0, lambda file: "kept"),
    "random": lambda rng: random_choice(rng),
}


def random_choice(rng: np.random.Generator) -> Choice:
    """Choose any subset of changes, few or many of them, and any fate of each file."""
    share, kinds = rng.choice([0.2, 0.5, 0.8]), [*DATA]
    return (lambda place, count: rng.random() < share, lambda file: kinds[rng.integers(len(kinds))])


def after_cut(moment: Moment, ordering: str, rng: np.random.Generator) -> Tree:
    """Return what is on the disk after a power cut at a moment."""
    keeps, fate = ORDERINGS[ordering](rng)
    entries = {folder: dict(own) for folder, own in moment.entries.items()}
    for place, (number, node, old, new) in enumerate(moment.changes):
        if keeps(place, len(moment.changes)):
            if old is not None:
                take(entries.setdefault(old[0], {}), old[1], number, node)
            if new is not None:
                put(entries.setdefault(new[0], {}), new[1], number, node)
    left: dict[File, bytes] = {}

    def content(file: File) -> bytes:
        if file not in left:
            left[file] = left_of(*moment.data[file], fate(file), rng.random())
        return left[file]

    def names(folder: Folder) -> dict[str, Node]:
        return {name: entry.node for name, entry in entries.get(folder, {}).items() if entry.node is not None}

    return tree_of(moment.top, names, content)


def make(tree: Tree, folder: Path) -> None:
    """Make a folder with these files, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
