"""Copy figures of reports into the gallery; draw the pictures of the README and the site from `two_stage`.

    .venv/bin/topicjax run two_stage
    .venv/bin/topicjax report results/two_stage
    .venv/bin/python docs/pictures.py results/two_stage [further run folders]

A folder has the name of its sweep.  Writes docs/gallery/RUN_FIGURE.png for the figures of its report that
docs/gallery/captions.toml lists, and from two_stage docs/front.png and docs/theta.png.
"""

import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import topicjax
from topicjax.analysis.maps.drawing import class_panel
from topicjax.analysis.one_layer.phase_maps import LOOKS, MAP_VIEWS, map_layout
from topicjax.analysis.one_layer.scores import score_trials, stages_of
from topicjax.analysis.one_layer.trajectories import progress_panel
from topicjax.analysis.pictures import style
from topicjax.analysis.topic_model import PART_COLOURS

HERE = Path(__file__).resolve().parent
PANEL = dict(optimizer="sgd", objective="cross_entropy")
TRIAL = dict(**PANEL, learning_rate=100, init_scale=1e-3, seed=0)  # drawn with either kind of keys
KEYS = {"unmasked": "masked positions hidden as keys", "all": "all positions are keys"}
GALLERY = HERE / "gallery"
CAPTIONS = GALLERY / "captions.toml"
COLOURS = 255  # of the pictures in the repository: a fifth of the bytes, no visible difference


def having(frame: pd.DataFrame, **settings: object) -> pd.DataFrame:
    """Select the rows with these settings; numbers are compared to rounding."""
    for name, value in settings.items():
        same = np.isclose(frame[name], value) if isinstance(value, float | int) else frame[name] == value
        frame = frame[same]
    return frame


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a small PNG."""
    figure.savefig(path, dpi=200)
    shrink(path, path)


def shrink(source: Path, path: Path) -> None:
    """Write a picture with few colours."""
    with Image.open(source) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def front(run: topicjax.Run, scores: pd.DataFrame) -> Figure:
    """Draw a map for either kind of keys, and below each the progress of one of its trials."""
    with style():
        figure = Figure((9.2, 2.75))
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1.25, 1.25))
        for number, (keys, words) in enumerate(KEYS.items()):
            ids = having(scores, **PANEL, key_visibility=keys)["trial_id"].tolist()
            part = scores[scores["trial_id"].isin(ids)]
            layout, _ = map_layout(run.select(ids), part, "loss", "learning_rate", "init_scale", ())
            grid, cells = layout.grids[0][0], layout.parts[0][0]
            class_panel(cells, axes[number], grid, MAP_VIEWS["loss"], LOOKS)
            axes[number].set_title(words, fontsize=8)
            place = grid.xs.index(max(grid.xs)), grid.ys.index(sorted(grid.ys)[1])
            axes[number].plot(*place, "o", ms=17, mfc="none", mec="black", mew=1.0)
            draw_trial(run, scores, keys, axes[2 + number])
        axes[1].set(ylabel="", yticklabels=[])
        axes[3].set(ylabel="", yticklabels=[])
        axes[2].set_ylabel("progress")
        names = [name for name in LOOKS if name in {*having(scores, **PANEL)["class"]}]
        handles = [Patch(color=LOOKS[name].colour, label=name) for name in names]
        handles += [Patch(fc="white", ec="0.3", lw=2.5, label="attention not topical")]
        handles += axes[2].get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)
    return figure


def draw_trial(run: topicjax.Run, scores: pd.DataFrame, keys: str, ax: Axes) -> None:
    """Draw the progress of one trial; its title has its class and Theta."""
    (trial_id,) = having(scores, **TRIAL, key_visibility=keys)["trial_id"]
    stages = stages_of(run, scores, trial_id)
    progress_panel(stages, ax)
    own = stages.scores
    ax.set(xlabel="step", xlim=(0, None), title=f"circled cell: {own['class']}, Θ = {own['theta']:.2f}")


def theta(run: topicjax.Run, scores: pd.DataFrame) -> Figure:
    """Draw how Theta follows from the progress of V and of attention, for two trials."""
    with style():
        figure = Figure((7.2, 2.6))
        for keys, ax in zip(KEYS, figure.subplots(1, 2, sharey=True), strict=True):
            (trial_id,) = having(scores, **TRIAL, key_visibility=keys)["trial_id"]
            stages = stages_of(run, scores, trial_id)
            curves, score = stages.progress, stages.scores["theta"]
            known = np.isfinite(curves["F_V"] + curves["F_A"])  # the way up
            step = np.linspace(0, curves["step"][known].max(), 2001)
            value, attention = (
                np.interp(step, curves["step"][known], curves[f][known]) for f in ("F_V", "F_A")
            )
            least = np.minimum(value, 1 - attention)
            ax.fill_between(step, 0, least, color="0.85", label="the smaller of the two")
            ax.plot(step, value, color=PART_COLOURS["norm_v"], label="P: progress of V")
            ax.plot(step, 1 - attention, color=PART_COLOURS["norm_k"], label="1 - Q: attention still to come")
            ax.plot(step[np.argmax(least)], least.max(), "ko", ms=4, clip_on=False, label="Θ")
            ax.axhline(score, color="black", lw=0.6, ls=":")
            ax.set(xlabel="step", xlim=(0, None), ylim=(0, 1.08))
            ax.set_title(f"{stages.scores['class']}: Θ = {score:.2f}")
        handles = ax.get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)
    return figure


def copy(folder: Path, figures: Iterable[str], gallery: Path) -> list[str]:
    """Copy figures of a run's report into the gallery; return the names of those that it lacks."""
    missing = []
    for name in figures:
        source = folder / "figures" / f"{name}.png"
        if source.exists():
            shrink(source, gallery / f"{folder.name}_{name}.png")
        else:
            missing.append(name)
    return missing


def main(folders: Sequence[Path]) -> None:
    """Draw and copy all pictures of these runs."""
    listed = {run["name"]: run["figures"] for run in tomllib.loads(CAPTIONS.read_text())["run"]}
    for folder in folders:
        if folder.name not in listed:
            sys.exit(f"{folder}: the gallery has no pictures of this run; allowed: {', '.join(listed)}")
    for folder in folders:
        if folder.name == "two_stage":
            run = topicjax.load(folder)
            scores = score_trials(run)
            save(front(run, scores), HERE / "front.png")
            save(theta(run, scores), HERE / "theta.png")
        missing = copy(folder, listed[folder.name], GALLERY)
        if missing:
            print(f"{folder}/figures lacks {', '.join(missing)}: make its report, or change {CAPTIONS.name}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
