"""Download a file from a package index: resumable, and checked by its hash."""

import hashlib
import os
import shutil
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topicjax.corpora.package_index import NETWORK_ERRORS, find_file, open_address, why
from topicjax.errors import UserError
from topicjax.store.files import explained, sync

Say = Callable[[str], None]
BLOCK, SAY_SECONDS = 1 << 20, 5.0
SPARE = 50_000_000  # bytes to leave free on the disk


def fetch(project: str, filename: str, sha256: str, folder: Path, say: Say) -> Path:
    """Download a project's file into a folder, unless it is there already; return its path.

    An interrupted download is kept in FILENAME.part, and the next call resumes it.
    """
    path = folder / filename
    if path.is_file() and file_hash(path) == sha256:
        return path
    with explained("write into", folder):
        folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{filename}.part")
    receive(find_file(project, filename), part, say)
    if (found := file_hash(part)) != sha256:
        part.unlink()
        raise UserError(
            f"{filename} has the hash {found[:12]}... instead of {sha256[:12]}... and is thrown away; "
            "allowed: the file as it was published, from another index or another time"
        )
    with explained("write", path):
        sync(part)
        os.replace(part, path)
        sync(folder)
    return path


def receive(address: str, part: Path, say: Say) -> None:
    """Download the rest of a part file."""
    have = part.stat().st_size if part.exists() else 0
    try:
        response = open_address(address, {"Range": f"bytes={have}-"} if have else {})
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise UserError(f"{part.stem} cannot be downloaded: {why(error)}; allowed: try again") from None
        return  # we already have all of it
    except NETWORK_ERRORS as error:
        raise UserError(f"{part.stem} cannot be downloaded: {why(error)}; allowed: try again") from None
    with response:
        if getattr(response, "status", None) != 206:
            have = 0
        left = int(response.headers.get("Content-Length") or 0)
        need_disk(part.parent, left)
        with explained("write", part), part.open("ab" if have else "wb") as file:
            got = copy(response, file, have, have + left, say, part.stem)
    if left and got < left:
        raise UserError(f"the download of {part.stem} broke off; allowed: the same command, which goes on")


def copy(response: Any, file: Any, have: int, whole: int, say: Say, name: str) -> int:
    """Copy a response to a file, reporting progress now and then; return the number of bytes."""
    got, said = 0, time.monotonic()
    say(f"downloading {name}{f', {whole / 1e6:.0f} MB' if whole else ''}")
    while True:
        try:
            block = response.read(BLOCK)
        except NETWORK_ERRORS as error:
            sentence = (
                f"the download of {name} broke off: {why(error)}; allowed: the same command, which goes on"
            )
            raise UserError(sentence) from None
        if not block:
            return got
        file.write(block)
        got += len(block)
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            say(f"downloading {name}: {(have + got) / 1e6:.0f} of {whole / 1e6:.0f} MB")


def need_disk(folder: Path, size: float) -> None:
    """Raise a UserError unless the folder's disk has room for `size` bytes."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size + SPARE:
        raise UserError(
            f"{folder} has {free / 1e6:.0f} MB free; allowed: {(size + SPARE) / 1e6:.0f} MB or more for this"
        )


def file_hash(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with explained("read", path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
