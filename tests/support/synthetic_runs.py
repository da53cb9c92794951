"""Synthetic runs: folders with a few trials, and trials with given progress in all views."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topicjax.analysis.one_layer.scores import score_trials
from topicjax.analysis.topic_model import LINE_COLUMNS, NEEDED_TRAJECTORIES, join_settings
from topicjax.experiments.one_layer.settings import DEFAULTS
from topicjax.store import journal
from topicjax.store.files import FileMark, part_path
from topicjax.store.journal import Commit, Journal
from topicjax.store.manifest import FORMAT, write_manifest
from topicjax.store.reader import Run
from topicjax.theory.document_settings import DATA_SETTINGS

LINES = dict(uniform=4.6, stage1=3.4, stage2=3.3, bayes=2.9)
ERRORS = dict(uniform_se=0.0, stage1_se=0.001, stage2_se=0.002, bayes_se=0.003)
STEP = np.arange(0, 1001, 10)
INITIAL, STAGE1, STAGE2 = 4.6, 3.4, 3.2  # L(0), L1*, L2*: attention gains a sixth of what V gains
Case = tuple[dict[str, Any], pd.DataFrame]


def trial(trial_id: str, **changed: Any) -> dict[str, Any]:
    return dict(trial_id=trial_id, status="ok", diverged_step=None) | DEFAULTS | changed


def records(trial_id: str, steps: int = 3, **columns: Any) -> pd.DataFrame:
    measured = dict.fromkeys(NEEDED_TRAJECTORIES[2:], 1.0) | columns
    return pd.DataFrame(dict(trial_id=trial_id, step=10 * np.arange(steps)) | measured)


def line_entry(objective: str = "cross_entropy", values: Any = (), **changed: Any) -> dict[str, Any]:
    """Make an entry of references: limit lines, some of them changed, for trials with changed settings."""
    settings = {name: DEFAULTS[name] for name in DATA_SETTINGS} | dict(objective=objective) | changed
    return dict(settings=settings, values=LINES | ERRORS | dict(values))


def write_run(
    folder: Path,
    trials: list[dict[str, Any]],
    trajectories: list[pd.DataFrame] | None = None,
    **manifest: Any,
) -> Path:
    """Write a run folder with one part per trial; trajectories default to three records per trial.

    Ids are padded with zeros to the length they have in a folder: see `whole_id`.
    """
    if trajectories is None:
        trajectories = [records(row["trial_id"]) for row in trials]
    rows = [dict(trials=pd.DataFrame([row])) for row in trials]
    rows += [{}] * (len(trajectories) - len(trials))  # chunks that are not finished
    write_parts(folder, [row | dict(trajectories=own) for row, own in zip(rows, trajectories, strict=True)])
    write_manifest(folder, manifest_of(**dict(planned=len(trials)) | manifest))
    return folder


def manifest_of(
    sweep: str = "tiny", runs: Any = ({},), references: list | None = None, **entry: Any
) -> dict[str, Any]:
    """Make the manifest of a folder with these runs, all of which have the values of `entry`."""
    entry = dict(sweep=sweep, experiment="one_layer") | entry
    references = [line_entry()] if references is None else references
    return dict(format=FORMAT, sweep=sweep, runs=[entry | run for run in runs], references=references)


def write_parts(folder: Path, chunks: list[dict[str, pd.DataFrame]]) -> None:
    """Write the tables of a folder, given by chunk, and their journal."""
    found = Journal()
    for name in ("trials", "trajectories"):
        (folder / name).mkdir(parents=True)
    for number, tables in enumerate(chunks):
        chunk, marks = f"{number:012x}", {}
        for name, table in tables.items():
            whole = table.assign(trial_id=table["trial_id"].map(whole_id))
            path = part_path(folder / name, chunk)
            path.parent.mkdir(exist_ok=True)
            whole.to_parquet(path, index=False)
            marks[name] = FileMark.of(path.read_bytes())
        if "trials" in tables:
            trials = tables["trials"]
            ids, diverged = tuple(trials["trial_id"].map(whole_id)), trials["status"].eq("diverged").sum()
            found.commits[chunk] = Commit(chunk, ids, int(diverged), {}, marks)
    journal.replace(folder, found)


def whole_id(short: str) -> str:
    """Pad an id to 12 digits, as in run folders."""
    return short.rjust(12, "0")


def ramp(begin: float, end: float, step: np.ndarray = STEP) -> np.ndarray:
    return np.clip((step - begin) / (end - begin), 0, 1)


def saturating(delay: float, tau: float, step: np.ndarray = STEP) -> np.ndarray:
    return 1 - np.exp(-np.maximum(step - delay, 0) / tau)


def lag_for(score: float) -> float:
    """Compute the delay, in units of tau, at which two equal exponential rises have this Theta."""
    return float(np.log(score / (1 - score)))


TWO_STAGE = (ramp(0, 100), ramp(400, 600))  # progress of V, of attention


def case(P: Any, Q: Any, step: np.ndarray = STEP, lines: Any = (), **changed: Any) -> Case:
    """Make a trial with this progress in all three views; columns and settings can be changed."""
    P, Q = np.broadcast_to(P, step.shape), np.broadcast_to(Q, step.shape)
    uniform = INITIAL - (INITIAL - STAGE1) * P
    columns = dict(
        eval_loss=uniform - (STAGE1 - STAGE2) * Q,
        eval_loss_uniform=uniform,
        **dict(norm_k=0.1 + 30 * Q, norm_q=0.1 + 30 * Q, norm_v=0.1 + 150 * P, norm_e=np.nan),
        **dict(v_block=5 * P, v_diag=0.0, a_topic=1.5 * Q, a_self=0.0),
    )
    columns |= {name: changed.pop(name) for name in list(changed) if name in columns}
    settings = trial("", **changed) | dict.fromkeys(LINE_COLUMNS, np.nan)
    settings |= dict(line_stage1=STAGE1, line_stage2=STAGE2, line_stage1_se=0.0, line_stage2_se=0.0)
    return settings | dict(lines), pd.DataFrame(dict(step=step) | columns)


def make_run(trials: pd.DataFrame, trajectories: pd.DataFrame | None = None, **more: Any) -> Run:
    """Make a run without a folder."""
    tables = dict(trials=trials, trajectories=pd.DataFrame() if trajectories is None else trajectories)
    return Run(Path("run")).replace(**tables, manifest={}, missing=(), **more)


def run_of(*cases: Case) -> Run:
    """Make the run of these trials, prepared, with ids 000, 001, ..."""
    names = [f"{number:03d}" for number in range(len(cases))]
    rows = [row | dict(trial_id=name) for name, (row, _) in zip(names, cases, strict=True)]
    tables = [frame.assign(trial_id=name) for name, (_, frame) in zip(names, cases, strict=True)]
    trials = pd.DataFrame(rows)
    lines = trials[[name for name in trials if name.startswith("line_")]]
    references = lines.set_axis([name.removeprefix("line_") for name in lines], axis=1)
    return make_run(trials, join_settings(pd.concat(tables), trials), references=references)


def random_search(count: int, **changed: Any) -> Run:
    """Make a run in which every trial is its own cell: no two have the same learning rate."""
    rng = np.random.default_rng(0)
    step, (value, attention) = STEP[::10], (progress[::10] for progress in TWO_STAGE)
    kinds = [case(value, attention, step)[1], case(value, 0.0, step)[1]]
    rows = pd.DataFrame([case(0, 0)[0]] * count).assign(
        trial_id=[f"{number:012x}" for number in rng.permutation(count)],
        seed=np.arange(count) % 5,
        learning_rate=rng.permutation(np.geomspace(0.1, 1, count)),
        l2=rng.uniform(0, 1e-6, count),
        init_scale=np.array([1e-3, 1e-2, 1e-1])[np.arange(count) % 3],
        snapshot_steps=[()] * count,
        **dict(line_uniform_se=0.0, line_bayes_se=0.0),
        **dict(final_attn_same_word=0.02, final_attn_same_topic=0.02, final_attn_diff_topic=0.01),
        **dict(final_a_topic=rng.normal(size=count), final_a_self=0.1),
        **changed,
    )
    frames = pd.concat([kinds[number % 2] for number in range(count)], ignore_index=True)
    return make_run(rows, frames.assign(trial_id=np.repeat(rows["trial_id"].to_numpy(), len(step))))


def score(*cases: Case) -> pd.DataFrame:
    return score_trials(run_of(*cases))


def score_one(*arguments: Any, **changed: Any) -> Any:
    return score(case(*arguments, **changed)).iloc[0]


def scored(*cases: Case) -> tuple[Run, pd.DataFrame]:
    """Make the run of these trials and its scores, the arguments of every figure."""
    run = run_of(*cases)
    return run, score_trials(run)
