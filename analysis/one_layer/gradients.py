"""Gradients at step 0: is that of W^V larger than those of W^K and W^Q if the start is small?  (section 8.1)

The gradient of W^K has a factor W^Q and a factor W^V, that of W^Q a factor W^K and a factor W^V, and that of
W^V neither: so |dL/dW^V| / |dL/dW^K| should be C / s^2 for weights of a small scale s.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from topicjax.errors import counted
from topicjax.settings import SEEDS
from topicjax.stages import Records
from topicjax.store.reader import Run

from ..frames import Frame, column, distinct, varying
from ..page.contract import Claim, Verdict
from ..pictures import PALETTE, WIDTH, Picture, sentences, setting_text, style, written
from ..topic_model import aligned, settings_in, uses_softmax
from .scores import trains_both

RATIOS = {"ratio_k": "W^K", "ratio_q": "W^Q"}
SMALL_START = 0.1  # scales up to here count as near zero: those of the paper's Figure 4 and of two_stage
LEAST_SCALES = 3
BOTH_FACTORS = 1.5  # power of 1 / scale above which one factor, W^Q near 0, does not explain the ratio
POOLED = (*SEEDS, "init_scale", "learning_rate", "steps", "record_every", "optimizer", "until")


def first_gradients(run: Run) -> Frame:
    """Tabulate the trials that train both parts: settings, gradient norms at step 0, and their ratios.

    The claim is about softmax attention; other trials are left out.  Trials that differ only in settings that
    act later (learning rate, optimizer) have the same gradients and are kept once.
    """
    run = aligned(run)
    records = Records.of(run.trajectories["step"].to_numpy())
    first: Any = run.trajectories.iloc[records.start].reset_index(drop=True)
    frame = run.trials[[*settings_in(run.trials)]].reset_index(drop=True)
    norms = {name: column(first, f"grad_norm_{name}") for name in "kqv"}
    with np.errstate(divide="ignore", invalid="ignore"):
        frame = frame.assign(
            **{f"grad_norm_{name}": values for name, values in norms.items()},
            **{f"ratio_{name}": norms["v"] / norms[name] for name in "kq"},
        )
    used = frame.loc[
        trains_both(frame)
        & uses_softmax(frame)
        & np.isfinite(frame[list(RATIOS)]).all(axis=1)
        & (frame["init_scale"] > 0)
    ]
    same = [name for name in settings_in(used) if name not in POOLED]
    return used.drop_duplicates([*same, *(name for name in SEEDS if name in used), "init_scale"]).reset_index(
        drop=True
    )


def has_first_gradients(run: Run, scores: pd.DataFrame) -> bool:
    """Tell whether gradients were recorded at several init scales."""
    needed = {"grad_norm_k", "grad_norm_q", "grad_norm_v"}
    if not needed <= {*run.trajectories} or not trains_both(scores).any():
        return False
    return first_gradients(run)["init_scale"].nunique() >= LEAST_SCALES


def scaling(frame: Frame) -> Frame:
    """Fit ratio = C / s^p over the small scales: a row per combination of the settings that vary."""
    names = varying(frame, [name for name in settings_in(frame) if name not in POOLED])
    number, kinds = distinct(frame, names)
    rows = []
    for place, kind in enumerate(kinds.to_dict("records")):
        own = frame[(number == place) & (frame["init_scale"] <= SMALL_START)]
        if own["init_scale"].nunique() < 2:
            continue
        x = np.log(own["init_scale"].to_numpy(float))
        for name, part in RATIOS.items():
            slope, height = np.polyfit(x, np.log(own[name].to_numpy(float)), 1)
            rows.append(kind | dict(part=part, models=len(own), power=-slope, constant=float(np.exp(height))))
    return pd.DataFrame(rows, columns=[*names, "part", "models", "power", "constant"])


def gradient_table(run: Run, scores: pd.DataFrame) -> Frame:
    """Tabulate the gradient norms at step 0 by init scale: medians over seeds and other settings."""
    columns = ["grad_norm_v", "grad_norm_k", "grad_norm_q", "ratio_k", "ratio_q"]
    by_scale: Any = first_gradients(run).groupby(["objective", "init_scale"])[columns]
    return by_scale.median().join(by_scale.size().rename("trials")).reset_index()


def gradient_ratios(run: Run, scores: pd.DataFrame) -> Picture:
    """Draw |dL/dW^V| / |dL/dW^K| and the same for W^Q at step 0 against the init scale."""
    frame = first_gradients(run)
    by = "init" if frame["init"].nunique() > 1 else "objective"
    kinds, fits = sorted(set(frame[by])), scaling(frame)
    colours = dict(zip(kinds, PALETTE, strict=False))
    scale = np.geomspace(frame["init_scale"].min(), frame["init_scale"].max(), 2)
    with style():
        figure = Figure(figsize=(WIDTH, 3.2))
        axes = figure.subplots(1, len(RATIOS), sharey=True, squeeze=False)[0]
        for ax, (name, part) in zip(axes, RATIOS.items(), strict=True):
            for kind, colour in colours.items():
                own = frame[frame[by] == kind]
                ax.plot(own["init_scale"], own[name], "o", color=colour, ms=3, mfc="none", mew=0.7)
                of_kind = (fits["part"] == part) & (fits.get(by, kind) == kind)
                height = fits.loc[of_kind, "constant"].median()
                ax.plot(scale, height / scale**2, color=colour, lw=0.9, ls="--", zorder=1)
            ax.axhline(1, color="0.6", lw=0.8, zorder=1)
            ax.set(xscale="log", yscale="log", xlabel="init scale $s$")
            ax.set_ylabel(rf"$|\nabla_{{W^V}} L|\,/\,|\nabla_{{{part}}} L|$ at step 0")
        marks = [
            Line2D([], [], color=colour, ls="", marker="o", ms=4, mfc="none", label=setting_text(by, kind))
            for kind, colour in colours.items()
        ]
        line = Line2D([], [], color="0.3", lw=0.9, ls="--", label=r"$C / s^2$")
        figure.legend(handles=[*marks, line], loc="outside lower center", ncols=3)
    parts = {
        "Norm of the gradient of W^V divided by that of W^K (left) and W^Q (right) on the first batch, a "
        f"ring per start and setting: {counted(len(frame), 'start')}.": True,
        f"Lines have the fitted height of scales up to {SMALL_START:g}. Above the grey line the gradient of "
        "W^V is the larger one.": True,
    }
    return Picture(figure, "Gradients at step 0", sentences(parts))


def gradients_differ(run: Run, scores: pd.DataFrame) -> Verdict:
    """Check that the first gradient of W^V is the largest for starts near zero, and for the stated reason.

    The paper's reason, W^Q close to 0, is one factor of the gradient of W^K: alone it makes the ratio grow
    like 1 / scale.  A ratio like 1 / scale^2 needs W^V close to 0 too.
    """
    if not has_first_gradients(run, run.trials):
        return Verdict("undecided", "Fewer than three init scales were trained.", "a run of gradients")
    frame = first_gradients(run)
    near = frame[frame["init_scale"] <= SMALL_START]
    if near.empty:
        return Verdict(
            "undecided", f"No start has a scale of at most {SMALL_START:g}.", "a smaller init scale"
        )
    least = near[list(RATIOS)].min(axis=1).to_numpy(float)
    fits, scales = scaling(frame), sorted(set(near["init_scale"]))
    ends = [
        near.loc[near["init_scale"] == scale, list(RATIOS)].to_numpy() for scale in (scales[-1], scales[0])
    ]
    two_factors = len(fits) > 0 and bool((fits["power"] > BOTH_FACTORS).any())
    text = (
        f"|dL/dW^V| is larger than |dL/dW^K| and |dL/dW^Q| in {(least > 1).sum()} of "
        f"{counted(len(near), 'start')} with scales up to {SMALL_START:g}: by factors of "
        f"{ends[0].min():.2g} to {ends[0].max():.2g} at {written(scales[-1])} and of {ends[1].min():.2g} to "
        f"{ends[1].max():.2g} at {written(scales[0])}."
    )
    if len(fits):
        text += (
            f" The ratio is C / scale^p with p = {fits['power'].min():.2f} to {fits['power'].max():.2f} and "
            f"C = {fits['constant'].min():.2g} to {fits['constant'].max():.2g}."
        )
        if two_factors:
            text += (
                " The paper's reason, W^Q near 0, explains one factor 1 / scale of it; the other comes from "
                "W^V near 0, which the paper does not name."
            )
        else:
            text += " The paper's reason, W^Q near 0, gives p = 1 and explains it."
    larger: Any = frame.loc[frame["init_scale"] > SMALL_START]
    middle: Any = larger.groupby("init_scale")["ratio_k"].median()
    reversed_at = middle.index[middle.to_numpy() < 1]
    if len(reversed_at):
        text += f" From a scale of {written(float(reversed_at[0]))} on the order is reversed."
    if not (least > 1).any():
        verdict = "fails"
    elif (least > 1).all() and not len(fits):
        verdict = "undecided"
        text += " With one small scale the reason cannot be judged."
    else:
        verdict = "holds" if (least > 1).all() and not two_factors else "partly"
    numbers = {} if fits.empty else dict(power=float(fits["power"].median()))
    change = (
        "a start of a small scale whose W^K or W^Q has the larger first gradient; for the reason, a ratio "
        f"that grows at most like 1 / scale^{BOTH_FACTORS:g}"
    )
    return Verdict(verdict, text, change, smallest=float(least.min()), starts=len(near), **numbers)


CLAIM = Claim(
    "Section 8.1, gradients",
    "Near zero the gradient of W^V is larger than those of W^K and W^Q, because W^Q is close to 0 and "
    "attention sums to 1.",
    gradients_differ,
    "section 8.1",
    "gradients",
)
