"""A reader's selection: axes and panels of maps, and filters on trials."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from topicjax.errors import UserError, unknown_name
from topicjax.settings import SEEDS, Setting
from topicjax.store.reader import Run

from ..pictures import Picture, first_of, written
from .contract import CLASS, Entry
from .lookup import Found

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Selection:
    """Settings on the axes and panels of maps, and filters as typed: name=v1,v2."""

    x: str | None = None
    y: str | None = None
    panel: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, Any]:
        """The arguments for figures that accept axes."""
        given = dict(x=self.x, y=self.y, panel=self.panel)
        return {name: value for name, value in given.items() if value}

    def check(self, run: Run, found: Found, entries: Sequence[Entry]) -> None:
        """Raise a UserError if a setting is unknown or given twice, or if no figure accepts an option."""
        named = [name for name in (self.x, self.y, *self.panel) if name]
        for name in named:
            if name not in run.setting_names:
                raise UserError(unknown_name("setting", name, run.setting_names))
        for name in SEEDS:
            if name in named:
                raise UserError(
                    f"a cell holds all its seeds; allowed as --x, --y or --panel: settings but {name}"
                )
        twice = [name for name in named if named.count(name) > 1]
        if twice:
            raise UserError(f"{twice[0]} is given twice; allowed: once, as --x, --y or --panel")
        taken = {"x", "y", *(name for entry in entries for name in entry.axes)}  # the explorer takes both
        for name in self.axes:
            if name not in taken:
                allowed = ", ".join(f"--{axis}" for axis in (*sorted(taken), "filter"))
                raise UserError(f"no figure of {run.experiment} takes --{name}; allowed: {allowed}")
        self.wanted(run, found)

    def wanted(self, run: Run, page: Found) -> dict[str, list[Any]]:
        """Parse the values of each filter into the type of its setting."""
        found: dict[str, list[Any]] = {}
        classes, settings = page.page.classes, page.settings.settings if page.settings else {}
        names = [*run.setting_names, *([CLASS] if classes else [])]
        for text in self.filters:
            name, equals, values = (part.strip() for part in text.partition("="))
            if not equals or not values:
                raise UserError(f"--filter {text!r} cannot be read; allowed: NAME=VALUE or NAME=V1,V2")
            if name not in names:
                raise UserError(unknown_name("setting", name, names))
            if name in found:
                raise UserError(f"--filter names {name} twice; allowed: once, as {name}=V1,V2")
            if name == CLASS:
                found[name] = class_names(values, classes)
            else:
                kind = settings.get(name)
                found[name] = [converted(kind, run.trials[name], name, one) for one in values.split(",")]
        return found

    def kept(self, run: Run, page: Found, classes: dict[str, str]) -> np.ndarray:
        """Mask the trials to show; if none is left, a UserError lists the values there are.

        `classes` maps trial ids to classes.
        """
        kept = np.ones(len(run.trials), bool)
        for name, values in self.wanted(run, page).items():
            ids: Any = run.trials["trial_id"]
            column: Any = ids.map(classes) if name == CLASS else run.trials[name]
            own = is_one_of(column, values)
            if not (kept & own).any():
                there = [written(value, 6) for value in sorted(column[kept].dropna().unique().tolist())]
                shown = ",".join(written(value, 6) for value in values)
                raise UserError(f"no trial is left with {name}={shown}; there are: {first_of(there)}")
            kept &= own
        return kept

    def sentence(self, shown: int, trials: int) -> str:
        """Say what was filtered; empty without a filter."""
        if not self.filters:
            return ""
        return f"Filtered by {'; '.join(self.filters)}: {shown:,} of {trials:,} trials are shown."

    def applied(self, entry: Entry, filtered: str) -> Entry:
        """Make an entry that uses these axes and says in its captions what was filtered."""
        options = {name: value for name, value in self.axes.items() if name in entry.axes}
        if not options and not filtered:
            return entry

        def make(run: Run, scores: pd.DataFrame, *pooled: Any) -> Any:
            made = entry.make(run, scores, *pooled, **options)
            if isinstance(made, list | tuple):
                return [said(picture, filtered) for picture in made]
            return said(made, filtered)

        title = f"{entry.title}. {filtered.rstrip('.')}" if filtered and entry.title else entry.title
        return replace(entry, make=make, title=title)


def said(made: Any, filtered: str) -> Any:
    """Begin the caption of a Picture with what was filtered; return anything else unchanged."""
    if not isinstance(made, Picture):
        return made
    return replace(made, caption=f"{filtered} {made.caption}".strip())


def class_names(text: str, classes: Iterable[str]) -> list[str]:
    """Split a list of classes at its commas; the name of a class may contain one itself."""
    classes = list(classes)
    parts, found = [part.strip() for part in text.split(",")], []
    while parts:
        both = ", ".join(parts[:2])
        name = both if both in classes else parts[0]
        if name not in classes:
            raise UserError(unknown_name("class", name, classes))
        found.append(name)
        parts = parts[1 + name.count(",") :]
    return found


def converted(kind: Setting | None, column: Any, name: str, text: str) -> Any:
    """Convert a text to a value, by the setting's own rules or by the type of its column."""
    text = text.strip()
    if kind is not None:
        return kind.convert(kind.kind.read(text))
    try:
        if is_bool_dtype(column):
            return TRUTH[text.lower()]
        return float(text) if is_numeric_dtype(column) else text
    except (KeyError, ValueError):
        allowed = "true or false" if is_bool_dtype(column) else "a number"
        raise UserError(f"{name} is {text!r}; allowed: {allowed}") from None


def is_one_of(column: Any, values: Sequence[Any]) -> np.ndarray:
    """Mask where a column has one of the values; numbers are compared to nine digits."""
    if is_numeric_dtype(column) and not is_bool_dtype(column):
        numbers = column.to_numpy(float)
        return np.any([np.isclose(numbers, value, rtol=1e-9, atol=0) for value in values], axis=0)
    return column.isin(values).to_numpy()
