"""set_aside/: where damaged files, and files of no more use, are moved.  Nothing is deleted."""

import errno
import os
import shutil
import time
from pathlib import Path

from topicjax.store.files import StoreError, read_regular, write_whole
from topicjax.store.folder import SET_ASIDE


def new_place(folder: Path) -> Path:
    """Return a new folder in set_aside/, named after the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1000):
        place = folder / SET_ASIDE / (stamp if not number else f"{stamp}-{number}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise StoreError(f"{folder / SET_ASIDE} is full")


def move(path: Path, folder: Path, place: Path) -> Path:
    """Move a file or folder to the same place below `place`; return where it is now."""
    target = place / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(path, target)  # beyond a link to another disk
    return target


def copy(path: Path, folder: Path, place: Path) -> Path:
    """Copy a file to the same place below `place`; return where the copy is."""
    target = place / path.relative_to(folder)
    content = read_regular(path)
    write_whole(target, lambda file: file.write(content))
    return target
