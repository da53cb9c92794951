"""Tables for readers: means with standard errors, medians with quartiles; written as CSV and Markdown."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from topicjax.errors import printable, quoted_cell

from .outputs import write_file
from .pictures import label, written

ERROR = "_se"  # the standard error of column x is in column x_se
SPREAD = ("_q25", "_q75")  # the quartiles of column x are in columns x_q25 and x_q75


def spread_text(values: Sequence[float]) -> str:
    """Write a median with its quartiles, to four decimals as for losses."""
    if not np.isfinite(values).all():
        return "-"
    middle, low, high = (f"{value:.4f}" for value in values)
    return f"{middle} ({low} to {high})"


def to_csv(table: pd.DataFrame, path: str | Path) -> Path:
    """Write the table with all its digits; return the path."""
    safe: Any = table.apply(lambda own: own if is_numeric_dtype(own) else own.map(quoted_cell))
    return write_file(Path(path), safe.to_csv(index=False))


def to_text(table: pd.DataFrame, headers: Mapping[str, str], digits: int = 3) -> pd.DataFrame:
    """Format the table for readers: "mean ± standard error", "median (quartile to quartile)".

    Means have `digits` significant digits.  `headers` gives column titles in words.
    """
    beside = {f"{name}{end}" for name in table for end in (ERROR, *SPREAD)}
    names = [str(name) for name in table if name not in beside]
    rows = [
        [
            spread_text([row[name], *(row[name + end] for end in SPREAD)])
            if name + SPREAD[0] in row
            else entry_text(row[name], row.get(name + ERROR), digits)
            for name in names
        ]
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=[headers.get(name, label(name)) for name in names], dtype=object)


def to_markdown(table: pd.DataFrame, headers: Mapping[str, str], digits: int = 3) -> str:
    """Write the table of `to_text` in Markdown."""
    return markdown_table(to_text(table, headers, digits))


def markdown_table(read: pd.DataFrame) -> str:
    """Write a table of texts in Markdown."""
    cells = [
        [markdown_cell(str(text)) for text in line] for line in (read.columns, *read.to_numpy().tolist())
    ]
    lines = [cells[0], ["---"] * len(read.columns), *cells[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def markdown_cell(text: str) -> str:
    """Escape a text so that a Markdown table shows it as it is, on one line.

    Underscores inside of words mark nothing and stay, so that settings can be copied from the file.
    """
    words = printable(" ".join(text.split()))
    words = re.sub(r"[\\|`*\[\]]|<(?=[A-Za-z/!?])|&(?=#?\w+;)", r"\\\g<0>", words)
    return re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", lambda marks: r"\_" * len(marks[0]), words)


def entry_text(value: Any, error: float | None, digits: int) -> str:
    """Write a mean with its error, both to the decimals of the mean, or a setting or count unchanged."""
    if error is None:
        return written(value, 4)
    if not np.isfinite(value):
        return "-"
    decimals = 0 if value == 0 else max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    text = f"{value:.{decimals}f}"
    if not np.isfinite(error):
        return text
    is_tiny = error > 0 and round(error, decimals) == 0
    return f"{text} ± <{10**-decimals:.{decimals}f}" if is_tiny else f"{text} ± {error:.{decimals}f}"
