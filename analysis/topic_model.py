"""Shared by the pages of topic-model experiments: order and wording of settings, colours, limit lines.

`aligned(run)` takes what `topicjax.load` returns and is all that scores and figures need.  They call it
themselves, so a run can be passed to them as loaded.  `prepared(run)` also joins the settings onto every
record: convenient for grouping records, but several times the memory.
"""

from typing import Any, get_args

import numpy as np
import pandas as pd

from topicjax.experiments.one_layer import settings as trial
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS

from .frames import check_columns, column, sort_records
from .pictures import LABELS, PHRASES, VALUE_ORDER

FIRST = (  # settings that titles and tables name first
    *("seed", "init_seed", "objective", "optimizer", "learning_rate", "init", "init_scale", "l2"),
    *("attention", "value", *trial.MEMBER_SETTINGS),
    *("embedding", "embedding_dim", "embedding_scale", "attention_dim"),
    *("output_bias", "attention_biases", "momentum", "beta1", "beta2", "epsilon", "weight_decay"),
    *("training", *trial.SCHEDULE_SETTINGS),
    *("attention_weights", "mask_query_loss"),
    *("batch_size", "steps", "until", "record_every", "records_per_decade", "eval_documents"),
)
SETTINGS = (*FIRST, *(name for name in trial.SETTINGS if name not in FIRST))
MAIN_SETTINGS = ("objective", "optimizer")  # figures and tables always separate these
LINES = ("uniform", "stage1", "stage2", "bayes")
LINE_COLUMNS = tuple(f"line_{name}" for name in LINES)
HELD_OUT_LINES = (
    "held_out_stage1",
    "held_out_stage2",
)  # losses of the optimal models of stages 1 and 2 on the trial's held-out documents
STAGE_LINES = {  # limit line in manifest.json: its column in the table of trials
    **{name: f"line_{name}" for name in ("stage1", "stage2", "stage1_se", "stage2_se")},
    **{name: name for name in HELD_OUT_LINES},
}
ADDED = {  # settings that older folders do not have
    name: trial.DEFAULTS[name] for name in ("pair_strength", "attention_weights")
}
NEEDED_TRIALS = (
    *("trial_id", "status", "seed", "objective", "attention", "value", "embedding"),
    *(name for name in DATA_SETTINGS if name not in ADDED),
)
NEEDED_TRAJECTORIES = (
    *("trial_id", "step", "eval_loss", "eval_loss_uniform", "norm_k", "norm_q", "norm_v"),
    *("v_block", "v_diag", "a_topic", "a_self"),
)
CLASS_COLOURS = {  # around Okabe and Ito's palette; a test holds them apart for colour-blind readers
    "two-stage": "#0072B2",
    "two-stage, non-topical": "#8A6BF2",
    "V leads": "#4FD8F2",
    "simultaneous": "#E69F00",
    "attention leads": "#F7D08A",
    "reversed": "#D55E00",
    "stage 2 begun": "#A9E5C8",
    "V-only": "#009E73",
    "compensated": "#AB92AE",
    "attention-only": "#E2F21B",
    "unfinished": "#D9D9D9",
    "no-learning": "#A6A6A6",
    "unscored": "#FFFFFF",
    "collapsed": "#777777",
    "diverged": "#333333",
}
CLASS_HATCHES = {
    **{"unfinished": "////", "no-learning": "....", "unscored": "\\\\\\\\"},
    **{"collapsed": "++++", "diverged": "xxxx"},
}
PART_COLOURS = {"norm_v": "#0072B2", "norm_k": "#D55E00", "norm_q": "#E69F00", "norm_e": "#009E73"}
OPTIMIZERS = ("sgd", "adam", "momentum", "adamw")  # in the order of panels
VALUE_ORDER += OPTIMIZERS
VALUE_ORDER += get_args(trial.AttentionWeights)
VALUES: dict[Any, str] = {"blocks": "W^V at Theorem 2", "trained": "W^V trained", "identity": "W^V identity"}
LABELS |= {  # columns and values in words
    "norm_k": r"$\|W^K\|_F$",
    "norm_q": r"$\|W^Q\|_F$",
    "norm_v": r"$\|W^V\|_F$",
    "norm_e": r"$\|W^E\|_F$",
    "a_topic": "attention score: same topic - other topic",
    "v_block": "value: same topic - other topic",
    "pair_strength": "pair strength",
    "zipf_exponent": "Zipf exponent",
    "learning_rate": "learning rate",
    "init_scale": "init scale",
    "key_visibility": "keys",
    "l2": "L2",
    "cross_entropy": "cross-entropy",
    "sgd": "SGD",
    "adam": "Adam",
    "rotation_v": "rotation of $W^V$ in ten steps",
    "theta": "Θ",
    "stage1": "stage 1",
    "stage2": "stage 2",
    "bayes": "Bayes",
    "log_lag": "log lag",
    "attention_weights": "attention weights",
    "scores_only": "S only",
    "one_plus_scores": "1 + S",
    "one_plus_centred": "1 + S centred",
}
PHRASES |= {  # short phrases for settings: per value, `...` for all other values
    **{name: {...: "{}"} for name in MAIN_SETTINGS},  # their values need no name
    "learning_rate": {...: "η {}"},
    "attention_weights": {...: "{}"},
    "value": VALUES,
    "residual": {False: "no residual", True: "residual"},
    "layer_norm": {"none": "no LN", "pre": "pre-LN", "post": "post-LN"},
    "mlp": {0: "no MLP", ...: "MLP {}"},
    "output_projection": {False: "no W^O", True: "W^O"},
    "layers": {1: "1 layer", ...: "{} layers"},
    "heads": {1: "1 head", ...: "{} heads"},
}


def aligned(run: Run) -> Run:
    """Add limit lines to the trials of a run, and settings of later versions; sort records by trial and step.

    A run that is already aligned is returned unchanged.
    """
    if set(LINE_COLUMNS) <= set(run.trials):
        return run
    check_columns(run.trials, NEEDED_TRIALS, f"{run.folder}/trials")
    check_columns(run.trajectories, NEEDED_TRAJECTORIES, f"{run.folder}/trajectories")
    added = {name: default for name, default in ADDED.items() if name not in run.trials}
    trials = run.trials.assign(**added, **limit_lines(run))
    without = int(np.isnan(column(trials, "line_stage1")).sum())
    missing = run.missing
    if run.manifest and without:
        missing = (*missing, f"{without} of {len(trials)} trials have no limit lines")
    records, _ = sort_records(run.trajectories, trials)
    return run.replace(trials=trials, trajectories=records, missing=missing)


def prepared(run: Run) -> Run:
    """Align a run and join settings, status and limit lines onto each of its records.

    A run that is already prepared is returned unchanged.
    """
    if set(LINE_COLUMNS) <= set(run.trials) & set(run.trajectories):
        return run
    run = aligned(run)
    return run.replace(trajectories=join_settings(run.trajectories, run.trials))


def uses_softmax(trials: pd.DataFrame) -> np.ndarray:
    """Mask the trials whose attention is a softmax: theory of attention is about these."""
    found = trials.reindex(columns=["attention_weights"])["attention_weights"]
    return (found.isna() | (found == trial.SOFTMAX)).to_numpy()


def settings_in(frame: pd.DataFrame) -> list[str]:
    """List the settings that a table has as columns, in the order of SETTINGS."""
    return [name for name in SETTINGS if name in frame]


def join_settings(records: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Sort the records of the trials by trial and step, and join settings, status and limit lines."""
    own, owner = sort_records(records, trials)
    joined = trials[[*settings_in(trials), "status", *LINE_COLUMNS]].take(owner)
    return pd.concat([own, joined.reset_index(drop=True)], axis=1)


def limit_lines(run: Run) -> dict[str, np.ndarray]:
    """Return the limit lines of each trial (NaN where there are none) and their standard errors, *_se.

    line_* are losses over all documents, held_out_* losses on the trial's held-out documents.
    """
    names = [f"{name}{end}" for end in ("", "_se") for name in (*LINES, *HELD_OUT_LINES)]
    found = run.references.reindex(columns=names)
    return {name if name.startswith("held_out") else f"line_{name}": column(found, name) for name in names}
