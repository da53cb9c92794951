"""The training of one chunk, segment by segment until its trials have ended; saved inside if it is long."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topicjax.engine.chunk import ALL_STEPS, Chunk, Saved, Start
from topicjax.engine.chunk_state import begin, state_leaves, suspended, to_host
from topicjax.engine.orders import RowState
from topicjax.engine.programs import Programs
from topicjax.experiments import DECIDE_RECORDS, Decide, Experiment, Records
from topicjax.trial import Trial


class Interrupted(Exception):
    """The user asked to stop; everything finished is on disk."""


@dataclass
class Surroundings:
    """What the training of a chunk needs from the run around it, which may be on another machine."""

    save_seconds: float
    decide: Callable[[str, Records], str]  # (trial id, its records) -> why it ends, or nothing
    on_segment: Callable[[float, float], bool]  # (trial-steps done, trial-steps spared) -> asked to stop?
    save: Callable[[Saved], None]  # keeps a state to go on from
    say: Callable[[str], None] = lambda text: None


def decider(
    experiment: Experiment, trials: Mapping[str, Trial], lines: Callable[[], Sequence[dict[str, Any]]]
) -> Callable[[str, Records], str]:
    """Return why a trial ends, given its id and records; `lines` is called once, when it is first asked."""

    @functools.cache
    def rule() -> Decide:
        return experiment.decider(lines())

    return lambda trial_id, records: rule()(trials[trial_id], records)


def train_chunk(programs: Programs, chunk: Chunk, start: Start, around: Surroundings) -> None:
    """Train one chunk to its end, from where an interrupted run or a shorter training left it.

    If `on_segment` returns True, the state is saved and Interrupted raised, unless the training is over.
    """
    if not chunk.goes_on.any():  # decided by shorter trainings
        return
    streams, hypers = programs.arguments(chunk.rows)
    step, state = begin(programs, chunk, start, streams, hypers, around.say)
    if step == 0 and 0 in programs.group.snapshots and not chunk.snapshots:
        chunk.add_snapshot(0, programs.weights(state), chunk.goes_on)
    saved = time.monotonic()
    while chunk.goes_on.any():
        going, segment = chunk.goes_on, programs.segment_steps
        state, records = programs.advance(streams, hypers, state, lane_steps(programs, chunk, step))
        step += segment
        chunk.add_records(records)
        end_trials(programs, chunk, around, step, state)
        left = programs.spec.steps - step
        stop = around.on_segment(segment * going.sum(), left * (going & ~chunk.goes_on).sum())
        is_over = not chunk.goes_on.any()
        if not is_over and (stop or time.monotonic() - saved > around.save_seconds):
            check_room(state)
            around.save(suspended(chunk, state, programs.layout | dict(step=step)))
            saved = time.monotonic()
        if stop and not is_over:
            raise Interrupted
    check_room(state)
    if (chunk.stopped == step).any():
        _, records = programs.advance(streams, hypers, state, lane_steps(programs, chunk, step))
        chunk.add_records(records, 1)


def lane_steps(programs: Programs, chunk: Chunk, step: int) -> np.ndarray:
    """Return every lane's steps in the next segment: one, for its last record, if it ended here."""
    steps = np.where(chunk.goes_on, programs.segment_steps, chunk.stopped == step)
    return chunk.packed(steps, programs.shape)


def end_trials(programs: Programs, chunk: Chunk, around: Surroundings, step: int, state: RowState) -> None:
    """End the trials that are decided or have had all their steps, and keep the weights of this step."""
    spec, going = programs.spec, chunk.goes_on
    is_due = programs.group.experiment.may_stop(spec) and step % (DECIDE_RECORDS * spec.record_every) == 0
    why = decisions(chunk, around) if is_due else [""] * len(going)
    if step == spec.steps:
        why = [reason or ALL_STEPS for reason in why]
    ending = going & np.array([bool(reason) for reason in why])
    chunk.end(ending, step, [why[place] for place in np.flatnonzero(ending)])
    has = going if step in programs.group.snapshots else ending & programs.keeps_end
    if has.any():
        chunk.add_snapshot(step, programs.weights(state), has)
    if step == spec.steps and programs.keeps_end:
        further = np.array([reason == ALL_STEPS for reason in chunk.reasons])
        trained = state_leaves(state.trial_L)
        chunk.end_state = (
            [chunk.unpacked(to_host(leaf))[further] for leaf in trained] if further.any() else []
        )


def decisions(chunk: Chunk, around: Surroundings) -> list[str]:
    """Return for each trial that goes on why its answer can no longer change; empty if it still can."""
    columns = chunk.columns()
    return [
        around.decide(trial_id, {name: values[place] for name, values in columns.items()}) if goes_on else ""
        for place, (trial_id, goes_on) in enumerate(zip(chunk.trial_ids, chunk.goes_on, strict=True))
    ]


def check_room(state: RowState) -> None:
    """Raise if some data had no room in the program: its sizes are wrong, and its trials void."""
    missing = int(np.max(np.asarray(state.missing)))
    if missing > 0:
        raise RuntimeError(f"the program lacks room for {missing} items of its data: its trials are void")
