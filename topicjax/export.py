"""Export a run: its tables as CSV files, its records as TensorBoard events.

Each function takes the run that `topicjax.load` returns and a new or empty folder, and returns the paths of
the files it wrote.  A failed export leaves no files behind; after a power cut each file is whole or absent.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_numeric_dtype
from pyarrow import csv

from topicjax.advice import install_command
from topicjax.errors import UserError, quoted_cell
from topicjax.store.files import StoreError, explained, is_hex_name, make_folder, sync
from topicjax.store.parts import SNAPSHOT_COLUMNS
from topicjax.store.reader import Run

UNFINISHED = ".unfinished"  # files are written here and moved out at the end
SAY_EVERY = 500  # trials

Say = Callable[[str], object]


def write_csv(run: Run, out: Path, say: Say = lambda text: None) -> list[Path]:
    """Write trials.csv (one row per trial) and trajectories.csv (one row per record), with all columns.

    If records have details, details.csv has one row per record and index.  Numbers have the fewest digits
    that restore them in their type; missing values and NaN are empty, list items are separated by spaces.
    Rows are converted a thousand at a time.
    """
    lists = {name: run.trials[name] for name in SNAPSHOT_COLUMNS if name in run.trials}
    texts = {name: [" ".join(map(str, own)) for own in values] for name, values in lists.items()}
    tables = {"trials.csv": run.trials.assign(**texts), "trajectories.csv": run.trajectories}
    if run.detail_names:
        tables["details.csv"] = run.details
    with new_folder(out) as folder:
        for name, frame in tables.items():
            say(f"{name}: {len(frame):,} rows")
            frame = without_formulas(frame)
            with open(folder / name, "wb") as file:
                csv.write_csv(pa.Table.from_pandas(frame, preserve_index=False), file)
    return [out / name for name in tables]


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Quote texts that a spreadsheet would compute, such as =1+1; numbers stay as they are."""
    found: Any = frame.apply(
        lambda own: own if is_numeric_dtype(own) else own.astype(object).map(quoted_cell)
    )
    return found


def write_tensorboard(run: Run, out: Path, say: Say = lambda text: None) -> list[Path]:
    """Write one folder per trial, named by its id, with one event file: records, settings and status.

    Only settings that vary in the run are written.  Details have tags like layer_1/norm.  TensorBoard's
    HParams page filters by settings, by status and by the last value of every column.
    """
    tools = load_tools()
    trials, trajectories = run.trials.set_index("trial_id"), run.trajectories
    for trial_id in trials.index:
        if not is_hex_name(trial_id):  # it becomes a folder name and must not contain a path
            raise StoreError(f"{run.folder} has trial {trial_id!r}; allowed: 12 hexadecimal digits")
    settings = trials.loc[:, [*varying_settings(run), "status"]].to_dict("index")
    rows_of, details_of = (
        table.groupby("trial_id", sort=False).indices for table in (trajectories, run.details)
    )
    paths = [Path(trial_id) / f"events.out.tfevents.{trial_id}" for trial_id in trials.index]
    with new_folder(out) as folder:
        for number, (trial_id, path) in enumerate(zip(trials.index, paths, strict=True)):
            if number % SAY_EVERY == 0:
                say(f"{number:,} of {len(trials):,} trials")
            (folder / path).parent.mkdir()
            records = trajectories.take(rows_of.get(trial_id, [])).drop(columns="trial_id")
            if run.detail_names:
                details = run.details.take(details_of.get(trial_id, []))
                records = records.join(wide(details, run.detail_names), on="step")
            write_events(tools, folder / path, records.sort_values("step"), settings[trial_id])
    return [out / path for path in paths]


def wide(details: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Pivot the details of one trial to a row per step and a column per index: layer_1/norm, ..."""
    table = details.drop(columns="trial_id").pivot(index="step", columns=names)
    table = table.sort_index(axis=1, level=list(range(1, 1 + len(names))))

    def named(name: str, *places: int) -> str:
        return "/".join([*(f"{index}_{at}" for index, at in zip(names, places, strict=True)), name])

    return table.set_axis([named(*column) for column in table.columns], axis=1)


FORMATS = {"csv": write_csv, "tensorboard": write_tensorboard}


class Tools(NamedTuple):
    """What we use of tensorboardX: the messages of an event file, and the writer that frames them."""

    Event: Any
    Summary: Any
    hparams: Any
    RecordWriter: Any


def load_tools() -> Tools:
    """Import what we use of tensorboardX, or raise a UserError that says how to install it."""
    try:
        summary = import_module("tensorboardX.summary")
        event = import_module("tensorboardX.proto.event_pb2")
        writer = import_module("tensorboardX.record_writer")
    except ModuleNotFoundError:
        advice = install_command("tensorboard")
        raise UserError(f"tensorboardX is not installed; to install it, type: {advice}") from None
    return Tools(event.Event, summary.Summary, summary.hparams, writer.RecordWriter)


def write_events(tools: Tools, path: Path, records: pd.DataFrame, settings: Mapping[str, Any]) -> None:
    """Write the event file of one trial.

    A column without any finite value does not apply to the trial and is left out; elsewhere NaN and infinity
    are kept, and TensorBoard marks them.
    """
    now = time.time()
    steps = records.pop("step").tolist()
    columns = {name: values for name, values in records.items() if np.isfinite(values).any()}
    known = {name: value for name, value in settings.items() if not pd.isna(value)}
    _, start, end = tools.hparams(known, {})  # TensorBoard's own experiment summary is better
    with contextlib.closing(tools.RecordWriter(str(path))) as writer:

        def write(**content: Any) -> None:
            writer.write(tools.Event(wall_time=now, **content).SerializeToString())

        write(file_version="brain.Event:2")
        write(summary=start)
        for step, *row in zip(steps, *(values.tolist() for values in columns.values()), strict=True):
            values = [dict(tag=name, simple_value=value) for name, value in zip(columns, row, strict=True)]
            write(step=step, summary=tools.Summary(value=values))
        write(summary=end)


def varying_settings(run: Run) -> list[str]:
    """List the settings that take several values among the trials."""
    return [name for name in run.setting_names if len(run.trials[name].unique()) > 1]


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder whose files are moved to `out` if the block succeeds and removed if it fails.

    Raise a UserError unless `out` is new or empty.
    """
    folder = out / UNFINISHED
    with explained("write", out):
        check_new(out)
        shutil.rmtree(folder, ignore_errors=True)  # left by an export that was killed
        make_folder(folder)
        try:
            yield folder
            for path in folder.rglob("*"):
                sync(path)  # before it gets its name
            for path in sorted(folder.iterdir()):
                path.rename(out / path.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sync(out)


def check_new(out: Path) -> None:
    """Raise a UserError unless the folder is new or empty."""
    try:
        names = set(os.listdir(out)) - {UNFINISHED}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UserError(f"{out} is not a folder; allowed: a new or empty folder (--out)") from None
    if names:
        raise UserError(f"{out} is not empty; allowed: a new or empty folder (--out), or delete it first")
