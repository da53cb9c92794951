"""Details of any experiment (one value per layer, say): medians and quartiles over trials of each depth."""

from dataclasses import replace

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from topicjax.errors import UserError
from topicjax.store.reader import Run

from ..frames import varying
from ..pictures import Picture, counted, evenly
from .any_records import (
    MOST_LINES,
    PANELS,
    is_ok,
    left_out,
    quartiles,
    rows_of,
    said,
    step_figure,
)
from .step_panels import MOST_POINTS

MOST_FIGURES = 4  # one for each number of places


def has_details(run: Run, cells: pd.DataFrame) -> bool:
    """Return whether records have details, of a trial that did not diverge."""
    return bool(run.detail) and bool(is_ok(run).any())


def details(run: Run, cells: pd.DataFrame) -> list[Picture]:
    """Return every detail column over the steps with a line per place; a figure per number of places."""
    index, own = run.detail, rows_of(run, run.details, is_ok(run))
    columns = [name for name in own.columns[3:] if is_numeric_dtype(own[name])]
    full = [str(name) for name in columns if np.isfinite(own[name].to_numpy(float)).any()]
    if not full:
        raise UserError("no value of the details of trials that did not diverge is finite")
    places = own.groupby("trial_id")[index].transform("max").to_numpy(int)
    found = np.unique(places)
    drawn = found[evenly(len(found), MOST_FIGURES)]
    remarks = {
        left_out(run): not is_ok(run).all(),
        f"Drawn are the first {PANELS} of {len(full)} columns.": len(full) > PANELS,
        f"Drawn are {len(drawn)} of {len(found)} numbers of places.": len(drawn) < len(found),
    }
    return [figure(run, own.loc[places == count], full[:PANELS], int(count), remarks) for count in drawn]


def figure(run: Run, own: pd.DataFrame, names: list[str], count: int, remarks: dict[str, bool]) -> Picture:
    """Return the figure of the trials that have so many places."""
    index, rows = run.detail, own["trial_id"].to_numpy(int)
    place = np.arange(1, count + 1)[evenly(count, MOST_LINES)]
    series = own.assign(trial_id=rows * count + own[index].to_numpy(int) - 1)  # of one place of one trial
    series = series.loc[np.isin(own[index].to_numpy(int), place)]
    place_of = np.tile(np.arange(1, count + 1), len(run.trials))
    shown = pd.Series(place, place, name=index)
    over = [said(name) for name in varying(run.trials.iloc[np.unique(rows)], run.setting_names)]
    parts = {
        f"{counted(len(np.unique(rows)), 'trial')} with {counted(count, said(index))}.": True,
        f"Lines are medians and bands quartiles over {', '.join(over)}.": over,
        f"Drawn are {len(place)} of {count} lines.": len(place) < count,
        f"More than {MOST_POINTS} records are drawn as medians over bins of steps.": (
            own["step"].nunique() > MOST_POINTS
        ),
    }
    panels = {name: quartiles(series, name, place_of) for name in names}
    picture = step_figure(panels, shown.to_frame(), shown if count > 1 else None, {**parts, **remarks})
    return replace(picture, title=f"{picture.title}, {counted(count, said(index))}")
