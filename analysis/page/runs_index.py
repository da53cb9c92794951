"""Index of a folder of run folders: every run with its question, verdicts, size, state and page.

The settings of every run are in the page, so that a reader can search across them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topicjax.errors import UserError, counted, size
from topicjax.store.files import MANIFEST, StoreError
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run, load, status

from ..outputs import write_file
from ..pictures import written
from . import html
from .claims_table import Row, relative, rows_of
from .provenance import REPORT

INDEX = "index.html"
MOST_LISTED = 60  # values of a setting that can be searched for; of more, the range
Say = Callable[[str], object]


@dataclass(frozen=True)
class Entry:
    """One run of the index; empty texts are unknown."""

    name: str
    question: str = ""
    state: str = ""
    trials: str = ""
    bytes: str = ""
    page: str = ""  # URL of its page; empty if it has none yet
    settings: str = ""  # name=value of all settings, for the search
    problem: str = ""  # why the run cannot be read
    verdicts: tuple[Row, ...] = ()


def run_folders(folder: Path) -> list[Path]:
    """List the run folders directly inside a folder, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))


def is_run(folder: Path) -> bool:
    """Tell whether a folder is itself a run folder, or a part of one that is damaged."""
    return (folder / MANIFEST).exists() or (folder / "trials").exists()


def write(folder: Path, say: Say = lambda text: None) -> Path:
    """Write the index of the runs inside a folder; return its path."""
    found = run_folders(folder)
    if not found:
        raise UserError(f"{folder} is not a run folder and has none in it; allowed: one, or a folder of them")
    entries = []
    for path in found:
        say(f"{path} ...")
        entries.append(entry_of(path, folder))
    runs = counted(len(entries), "run")
    trials = sum(count_of(entry) for entry in entries)
    subtitle = f"{runs}, {counted(trials, 'trial')}."
    text = html.page(f"topicjax: runs in {folder.resolve().name}", subtitle, html.runs(entries), [])
    return write_file(folder / INDEX, text)


def entry_of(path: Path, base: Path) -> Entry:
    """Describe a run; one that cannot be read is listed with the reason."""
    try:
        run, state = load(path), status(path)
        of = "" if state.planned is None or state.beyond else f" of {state.planned:,}"
        is_done = state.planned is not None and state.finished >= state.planned
        words = "running" if state.running is not None else "finished" if is_done else "not finished"
        lost = f", {state.diverged:,} diverged" if state.diverged else ""
        entry = Entry(
            name=path.name,
            question=str(last_run(run.manifest).get("description", "")).split("\n")[0],
            state=words + lost,
            trials=f"{state.finished:,}{of}",
            bytes=size(sum(file.stat().st_size for file in path.rglob("*") if file.is_file())),
            page=relative(str(path / REPORT), base) if (path / REPORT).is_file() else "",
            settings=searched(run) if state.finished else "",
        )
    except (UserError, StoreError, OSError) as error:
        return Entry(path.name, problem=str(error))
    return Entry(**vars(entry) | judged(path)) if state.finished else entry


def judged(path: Path) -> dict[str, Any]:
    """Judge the claims of a run, or say why that fails."""
    try:
        return dict(verdicts=tuple(rows_of(path)[0]))
    except Exception as error:  # of a user's page, say: the other runs are listed all the same
        return dict(problem=f"claims not judged: {error}")


def searched(run: Run) -> str:
    """Write name=value of every setting of a run, or name=low..high if it has very many values."""
    found = [f"experiment={run.experiment}"]
    for name in run.setting_names:
        column: Any = run.trials[name]
        values: Any = column.dropna().unique()
        if len(values) > MOST_LISTED:
            found.append(f"{name}={written(min(values), 6)}..{written(max(values), 6)}")
        else:
            found += [
                f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for value in values
            ]
    return " ".join(text.replace(" ", "_") for text in found)


def count_of(entry: Entry) -> int:
    """Return the number of finished trials of an entry."""
    return int(entry.trials.split(" ")[0].replace(",", "") or 0)
