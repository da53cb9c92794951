"""One look for every figure: the style, the colours of the classes, plain names, PNG and SVG files."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

WIDTH = 7.0  # inches: the text width of a two-column paper
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
CLASS_COLOURS = {  # Okabe and Ito's palette: told apart by colour-blind readers
    "two-stage": "#0072B2",
    "overlapping": "#56B4E9",
    "simultaneous": "#E69F00",
    "reversed": "#D55E00",
    "V-only": "#009E73",
    "compensated": "#CC79A7",
    "attention-only": "#F0E442",
    "unfinished": "#D9D9D9",
    "no-learning": "#A6A6A6",
    "unscored": "#FFFFFF",
    "diverged": "#333333",
}
CLASS_HATCHES = {"unfinished": "////", "no-learning": "....", "unscored": "\\\\\\\\", "diverged": "xxxx"}
PART_COLOURS = {"norm_v": "#0072B2", "norm_k": "#D55E00", "norm_q": "#E69F00", "norm_e": "#009E73"}
LABELS = {  # a column as a reader says it
    "norm_k": r"$\|W^K\|_F$",
    "norm_q": r"$\|W^Q\|_F$",
    "norm_v": r"$\|W^V\|_F$",
    "norm_e": r"$\|W^E\|_F$",
    "a_topic": "attention score: same topic - other topic",
    "v_block": "value: same topic - other topic",
    "learning_rate": "learning rate",
    "init_scale": "init scale",
    "key_visibility": "keys",
    "cross_entropy": "cross-entropy",
    "sgd": "SGD",
    "adam": "Adam",
    "theta": "Θ",
    "log_lag": "log lag",
}


@dataclass(frozen=True)
class Picture:
    """A finished figure with what a reader needs beside it."""

    figure: Figure
    title: str
    caption: str  # what is drawn, over how many trials, and what was left out
    alt: str  # for readers who cannot see it: what it shows, in a sentence

    def save(self, path: str | Path) -> list[Path]:
        """Write path.png and path.svg; return both paths."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
        with style():
            for file in files:
                metadata = {"Date": None} if file.suffix == ".svg" else None
                self.figure.savefig(file, metadata=metadata)
                self.figure.set_layout_engine("none")  # laid out once: it takes as long as drawing
        return files


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the project's style; figures made inside need no window and no pyplot."""
    with matplotlib.rc_context(STYLE):
        yield


def label(name: Any) -> str:
    """Return a setting or column as a reader says it."""
    return LABELS.get(str(name), str(name).replace("_", " "))
