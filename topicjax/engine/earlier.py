"""Trials that a folder has with fewer steps: trained further, they go on from where they ended."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from topicjax.engine import costs
from topicjax.engine.chunk import ALL_STEPS, Chunk, Snapshot
from topicjax.engine.plan import Earlier, Group
from topicjax.store.reader import Run
from topicjax.trial import Trial


def with_earlier(groups: Iterable[Group], trials: Mapping[str, Trial], folder: Path) -> list[Group]:
    """Return the groups, each knowing which of its trials the folder has with fewer steps."""
    known = ended_trials(folder)
    if not known:
        return list(groups)
    lengths = sorted({row["steps"] for row in known.values()}, reverse=True)
    return [replace(group, earlier=earlier_of(group, trials, known, lengths)) for group in groups]


def ended_trials(folder: Path) -> dict[str, dict[str, Any]]:
    """Return where and why each finished trial of a folder ended; none if the folder does not say."""
    if not folder.exists():
        return {}
    names = ("trial_id", "steps", "stopped_step", "stop_reason", "snapshot_steps", "chunk")
    run = Run(folder)
    rows = run.columns(names)
    return {
        row["trial_id"]: row for row in rows if row["stop_reason"] != ALL_STEPS or run.has_state(row["chunk"])
    }


def earlier_of(
    group: Group, trials: Mapping[str, Trial], known: Mapping[str, Mapping[str, Any]], lengths: Sequence[int]
) -> dict[str, Earlier]:
    """Return the longest shorter training of each trial of a group, of those that have the same snapshots."""
    settings, found = group.experiment.settings, {}
    shorter = [steps for steps in lengths if steps < group.spec.steps]
    for trial_id in (trial_id for stream in group.streams for trial_id in stream.trial_ids):
        for steps in shorter:
            other = settings.trial_id(settings.changed(trials[trial_id], {"steps": steps}))
            if other in known and has_snapshots(group, known[other]):
                row = known[other]
                why = row["stop_reason"]
                found[trial_id] = Earlier(other, row["stopped_step"], "" if why == ALL_STEPS else why)
                break
    return found


def has_snapshots(group: Group, row: Mapping[str, Any]) -> bool:
    """Return whether a trial has kept the weights that a longer training would have kept up to its end."""
    kept, end = set(row["snapshot_steps"]), row["stopped_step"]
    is_whole = end in kept or group.spec.steps not in group.snapshots or row["stop_reason"] == ALL_STEPS
    return is_whole and all(step in kept for step in group.snapshots if step < end)


def take_over(chunk: Chunk, group: Group, run: Run) -> list[np.ndarray]:
    """Give a chunk what the folder has of its trials; return the states to go on from, trials x ...

    All of them go on from the same step, or all of them are decided: then there are no states.
    """
    earlier = [group.earlier[trial_id] for trial_id in chunk.trial_ids]
    take_records(chunk, group, earlier, run)
    chunk.stopped = np.array([own.step if own.decided else -1 for own in earlier])
    chunk.reasons = [own.decided for own in earlier]
    wanted = {step for step in group.snapshots if step < group.spec.steps}
    take_snapshots(chunk, earlier, run, wanted, keeps_end=group.spec.steps in group.snapshots)
    return [] if earlier[0].decided else run.end_states([own.trial_id for own in earlier])


def take_records(chunk: Chunk, group: Group, earlier: Sequence[Earlier], run: Run) -> None:
    """Give a chunk the records of shorter trainings, up to the step where each is taken up again."""
    every, index = group.spec.record_every, group.experiment.detail
    count = max(own.step // every + bool(own.decided) for own in earlier)
    row_of = {own.trial_id: row for row, own in enumerate(earlier)}
    tables = []
    for frame in run.records_of([own.trial_id for own in earlier]):
        frame = frame.loc[frame["step"].to_numpy(int) < count * every]
        place = [frame["trial_id"].map(row_of).to_numpy(int), frame["step"].to_numpy(int) // every]
        tables.append((frame, [*place, frame[index].to_numpy(int) - 1] if index in frame else place))
    part = {}
    for name, shape in costs.sizes(group.experiment, group.spec).record.items():
        frame, place = tables[len(shape)]  # arrays are in the details
        values = frame[name].to_numpy()
        part[name] = np.zeros((len(earlier), count, *shape), values.dtype)
        part[name][tuple(place)] = values
    chunk.records = [part]


def take_snapshots(
    chunk: Chunk, earlier: Sequence[Earlier], run: Run, wanted: Collection[int], keeps_end: bool
) -> None:
    """Give a chunk the weights that shorter trainings kept at wanted steps, and where they were decided."""
    by_step: dict[int, list[int]] = {}
    for place, own in enumerate(earlier):
        ends = {own.step} if own.decided and keeps_end else set()
        for step in sorted({step for step in wanted if step <= own.step} | ends):
            by_step.setdefault(step, []).append(place)
    for step, places in by_step.items():
        weights = [run.restore(earlier[place].trial_id, step) for place in places]
        has = np.isin(np.arange(len(earlier)), places)
        arrays = {name: np.stack([own[name] for own in weights]) for name in weights[0]}
        chunk.snapshots[step] = Snapshot(has, arrays)
