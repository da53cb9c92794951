"""Synthetic runs of deeper models with given gains P and Q of each layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.synthetic_runs import STEP, line_entry, make_run, manifest_of, ramp, whole_id, write_parts

from topicjax.experiments.encoder.settings import DEFAULTS
from topicjax.store.manifest import write_manifest
from topicjax.store.reader import Run

INITIAL = 4.6  # the loss at step 0; a model with P = 1.2 reaches the stage-1 line, 3.4, and stage 2 is 3.3
EARLY, LATE = ramp(0, 100), ramp(400, 600)
SAME_TOPIC = ("attn_same_topic", "attn_mask_same_topic")
GAIN_ERRORS = ("value_gain_se", "attention_gain_se")
Layer = tuple[Any, Any]  # P and Q, in nats
Model = tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]


def model(
    layers: Sequence[Layer], whole: Layer | None = None, step: np.ndarray = STEP, **changed: Any
) -> Model:
    """Make the row, records and details of a trial; P and Q of the whole are the sums unless given.

    Settings and columns of records and details can be given by name (details as a list, one per layer).
    """
    P, Q = (np.array([np.broadcast_to(layer[part], step.shape) for layer in layers]) for part in (0, 1))
    P_all, Q_all = (np.broadcast_to(part, step.shape) for part in (whole or (P.sum(0), Q.sum(0))))
    loss = changed.pop("eval_loss", INITIAL - P_all - Q_all)
    scalars = dict(loss=loss, eval_loss=loss, eval_loss_uniform=loss + Q_all)
    scalars |= dict(eval_loss_silent=loss + Q_all + P_all, eval_loss_se=0.01)
    scalars |= dict(eval_gain_se=0.0, eval_value_se=0.0)
    scalars |= dict(norm_e=10.0, e_block=0.5)
    scalars |= {
        name: changed.pop(name) for name in list(changed) if name.startswith("eval_") or name in scalars
    }
    records = pd.DataFrame(dict(step=step) | scalars)
    details = []
    columns = {
        name: changed.pop(name)
        for name in (*("norm_v", "norm_k", "entropy_deficit"), *SAME_TOPIC, *GAIN_ERRORS)
        if name in changed
    }
    for number, (own_P, own_Q) in enumerate(zip(P, Q, strict=True)):
        own = dict(norm_v=0.1 + 5 * own_P, norm_k=0.1 + 30 * own_Q, entropy_deficit=own_Q)
        own |= dict(rotation_v=0.01, attn_same_topic=0.02, attn_diff_topic=0.01)
        own |= dict(attn_mask_same_topic=0.02, attn_mask_diff_topic=0.01)
        own |= dict(value_gain=own_P, attention_gain=own_Q) | dict.fromkeys(GAIN_ERRORS, 0.0)
        own |= {name: values[number] for name, values in columns.items()}
        own["norm_q"] = own["norm_k"]
        details.append(pd.DataFrame(dict(step=step, layer=number + 1) | own))
    row = (
        dict(status="ok", diverged_step=None)
        | DEFAULTS
        | dict(layers=len(layers), record_every=10, rare_every=1)
        | changed
    )
    return row, records, pd.concat(details, ignore_index=True)


def named(models: Sequence[Model]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Join trials, trajectories and details of these models, with ids in their order."""
    ids = [whole_id(f"{number:x}") for number in range(len(models))]
    trials = [row | dict(trial_id=name) for name, (row, _, _) in zip(ids, models, strict=True)]
    tables = [
        pd.concat([own[part].assign(trial_id=name) for name, own in zip(ids, models, strict=True)])
        for part in (1, 2)
    ]
    first = ["trial_id", "step"]
    tables[0] = tables[0][[*first, *(name for name in tables[0] if name not in first)]]
    first = ["trial_id", "step", "layer"]
    tables[1] = tables[1][[*first, *(name for name in tables[1] if name not in first)]]
    frame = pd.DataFrame(trials)
    finals = tables[0].groupby("trial_id").last().drop(columns="step").add_prefix("final_").reset_index()
    return frame.merge(finals, on="trial_id"), tables[0], tables[1]


def run_of(*models: Model, lines: bool = True) -> Run:
    """Make a run without a folder."""
    trials, records, details = named(models)
    run = make_run(
        trials, records.sample(frac=1, random_state=0), details=details.sample(frac=1, random_state=1)
    )
    return run.replace(manifest=dict(references=[line_entry()] if lines else []))


def folder_of(folder: Path, *models: Model, **manifest: Any) -> Path:
    """Write a run folder of these models."""
    write_parts(folder, [dict(zip(("trials", "trajectories", "details"), named(models), strict=True))])
    known = dict(sweep="deep", experiment="encoder", planned=len(models))
    write_manifest(folder, manifest_of(**known | manifest))
    return folder
