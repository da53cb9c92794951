"""One look for every figure: style, settings and values in words, PNG and SVG files."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError

from .outputs import write_file

if TYPE_CHECKING:  # words and colours are used without drawing
    from matplotlib.figure import Figure

MOST_VALUES = 12  # of a setting, of plans in a sentence, of runs that share a version
WIDTH = 5.0  # inches: at this width text is legible on a phone, 390 pixels across
SMALL = 7.0  # points: the smallest text of a figure
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "topicjax",  # equal figures give equal files
}
# What slices add when they are imported, for all that is drawn of their runs:
LABELS: dict[str, str] = {}  # a column, setting or value as a reader says it
PHRASES: dict[str, dict[Any, str]] = {}  # settings said in a word or two: by value, or for any other (...)
VALUE_ORDER: list[str] = []  # values of settings in the order of panels, where it is not that of the alphabet


@dataclass(frozen=True)
class Picture:
    """A finished figure of matplotlib, or its axes, with what a reader needs beside it."""

    figure: "Figure"
    title: str
    caption: str  # what is drawn, over how many trials, and what was left out
    alt: str = ""  # for readers who cannot see it: what it shows, in a sentence; by default the caption

    def __post_init__(self) -> None:
        """Take the figure of axes, or of the first of several."""
        drawn: Any = np.ravel(np.array(self.figure, object))[0]
        while not hasattr(drawn, "savefig"):
            if not hasattr(drawn, "figure"):
                raise UserError(f"a Figure is made of {type(drawn).__name__}; allowed: matplotlib's, or axes")
            drawn = drawn.figure
        object.__setattr__(self, "figure", drawn)
        object.__setattr__(self, "alt", self.alt or self.caption)

    def save(self, path: str | Path) -> list[Path]:
        """Write path.png and path.svg; return both paths, or raise a StoreError if they cannot be written."""
        path = Path(path)
        files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
        with style():
            engine = self.figure.get_layout_engine()
            if engine and any(ax.get_aspect() != "auto" for ax in self.figure.axes):
                engine.execute(self.figure)  # where a panel may not fill its room one pass cuts titles
            for file in files:
                metadata = {"Date": None} if file.suffix == ".svg" else None
                drawn = io.BytesIO()
                self.figure.savefig(drawn, format=file.suffix[1:], metadata=metadata)
                write_file(file, drawn.getvalue())
                self.figure.set_layout_engine("none")  # laid out once: it takes as long as drawing
        return files

    def close(self) -> None:
        """Let go of what was drawn."""
        self.figure.clear()
        if "matplotlib.pyplot" in sys.modules:  # a figure that pyplot made stays there until it is told
            sys.modules["matplotlib.pyplot"].close(self.figure)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the project's style; figures made inside need no display and no pyplot."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def label(name: Any) -> str:
    """Return a setting or column as a reader says it."""
    return LABELS.get(str(name), str(name).replace("_", " "))


def written(value: Any, digits: int = 3) -> str:
    """Return the value of a setting as a reader writes it, numbers to so many significant digits."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return label(value)
    if not np.isfinite(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def distinct_texts(values: Sequence[Any]) -> list[str]:
    """Return the values with two digits, or as many as tell them apart."""
    tries = ([written(value, digits) for value in values] for digits in range(2, 18))
    plain = [str(value) for value in values]  # of words that differ in an underscore only
    return next((names for names in tries if len({*names}) == len(names)), plain)


def setting_text(name: str, value: Any) -> str:
    """Return a setting with its value, short for titles."""
    phrases = PHRASES.get(name, {})
    return phrases.get(value, phrases.get(..., f"{label(name)} {{}}")).format(written(value))


def described(values: Mapping[Any, Any] | pd.Series, names: Iterable[str]) -> list[str]:
    """Return each of these settings with its value."""
    return [setting_text(name, values[name]) for name in names]


def counted(count: int, thing: str) -> str:
    """Return '1 trial', '1,234 trials'."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def evenly(count: int, most: int) -> np.ndarray:
    """Return the places of so many things, or of the most that are drawn, evenly picked."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def sentences(parts: Mapping[str, Any]) -> str:
    """Return the sentences that hold."""
    return " ".join(sentence for sentence, holds in parts.items() if holds)


def first_of(texts: Sequence[str], between: str = ", ") -> str:
    """Return the texts, at most MOST_VALUES of them."""
    more = [] if len(texts) <= MOST_VALUES else ["..."]
    return between.join([*texts[:MOST_VALUES], *more])
