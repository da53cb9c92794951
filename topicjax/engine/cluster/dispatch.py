"""The driver's side of a run on a cluster: chunks go out to workers, and come back trained, in any order."""

import time
from collections import Counter
from dataclasses import replace

from topicjax.engine.chunk import Chunk, Interrupted, prepare
from topicjax.engine.cluster.jobs import MOST_LOSSES, SMALLER_FROM, Job, Jobs
from topicjax.engine.cluster.members import Member, Members
from topicjax.engine.cluster.messages import Event, Lost, Report, Task
from topicjax.engine.progress import counted
from topicjax.engine.run import Failure, IsStopping, Trained, Training
from topicjax.errors import UserError

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0  # a worker is given to finish its segment after Ctrl-C
SAVED_AT_ONCE = 4  # workers whose states the driver takes in turn: the more there are, the less often each
MOST_WAITING = 16  # things to write, before workers have to wait


class Dispatch:
    """One run: what waits, what is being trained where, what is lost."""

    def __init__(self, members: Members, training: Training, order: str) -> None:
        self.members, self.training, self.order = members, training, order
        self.jobs = Jobs(training.groups)
        self.running: dict[int, Job] = {}
        self.begun: Counter[str] = Counter()  # chunks by name
        self.done: Counter[str] = Counter()  # chunks by node
        self.lost: list[str] = []  # the names of chunks whose worker was lost
        self.announced: set[int] = set()  # programs
        members.say = training.progress.say

    def run(self, is_stopping: IsStopping) -> Trained:
        """Give chunks as they are trained; if asked to stop, save the others and raise Interrupted."""
        yield from self._decided()
        while self.jobs.waiting or self.running:
            if is_stopping():
                yield from self._stop()
                raise Interrupted
            self.members.recruit()
            self._assign()
            self._send_lines()
            yield from self._listen()
            self.training.settle(MOST_WAITING)

    def _decided(self) -> Trained:
        """Give the chunks that shorter trainings have decided: nothing is left to train."""
        for job in list(self.jobs.waiting):
            group = self.jobs.group(job)
            if group.start(job.trial_ids[0]) == group.spec.steps:
                self.jobs.waiting.remove(job)
                chunk = Chunk(job.rows)
                prepare(chunk, group, self.training.writer)
                yield group, chunk

    def _assign(self) -> None:
        """Give every idle worker a chunk; a second one to each while there are plenty."""
        ready = self.members.ready
        for depth in (1, 2):
            for member in sorted(ready, key=lambda member: len(member.jobs)):
                is_plenty = depth == 1 or len(self.jobs.waiting) > len(ready)
                if self.jobs.waiting and is_plenty and len(member.jobs) < depth:
                    others = (other.programs for other in ready if other is not member)
                    self._send(member, self.jobs.take(member.programs, others))
        for member in ready:
            self.members.order(member)

    def _send(self, member: Member, job: Job) -> None:
        training, group, chunk = self.training, self.jobs.group(job), Chunk(job.rows)
        may_stop = group.experiment.may_stop(group.spec)
        lines = training.references_of(chunk) if may_stop else {}
        job.lacks_lines = lines is None
        task = Task(
            number=job.number,
            program=job.program,
            first_program=self.jobs.first_program,
            group=None if job.program in member.programs else replace(group, streams=()),
            order=self.order,
            start=prepare(chunk, group, training.writer),
            chunk=chunk,
            trials={i: training.trials[i] for i in job.trial_ids} if may_stop else {},
            lines=lines,
            save_seconds=training.save_seconds * max(1.0, len(self.members.ready) / SAVED_AT_ONCE),
        )
        member.programs.add(job.program)
        member.jobs.append(job)
        member.orders.tasks.append(task)
        self.running[job.number] = job
        if job.program not in self.announced:
            self.announced.add(job.program)
            training.progress.programs = len(self.jobs.programs)
            training.progress.begin_program(group.label)

    def _send_lines(self) -> None:
        """Tell the workers that lack limit lines those of their chunks, once they are known."""
        for member in self.members.ready:
            for job in (job for job in member.jobs if job.lacks_lines):
                lines = self.training.references_of(Chunk(job.rows))
                if lines is not None:
                    member.orders.lines[job.number], job.lacks_lines = lines, False
                elif not self.training.manifest.references.is_busy:
                    raise Interrupted  # nobody computes them any more

    def _listen(self) -> Trained:
        for member, answer in self.members.listen(POLL_SECONDS):
            if isinstance(answer, Lost):
                self._lose(member, answer)
                continue
            self._count(member, answer)
            for event in answer.events:
                yield from self._handle(member, event)
        self.training.progress.workers = self.described()

    def _count(self, member: Member, report: Report) -> None:
        """Count what a worker has done since it was last asked."""
        progress = self.training.progress
        if report.compile_seconds:
            progress.add_compile_time(report.compile_seconds / max(1, len(self.members.ready)))
        for number, (steps, spared) in report.steps.items():
            job = self.running.get(number)
            if job is not None:
                job.steps, job.spared = job.steps + steps, job.spared + spared
                progress.update(steps=steps, spared=spared)

    def _handle(self, member: Member, event: Event) -> Trained:
        job = self.running[event.task]
        group, training = self.jobs.group(job), self.training
        if event.kind == "begun":
            self.begun[job.name] += 1
        elif event.kind == "waits":
            training.manifest.references.begin()
        elif event.kind == "said":
            training.progress.say(event.content)
        elif event.kind == "saved":
            job.steps = job.spared = 0.0
            saved = event.content
            training.later(training.writer.save_partial, job.name, saved.payload, saved.meta)
        elif event.kind == "refused":
            raise UserError(event.content)
        else:
            self._end(member, job)
            if event.kind == "trained":
                event.content.rows = job.rows
                self.done[member.node] += 1
                yield group, event.content
            elif event.kind == "memory":
                self._make_smaller(job, member, event.content)
            elif event.kind == "failed":
                self._fail(job, f"{event.content} (on {member.host})")

    def _end(self, member: Member, job: Job) -> None:
        del self.running[job.number]
        member.jobs.remove(job)

    def _lose(self, member: Member, lost: Lost) -> None:
        """Let the chunks of a lost worker wait again: only the first was being trained."""
        for place, job in enumerate(reversed(member.jobs)):
            self.training.progress.update(steps=-job.steps, spared=-job.spared)
            del self.running[job.number]
            again = replace(job, steps=0.0, spared=0.0, lacks_lines=False)
            if place < len(member.jobs) - 1:
                self.jobs.give_back(again)
                continue
            self.lost.append(job.name)
            again.losses += not (lost.with_its_node or lost.had_no_memory)
            where = f"the worker on {member.host} is lost"
            self.training.progress.say(
                f"{where} ({lost.reason}): its chunk of {len(job.trial_ids)} trials again"
            )
            if lost.had_no_memory or SMALLER_FROM <= again.losses < MOST_LOSSES:
                self._make_smaller(again, member, lost.reason)
            elif again.losses >= MOST_LOSSES:
                self._fail(again, f"{where}, {again.losses} times: {lost.reason}")
            else:
                self.jobs.give_back(again)

    def _make_smaller(self, job: Job, member: Member, why: str) -> None:
        """Try a chunk that may need too much memory in halves; give it up where there are none."""
        group = self.jobs.group(job)
        if self.jobs.halve(job, self.members.share.devices):
            self.training.progress.say(
                f"{group.trials_per_chunk} trials at once were too much for the worker on {member.host}: "
                "trying half as many"
            )
        else:
            self._fail(job, f"not even one trial per device fits into the memory of {member.host} ({why})")

    def _fail(self, job: Job, reason: str) -> None:
        """Give a chunk up; the others go on."""
        label = self.jobs.group(job).label
        self.training.failures.append(Failure(job.trial_ids, reason))
        self.training.progress.say(f"failed: {len(job.trial_ids)} trials of {label}: {reason}")

    def _stop(self) -> Trained:
        """Ask every worker to save what it trains and end; give what is finished meanwhile."""
        until = time.monotonic() + STOP_SECONDS
        for member in self.members.ready:
            member.orders.stop = True
        while self.running and time.monotonic() < until:
            for member in self.members.ready:
                self.members.order(member)
            yield from self._listen()

    @property
    def programs(self) -> list[set[int]]:
        """The programs of this run that each worker has compiled."""
        return [member.programs & self.jobs.programs.keys() for member in self.members.ready]

    def described(self) -> str:
        """Return who trains, how fast, and what was lost, for the line of progress."""
        rates = sorted(member.rate for member in self.members.ready)
        parts = [counted(len(rates), "worker")]
        if rates and rates[-1]:
            span = f"{rates[0]:,.0f}" if rates[0] == rates[-1] else f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
            parts.append(f"{span} each")
        if self.lost:
            parts.append(f"{counted(len(self.lost), 'chunk')} lost and repeated")
        return ", ".join(parts)
