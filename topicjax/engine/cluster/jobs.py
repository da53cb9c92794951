"""Chunks as jobs: what waits, who gets it, and what becomes of a chunk that was lost or did not fit."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from topicjax.engine.chunk import Chunk
from topicjax.engine.plan import Group, StreamRow

MOST_LOSSES = 4  # of the worker that trains a chunk: then it is given up ...
SMALLER_FROM = 2  # ... and from here on it is tried in halves, in case memory was short
NUMBERS = itertools.count()


@dataclass
class Job:
    """A chunk that is to be trained."""

    number: int
    program: int
    rows: tuple[StreamRow, ...]
    losses: int = 0  # of its worker, while the machine of that worker was alive
    lacks_lines: bool = False  # the worker has still to be told the limit lines
    steps: float = 0.0  # trial-steps done ...
    spared: float = 0.0  # ... and not needed, since it was last saved

    @property
    def name(self) -> str:
        """The name of the chunk's files."""
        return Chunk(self.rows).name

    @property
    def trial_ids(self) -> list[str]:
        """Its trials."""
        return Chunk(self.rows).trial_ids


class Jobs:
    """The chunks of a run that wait for a worker, by program."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.programs: dict[int, Group] = {next(NUMBERS): group for group in groups}
        self.first_program = min(self.programs, default=0)
        self.waiting: list[Job] = [
            Job(next(NUMBERS), program, rows)
            for program, group in self.programs.items()
            for rows in group.chunks
        ]
        self._smaller: dict[int, int] = {}  # by program, the one of its halved chunks

    def group(self, job: Job) -> Group:
        """Return the group of a chunk."""
        return self.programs[job.program]

    def take(self, has: set[int], others: Iterable[set[int]]) -> Job:
        """Return the next chunk for a worker, given the programs that it and the other workers have.

        One whose program it has compiled, if there is any; else one of the program that the fewest have.
        """
        mine = [job for job in self.waiting if job.program in has]
        if not mine:
            all_programs = [program for programs in others for program in programs]
            fewest = min(self.waiting, key=lambda job: all_programs.count(job.program)).program
            mine = [job for job in self.waiting if job.program == fewest]
        self.waiting.remove(mine[0])
        return mine[0]

    def give_back(self, job: Job) -> None:
        """Let a chunk wait again, before the others."""
        self.waiting.insert(0, job)

    def halve(self, job: Job, num_devices: int) -> bool:
        """Let the trials of a chunk wait again in smaller chunks; return whether there are any smaller."""
        group = self.group(job)
        if group.lanes == 1 and group.rows_per_chunk == num_devices:
            return False
        if job.program not in self._smaller:
            lanes, rows = -(-group.lanes // 2), group.rows_per_chunk
            if group.lanes == 1:
                rows = num_devices * -(-rows // num_devices // 2)
            self._smaller[job.program] = next(NUMBERS)
            self.programs[self._smaller[job.program]] = replace(group, lanes=lanes, rows_per_chunk=rows)
        program = self._smaller[job.program]
        smaller = self.programs[program]
        rows = [row for whole in job.rows for row in whole.cut(smaller.lanes)]
        for first in range(0, len(rows), smaller.rows_per_chunk):
            piece = tuple(rows[first : first + smaller.rows_per_chunk])
            self.give_back(Job(next(NUMBERS), program, piece, job.losses))
        return True
