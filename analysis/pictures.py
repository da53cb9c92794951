"""Common style of all figures, wording of settings and values, and PNG and SVG files."""

import contextlib
import io
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from topicjax.errors import UserError, printable

from .outputs import write_file

if TYPE_CHECKING:  # pages use words and colours without drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_VALUES = 12  # entries of a list in a sentence: values of a setting, plans, runs that share a version
WIDTH = 5.0  # inches: at this width text is legible on a phone 390 pixels across
SMALL = 7.0  # points: the smallest text in a figure
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")  # Okabe and Ito's
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
PATH, NUMBER = re.compile(r'(?<= d=")[^"]+'), re.compile(r"-?\d+\.\d{3,}")
QUICK_PNG = {"compress_level": 3}  # takes two thirds of the time of the usual 6; files are 5 % larger
LAID_OUT = {"figure.constrained_layout.use": False}  # else a figure without a layout engine gets a new one
# Slices fill these when they are imported; they apply to every figure of their runs.
LABELS: dict[str, str] = {}  # a column, setting or value in words
PHRASES: dict[str, dict[Any, str]] = {}  # short phrases for settings: per value, `...` for all other values
VALUE_ORDER: list[str] = []  # values of settings in the order of panels, where this is not alphabetical


@dataclass(frozen=True)
class Picture:
    """A finished matplotlib figure (or its axes) with title, caption and alt text."""

    figure: "Figure"
    title: str
    caption: str  # what is drawn, over how many trials, and what was left out
    alt: str = ""  # alt text for readers who cannot see it, one sentence; by default the caption

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
        with style(STYLE | LAID_OUT), warnings.catch_warnings(), remembered_ticks(self.figure):
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as a box
            self._lay_out()
            for file in files:
                is_svg, drawn = file.suffix == ".svg", io.BytesIO()
                how: Any = {"metadata": {"Date": None}} if is_svg else {"pil_kwargs": QUICK_PNG}
                self.figure.savefig(drawn, format=file.suffix[1:], **how)
                data = drawn.getvalue()
                if is_svg:  # it repeats every label in a comment, as it came
                    data = shorter(printable(data.decode())).encode()
                write_file(file, data)
        return files

    def _lay_out(self) -> None:
        """Place the panels once, for all files: `savefig` would draw the figure one more time to do it."""
        engine = self.figure.get_layout_engine()
        if engine and any(ax.get_aspect() != "auto" for ax in self.figure.axes):
            engine.execute(self.figure)  # panels of fixed aspect need two passes, or titles are cut off
        if engine:
            self.figure.set_dpi(STYLE["savefig.dpi"])
            engine.execute(self.figure)
            self.figure.set_layout_engine(None)  # "none" would leave a placeholder, for which it draws too

    def close(self) -> None:
        """Release the figure's memory."""
        for ax in [*self.figure.axes]:  # `Figure.clear` would first set up every axes anew
            ax.remove()
        if "matplotlib.pyplot" in sys.modules:  # pyplot keeps the figures it made until told to close them
            sys.modules["matplotlib.pyplot"].close(self.figure)


def shorter(svg: str) -> str:
    """Round the coordinates of paths to hundredths of a point: they are most of a figure with many curves."""
    return PATH.sub(lambda path: NUMBER.sub(lambda number: f"{float(number[0]):z.2f}", path[0]), svg)


@contextlib.contextmanager
def remembered_ticks(figure: "Figure") -> Iterator[None]:
    """Compute the ticks of an axis and the boxes of their labels only when its place or range changes.

    In a single draw matplotlib computes both several times: for the axis, its label, the title above and the
    axes that are aligned with it.  Nothing else may change while a figure is saved.
    """
    remembered = ("_update_ticks", "_get_ticklabel_bboxes")
    axes = [(ax, axis) for ax in figure.axes if ax.name == "rectilinear" for axis in (ax.xaxis, ax.yaxis)]
    for (ax, axis), name in itertools.product(axes, remembered):
        if hasattr(axis, name):  # these are matplotlib's own methods: without them saving is only slower
            setattr(axis, name, remembering(getattr(axis, name), figure, ax))
    try:
        yield
    finally:
        for (_, axis), name in itertools.product(axes, remembered):
            vars(axis).pop(name, None)


def remembering(compute: Callable[..., Any], figure: "Figure", ax: "Axes") -> Callable[..., Any]:
    """Return a function that computes again only if resolution, place or ranges of the axes have changed."""
    known: dict[tuple[Any, ...], Any] = {}

    def found(*arguments: Any) -> Any:
        state = (figure.dpi, ax.bbox.bounds, ax.viewLim.bounds)
        if state not in known:
            known.clear()  # ticks are moved in place: what was found for another state is no longer true
            known[state] = compute(*arguments)
        return known[state]

    return found


@contextlib.contextmanager
def style(chosen: dict[Any, Any] = STYLE) -> Iterator[None]:
    """Draw in the project's style; figures made inside need neither a display nor pyplot."""
    import matplotlib

    with matplotlib.rc_context(chosen):
        yield


def label(name: Any) -> str:
    """Write a setting or column in words."""
    return LABELS.get(str(name), printable(str(name)).replace("_", " "))


def written(value: Any, digits: int = 3) -> str:
    """Write the value of a setting for a reader: words as they are, floats to `digits` significant digits."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return LABELS.get(str(value), printable(str(value)))
    if not np.isfinite(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def distinct_texts(values: Sequence[Any]) -> list[str]:
    """Write the values with two digits, or with as many as they need to differ."""
    tries = ([written(value, digits) for value in values] for digits in range(2, 18))
    plain = [printable(str(value)) for value in values]  # needed for words that share a label
    return next((names for names in tries if len({*names}) == len(names)), plain)


def setting_text(name: str, value: Any) -> str:
    """Write a setting with its value, short enough for titles."""
    phrases = PHRASES.get(name, {})
    return phrases.get(value, phrases.get(..., f"{label(name)} {{}}")).format(written(value))


def described(values: Mapping[Any, Any] | pd.Series, names: Iterable[str]) -> list[str]:
    """Write each of these settings with its value."""
    return [setting_text(name, values[name]) for name in names]


def evenly(count: int, most: int) -> np.ndarray:
    """Pick at most `most` evenly spaced indices out of `count`."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def sentences(parts: Mapping[str, Any]) -> str:
    """Join the sentences that hold."""
    return " ".join(sentence for sentence, holds in parts.items() if holds)


def first_of(texts: Sequence[str], between: str = ", ") -> str:
    """Join the texts; beyond the first MOST_VALUES write '...'."""
    more = [] if len(texts) <= MOST_VALUES else ["..."]
    return between.join([*texts[:MOST_VALUES], *more])
