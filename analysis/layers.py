"""Curves of models with several layers: one per trial and layer, and one for the whole model.

All curves lie end to end in one table, sorted by trial, layer and step; layer 0 is the whole model.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from topicjax.settings import SEEDS
from topicjax.stages import Records, monotone, norm_rise, onset, steady
from topicjax.store.reader import Run

from .frames import Array, Frame, check_columns, check_records, column, due_records, sort_records, varying

ALL = 0  # the layer number of the whole model
WHOLE = "all layers"
NEEDED_TRAJECTORIES = (
    *("eval_loss", "eval_loss_uniform", "eval_loss_silent"),
    *("eval_loss_se", "eval_gain_se", "eval_value_se"),
)
OF_TEXT = ("eval_loss_unigram", "eval_context_se")
NORMS = ("norm_v", "norm_k", "norm_q")
OF_TOPICS = tuple(  # not recorded where words have no topics
    f"attn_{queries}{kind}_topic" for queries in ("", "mask_") for kind in ("same", "diff")
)
MEANS = ("entropy_deficit", *OF_TOPICS)
GAINS = {  # of a layer: its name among the curves
    **{"value_gain": "P", "attention_gain": "Q"},
    **{"value_gain_se": "value_se", "attention_gain_se": "gain_se"},
}
NEEDED_DETAILS = (*NORMS, *MEANS, "rotation_v", *GAINS)
KEYS = ["trial_id", "step"]
FIRST = (  # settings that describe a model, in the order in which texts name them
    *("layers", "heads", "residual", "layer_norm", "mlp", "output_projection"),
    *("init", "init_scale", "optimizer", "learning_rate", "steps"),
)
LEAVES_UNIFORM = 0.01  # nats of entropy below the start: attention then spreads over 1 % fewer keys


class Rises(NamedTuple):
    """F_V and F_A in one view, on the records that the view scores."""

    records: Records
    value: Array
    attention: Array


def layer_curves(run: Run) -> Frame:
    """Build the table of curves: one row per trial, layer and step; a trial without details has layer 0 only.

    `trial` is the row of the trial.  on, uniform and silent are the held-out losses with the attention of all
    layers as trained, forced uniform, and silenced.  P = silent - uniform is what values gain under uniform
    attention, Q = uniform - on what attention gains on top; those of a layer are its shares, and Q_all is Q
    of all layers.  value_se and gain_se are the standard errors of P and Q over documents.  is_measured is
    False at records between two measurements of P and Q, which are rare.
    """
    check_columns(run.trajectories, NEEDED_TRAJECTORIES, f"{run.folder}/trajectories")
    records, trial = sort_records(run.trajectories, run.trials)
    of_some = [name for name in ("e_block", *OF_TEXT) if name in records]
    scalars = records[[*KEYS, *NEEDED_TRAJECTORIES, *of_some]]
    losses = dict(on="eval_loss", uniform="eval_loss_uniform", silent="eval_loss_silent")
    scalars = scalars.assign(trial=trial, Q_all=records["eval_loss_uniform"] - records["eval_loss"])
    scalars = scalars.rename(columns={own: name for name, own in losses.items()})
    scalars = scalars.assign(is_due=due_records(records, run.trials.iloc[trial]))
    unknown: dict[str, float] = {name: np.nan for name in OF_TOPICS if name not in run.details}
    details = run.details.assign(**unknown) if len(run.details) else run.details
    parts = [whole_model(scalars, details)]
    if len(details):
        check_columns(details, ("layer", *NEEDED_DETAILS), f"{run.folder}/details")
        layers = details[[*KEYS, "layer", *NEEDED_DETAILS]].merge(scalars, on=KEYS)
        parts.append(layers.rename(columns=GAINS))
    curves = pd.concat(parts, ignore_index=True)
    curves = curves.sort_values(["trial", "layer", "step"], ignore_index=True)
    curves = curves.drop(columns=["eval_gain_se", "eval_value_se"])
    number = curves.groupby(["trial", "layer"], sort=False).ngroup().to_numpy()
    first = curves.loc[np.unique(number, return_index=True)[1]]
    names = (first["trial_id"] + ", " + first["layer"].map(part_name)).to_numpy()
    check_records(names, number, curves["step"].to_numpy())
    is_known = np.isfinite(curves[["on", "P", "Q"]]).all(axis=1)
    return curves.assign(is_measured=curves["is_due"] | is_known).drop(columns="is_due")


def whole_model(scalars: Frame, details: Frame) -> Frame:
    """Build the curves of the whole model: norms over all layers' weights, means over layers of the rest."""
    whole = scalars.assign(
        layer=ALL,
        P=scalars["silent"] - scalars["uniform"],
        Q=scalars["uniform"] - scalars["on"],
        gain_se=scalars["eval_gain_se"],
        value_se=scalars["eval_value_se"],
    )
    if not len(details):
        return whole.assign(**dict.fromkeys((*NORMS, *MEANS, "rotation_v"), np.nan))
    groups = details.groupby(KEYS, sort=False)
    squares = (details[list(NORMS)] ** 2).groupby([details[name] for name in KEYS], sort=False)
    norms = squares.sum(min_count=1) ** 0.5
    means = groups[[*MEANS]].mean()
    return whole.merge(norms.join(means).reset_index(), on=KEYS, how="left").assign(rotation_v=np.nan)


def part_name(layer: int) -> str:
    """Write "all layers" or "layer 2"."""
    return WHOLE if layer == ALL else f"layer {layer}"


def norm_progress(records: Records, curves: Frame) -> Rises:
    """Compute F_V and F_A from the norms over the whole training; NaN where a norm only falls."""
    attention = (column(curves, "norm_k") + column(curves, "norm_q")) / 2
    parts = (norm_rise(records, norm) for norm in (column(curves, "norm_v"), attention))
    return Rises(records, *(monotone(records, part) for part in parts))


def leaves_uniform(records: Records, curves: Frame) -> Array:
    """Find the step at which attention leaves its start: its entropy has dropped by LEAVES_UNIFORM.

    The level is absolute and the same for every layer and cell.  A share of the final value would depend on
    the number of steps and on how far a layer goes later.
    """
    deficit = steady(records, column(curves, "entropy_deficit"))
    return onset(records, deficit - records.spread(deficit[records.start]), LEAVES_UNIFORM)


def telling_settings(run: Run) -> list[str]:
    """List the settings that distinguish cells: all that vary except the seed and those fixed by others."""
    known = [name for name in run.setting_names if name not in SEEDS]
    ordered = [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]
    names: list[str] = []
    for name in varying(run.trials, ordered):
        names += varying(run.trials, [name], names)
    return names
