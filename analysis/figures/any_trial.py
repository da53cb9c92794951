"""Pictures of one trained model of any experiment: its records and settings, and its weights."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype

from topicjax.errors import counted
from topicjax.store.reader import Run

from ..frames import reference_losses
from ..page.contract import Page
from ..pictures import SMALL, WIDTH, Picture, sentences, style
from .any_run import COLOURS, PANELS, draw_references, in_words, is_wide, loss_column, said
from .step_panels import ACROSS, panel_grid, step_axis

MOST_ARRAYS = 12  # arrays drawn; snapshots have all
LARGEST = 1_000_000  # entries of an array that is drawn


def inspect(run: Run, trial_id: str, step: int, page: Page) -> list[Picture]:
    """Draw two pictures of a trial: its records with its settings, and its weights at this step."""
    return [records(run.select([trial_id]), step, page), weights(run, trial_id, step)]


def records(run: Run, step: int, page: Page) -> Picture:
    """Draw the columns of a run's only trial over the steps, with reference losses and settings."""
    trial, own, loss = run.trials.iloc[0], run.trajectories.sort_values("step"), loss_column(run, page)
    names = [loss, *(name for name in own if name not in ("trial_id", "step", loss))]
    full = [n for n in names if n and is_numeric_dtype(own[n]) and np.isfinite(own[n].to_numpy(float)).any()]
    references = reference_losses(run, page.references)
    settings = ", ".join(in_words(name, trial[name]) for name in run.setting_names)
    with style():
        figure, columns = panel_grid([[said(name)] for name in full[:PANELS]] or [[""]], ACROSS, {"": 1.5})
        for (ax,), name in zip(columns, full, strict=False):
            values = own[name].to_numpy(float)
            ax.plot(own["step"], values, color=COLOURS[0], linewidth=1)
            ax.axvline(step, color="0.6", linewidth=4, alpha=0.4, zorder=0)
            if is_wide(values[np.isfinite(values)], 100):
                ax.set_yscale("log")
            if name == loss and len(references.columns):
                draw_references(ax, references.iloc[0])
                ax.legend(fontsize=SMALL)
            step_axis(ax, own["step"])
        figure.suptitle(textwrap.fill(f"trial {trial['trial_id']}: {settings}", 95), fontsize=SMALL)
    more = {
        "Grey: the step of the weights.": True,
        f"Shown: the first {PANELS} of {len(full)} columns.": len(full) > PANELS,
        f"The trial {trial['status']}.": trial["status"] == "diverged",
    }
    title, shown = f"Records of trial {trial['trial_id']}", ", ".join(map(said, full[:PANELS]))
    return Picture(figure, title, sentences(more), f"{shown} of one trial against the step.")


def weights(run: Run, trial_id: str, step: int) -> Picture:
    """Draw the arrays of a trial's weights: matrices as heat maps, vectors as lines."""
    arrays = dict(leaves(run.restore(trial_id, step)))
    drawn = {name: array for name, array in arrays.items() if 0 < array.size <= LARGEST}
    shown = dict(list(drawn.items())[:MOST_ARRAYS])
    lines = -(-max(1, len(shown)) // ACROSS)
    with style():
        figure = Figure(figsize=(WIDTH, 2.2 * lines + 0.3), layout="constrained")
        axes = figure.subplots(lines, ACROSS, squeeze=False).ravel()
        for ax, (name, array) in zip(axes, shown.items(), strict=False):
            draw_array(figure, ax, np.asarray(array, float))
            ax.set_title(f"{name} ({' x '.join(map(str, array.shape)) or 'a number'})")
        for ax in axes[len(shown) :]:
            ax.set_axis_off()
    more = {
        "Colour scale of each array: plus and minus its largest entry.": True,
        f"Shown: {len(shown)} of {counted(len(arrays), 'array')}.": len(shown) < len(arrays),
    }
    title = f"Weights of trial {trial_id} at step {step}"
    return Picture(figure, title, sentences(more), f"Heat maps of {', '.join(shown)}.")


def draw_array(figure: Figure, ax: Axes, array: np.ndarray) -> None:
    """Draw an array: a vector as a line, others as a heat map of the last index against all others."""
    array = np.where(np.isfinite(array), array, np.nan)
    if array.ndim < 2 or (1 in array.shape[-2:] and array.ndim == 2):
        ax.plot(array.ravel(), "o-" if array.size < 50 else "-", markersize=2, color=COLOURS[0])
        ax.set_xlabel("index")
        return
    flat = array.reshape(-1, array.shape[-1])
    limit = float(np.nanmax(np.abs(flat), initial=0.0)) or 1.0
    image = ax.imshow(flat, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto")
    figure.colorbar(image, ax=ax)


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a tree of weights, each named by its path."""
    if isinstance(tree, Mapping | list | tuple):
        named = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for key, branch in named:
            yield from leaves(branch, f"{name}/{key}" if name else str(key))
    elif tree is not None:
        yield name or "weights", np.asarray(tree)
