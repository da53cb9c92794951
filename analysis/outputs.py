"""Write the files of an analysis: atomically, and never through a symbolic link.

A run folder may come from someone else, and a link in it could point at any file.
"""

from pathlib import Path

from topicjax.store.files import StoreError, explained, write_whole


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a file and, if needed, its folder; replace a link of that name.  Return the path."""
    data = content.encode() if isinstance(content, str) else content
    with explained("write", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(data))
    return path


def subfolder(folder: Path, name: str) -> Path:
    """Return the path of a folder inside a run folder; raise a StoreError if it is a link."""
    path = folder / name
    if path.is_symlink():
        raise StoreError(f"{path} is a link to another place: nothing is written there; remove the link")
    return path
