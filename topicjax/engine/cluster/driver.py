"""Driver of a run on a cluster: start workers, send them chunks and collect the results.

`Jobs` are the waiting chunks, `Members` the workers, `Dispatch` the loop of one run; `estimate` predicts the
time of a run and what limits it.
"""

import heapq
import itertools
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from topicjax.engine import costs
from topicjax.engine.chunk import Chunk, Interrupted
from topicjax.engine.cluster import handshake
from topicjax.engine.cluster.messages import Event, Lost, Orders, Report, Task, WorkerDevice
from topicjax.engine.origin import arithmetic
from topicjax.engine.plan import Group, StreamRow
from topicjax.engine.segments import prepare
from topicjax.engine.training import Failure, IsStopping, Trained, Training
from topicjax.errors import ClusterLost, UserError, counted, duration
from topicjax.store.files import first_line

WORKER = ("topicjax.engine.cluster.worker", "Worker")  # created on the nodes; the driver never imports it
MOST_LOSSES = 4  # workers lost while training one chunk before the chunk is given up ...
SMALLER_FROM = 2  # ... and before it is tried in halves, in case memory ran out
NUMBERS = itertools.count()

LOOK_SECONDS = 2.0  # between two checks for new nodes
ANSWER_SECONDS = 3.0  # for the list of nodes
MOST_CORES = 8  # per worker by default: small chunks spread well, and losing one costs little
MOST_STARTS = 3  # of workers on a node before it is refused, if none became ready
START_SECONDS = 300.0  # for the first worker
PATIENCE = 10.0  # for the others, once one is ready
LOW_MEMORY = "running low on memory"  # in Ray's message when it kills a worker for that
NODE_DIED = "its node has died"

PROBE_SECONDS = 1.0  # between two checks that the cluster answers, and for an answer
ENDED_SECONDS = 5.0  # for which connections are refused before the cluster counts as lost ...
UNREACHABLE_SECONDS = 30.0  # ... or for which nothing answers at all
SILENT_SECONDS = 20.0  # without a report before a worker is called silent: reports come every second
LOST_SECONDS = 300.0  # without a report before a worker is given up

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0  # for a worker to finish its segment after Ctrl-C
SAVED_AT_ONCE = 4  # workers that may save at the requested rate
MOST_WAITING = 16  # pending writes before workers have to wait

# Measured by `topicjax bench --cluster` on 2 cores; writing is set to what its 64 workers reached.  The
# driver does all of this, one chunk after another.
DISPATCH_SECONDS = 0.003  # to prepare and send one chunk
RETURN_RATE = 1.0e9  # bytes per second from a worker to the driver: assumed, a network may be slower
WRITE_SECONDS = 0.02  # to write one chunk of any size ...
WRITE_RATE = 8.0e7  # ... plus its bytes at this rate
IDLE = 0.3  # idle share of the workers' time that is worth reporting
MOSTLY = 0.5


@dataclass
class Job:
    """A chunk to be trained."""

    number: int
    program: int
    rows: tuple[StreamRow, ...]
    losses: int = 0  # workers that died while training it, on nodes that stayed alive
    lacks_references: bool = False  # its worker does not know the reference losses yet
    steps: float = 0.0  # trial-steps done ...
    spared: float = 0.0  # ... and spared by early stops, since it was last saved

    @property
    def name(self) -> str:
        """The name of the chunk's files."""
        return Chunk(self.rows).name

    @property
    def trial_ids(self) -> list[str]:
        """The trials of the chunk."""
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
        self._smaller: dict[int, int] = {}  # by program: the program of its halved chunks

    def group(self, job: Job) -> Group:
        """Look up the group of a chunk."""
        return self.programs[job.program]

    def take(self, has: set[int], others: Iterable[set[int]]) -> Job:
        """Take the next chunk for a worker, given the programs that it and the other workers have compiled.

        Prefer a chunk whose program it has compiled; else one of the program that the fewest workers have.
        """
        mine = [job for job in self.waiting if job.program in has]
        if not mine:
            all_programs = [program for programs in others for program in programs]
            fewest = min(self.waiting, key=lambda job: all_programs.count(job.program)).program
            mine = [job for job in self.waiting if job.program == fewest]
        self.waiting.remove(mine[0])
        return mine[0]

    def give_back(self, job: Job) -> None:
        """Put a chunk back at the front of the queue."""
        self.waiting.insert(0, job)

    def halve(self, job: Job, num_devices: int) -> bool:
        """Put the trials of a chunk back in smaller chunks; return False if it cannot be split."""
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


class Share(NamedTuple):
    """The resources of a node that one worker takes."""

    resource: str  # Ray's name: CPU, GPU, TPU
    devices: int
    request: dict[str, Any]  # the same, as options of a Ray actor

    @property
    def on_cores(self) -> bool:
        """Whether its devices are CPU cores."""
        return self.resource == "CPU"


def share_of(nodes: Sequence[dict[str, Any]], asked: int | None) -> Share:
    """Choose what a worker takes: one GPU, the TPUs of a host, or the cores of the smallest node."""
    counts = {
        name: [int(node["Resources"].get(name, 0)) for node in nodes if node["Resources"].get(name, 0) >= 1]
        for name in ("GPU", "TPU", "CPU")
    }
    if counts["GPU"]:
        return Share("GPU", asked or 1, {"num_gpus": asked or 1, "num_cpus": 1})
    if counts["TPU"]:
        count = asked or min(counts["TPU"])
        return Share("TPU", count, {"resources": {"TPU": count}, "num_cpus": 1})
    if not counts["CPU"]:
        raise UserError(
            "the cluster has no CPUs, GPUs or TPUs for workers; add nodes (ray start --address=...)"
        )
    count = asked or min(MOST_CORES, *counts["CPU"])
    if max(counts["CPU"]) < count:
        raise UserError(
            f"--devices is {count}; allowed: 1 to {max(counts['CPU'])}, the CPUs of the largest node"
        )
    return Share("CPU", count, {"num_cpus": count})


@dataclass
class Member:
    """A worker, as the driver sees it."""

    actor: Any
    node: str
    host: str
    call: Any = None  # the pending call
    stage: str = "greeting"  # then opening, then ready
    orders: Orders = field(default_factory=Orders)  # for the next call
    jobs: list[Job] = field(default_factory=list)  # sent to it; it trains the first
    programs: set[int] = field(default_factory=set)  # compiled there, or sent to be compiled
    steps: float = 0.0
    seconds: float = 0.0  # busy, excluding compilation
    called: float = 0.0  # when the last orders were sent
    sent: list[int] = field(default_factory=list)  # the tasks of the last orders
    is_silent: bool = False  # it has been said that it does not answer

    @property
    def rate(self) -> float:
        """Trial-steps per second."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


class Lifeline:
    """Checks that the head of the cluster and the node of this process still answer.

    Ray waits a minute for a head that has ended and then ends this process; of the node it says nothing.
    """

    def __init__(self, ray: Any) -> None:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        node = (own["NodeManagerAddress"], own["NodeManagerPort"])
        self.places = {"the head of the Ray cluster": (host, int(port)), "Ray on this machine": node}
        self._answered = dict.fromkeys(self.places, time.monotonic())
        self._checked = 0.0

    def check(self) -> None:
        """Ask both, unless that was done a moment ago; raise ClusterLost if one has ended."""
        if time.monotonic() - self._checked < PROBE_SECONDS:
            return
        self._checked = time.monotonic()
        for name, place in self.places.items():
            limit = UNREACHABLE_SECONDS
            try:
                socket.create_connection(place, PROBE_SECONDS).close()
                self._answered[name] = time.monotonic()
            except ConnectionRefusedError:  # its process has ended; a head with a backup may come back
                limit = ENDED_SECONDS
            except OSError:
                pass
            if time.monotonic() - self._answered[name] > limit:
                raise ClusterLost(
                    f"{name} cannot be reached any more; finished trials are kept, the same command continues"
                )


class Members:
    """All workers of a cluster that this driver is connected to."""

    def __init__(self, asked: int | None, maker: tuple[str, str] = WORKER) -> None:
        """Inspect the nodes of the cluster; a worker gets `asked` devices, or what suits the nodes."""
        import ray
        from ray import cloudpickle

        self.ray: Any = ray
        self.maker, self.all = maker, list[Member]()
        self.lifeline = Lifeline(ray)
        cloudpickle.register_pickle_by_value(handshake)
        self.actor_class = self.ray.remote(handshake.Handshake)
        self.versions = handshake.Handshake().versions()
        self._look: threading.Thread | None = None
        self._known: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
        self.share = share_of(self._known, asked)
        self.devices: list[WorkerDevice] = []  # of one worker
        self.say: Callable[[str], None] = lambda text: None
        self._looked = 0.0
        self._starts: dict[str, int] = {}  # by node, since one of its workers was last ready
        self._refused: set[str] = set()  # nodes whose workers cannot be used

    @property
    def ready(self) -> list[Member]:
        """The workers that can take orders."""
        return [member for member in self.all if member.stage == "ready"]

    def _nodes(self) -> list[dict[str, Any]]:
        """List the living nodes; those last known if the head does not answer."""

        def look() -> None:
            self._known = [node for node in self.ray.nodes() if node["Alive"]]

        if self._look is None or not self._look.is_alive():
            self._look = threading.Thread(target=look, daemon=True)  # a look-up without a head never returns
            self._look.start()
        self._look.join(ANSWER_SECONDS)
        return self._known

    def recruit(self) -> None:
        """Start workers wherever there is capacity: on new nodes, and in place of lost workers."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        for node in self._nodes():
            name = node["NodeID"]
            there = sum(member.node == name for member in self.all)
            room = int(node["Resources"].get(self.share.resource, 0) // self.share.devices)
            for _ in range(room - there if name not in self._refused else 0):
                self._starts[name] = self._starts.get(name, 0) + 1
                place = OnNode(name, soft=False)
                actor = self.actor_class.options(**self.share.request, scheduling_strategy=place).remote()
                member = Member(actor, name, node["NodeManagerHostname"])
                member.call = actor.versions.remote()
                self.all.append(member)
        self._looked = time.monotonic()

    def gather(self, patience: float = PATIENCE) -> None:
        """Wait for the workers that are starting; raise a UserError if none can be used.

        Once one is ready, wait `patience` seconds for the others.
        """
        begun = first = time.monotonic()
        while not self.ready or (len(self.ready) < len(self.all) and time.monotonic() - first < patience):
            self.recruit()
            self.listen(0.5)
            first = first if self.ready else time.monotonic()
            if time.monotonic() - begun > START_SECONDS:
                raise UserError(
                    f"no worker of the cluster was ready within {START_SECONDS:.0f} s; are its "
                    f"{self.share.resource}s taken by others? (ray status)"
                )

    def order(self, member: Member) -> None:
        """Send a worker its orders, unless its last call is still pending."""
        if member.call is None and (member.jobs or member.orders.tasks):
            member.sent, member.called = [task.number for task in member.orders.tasks], time.monotonic()
            member.call, member.orders = member.actor.exchange.remote(member.orders), Orders()

    def listen(self, seconds: float) -> list[tuple[Member, Report | Lost]]:
        """Collect reports and losses of workers; wait up to `seconds` for the first.

        Raises ClusterLost if the cluster itself has ended.
        """
        self.lifeline.check()
        asked = {member.call: member for member in self.all if member.call is not None}
        if not asked:
            time.sleep(seconds)
            return []
        some, others = self.ray.wait(list(asked), timeout=seconds)
        more, _ = self.ray.wait(others, num_returns=len(others), timeout=0) if others else ([], [])
        heard = [(asked[call], self._answer(asked[call])) for call in [*some, *more]]
        heard += [(member, self._give_up(member)) for member in self._silent()]
        return [(member, answer) for member, answer in heard if answer is not None]

    def _silent(self) -> list[Member]:
        """Find the workers that have not answered for a long time; say so of those that are late."""
        now, lost = time.monotonic(), []
        for member in (member for member in self.ready if member.call is not None):
            seconds = now - member.called
            if seconds > LOST_SECONDS:
                lost.append(member)
            elif seconds > SILENT_SECONDS and not member.is_silent:
                member.is_silent = True
                self.say(
                    f"the worker on {member.host} has not answered for {duration(seconds)}: it is stopped or "
                    f"very busy; given up after {duration(LOST_SECONDS)}"
                )
        return lost

    def _give_up(self, member: Member) -> Lost:
        """Kill a worker that does not answer; another will take its place."""
        self._drop(member)
        return Lost(f"it did not answer for {duration(LOST_SECONDS)}", False, False)

    def _answer(self, member: Member) -> Report | Lost | None:
        """Return the report of a worker, or its loss; None if the answer was part of its start."""
        call, member.call = member.call, None
        try:
            answer = self.ray.get(call)
            if member.is_silent:
                member.is_silent = False
                self.say(f"the worker on {member.host} answers again")
            if member.stage == "ready":
                member.seconds += time.monotonic() - member.called - answer.compile_seconds
                member.steps += sum(done for done, _ in answer.steps.values())
                return answer
            self._welcome(member, answer)
        except self.ray.exceptions.RayTaskError as error:
            why = f"{type(error.cause).__name__}: {first_line(error.cause)}"
            if member.stage == "ready":  # the orders cannot be unpickled: a user module is missing there
                member.programs = set()  # so that they are sent again
                return Report([Event(task, "failed", why) for task in member.sent])
            self._refuse(member, f"cannot start ({why})")
        except self.ray.exceptions.RayError as error:
            return self._lose(member, error)
        return None

    def _welcome(self, member: Member, answer: Any) -> None:
        """Check the versions of a new worker, then its devices; after that it is ready."""
        if member.stage == "greeting":
            differ = [name for name, version in self.versions.items() if answer.get(name) != version]
            if differ:
                name = differ[0]
                return self._refuse(
                    member,
                    f"has {name} {answer.get(name)} and this machine {self.versions[name]}; install the "
                    "same on both",
                )
            member.stage = "opening"
            member.call = member.actor.open.remote(*self.maker, self.share.devices, self.share.on_cores)
            return None
        room = sum(other.node == member.node for other in self.all) if self.share.on_cores else 1
        devices = [WorkerDevice(platform, kind, memory // room) for platform, kind, memory in answer]
        kinds = [device[:2] for device in self.devices or devices]
        if [device[:2] for device in devices] != kinds:
            kind = devices[0].device_kind
            return self._refuse(member, f"has {len(devices)} x {kind}, unlike the others")
        least = min(device.memory for device in [*devices, *self.devices])
        self.devices = [device._replace(memory=least) for device in devices]
        member.stage, self._starts[member.node] = "ready", 0
        return None

    def _refuse(self, member: Member, why: str) -> None:
        """Start no more workers on a node; raise a UserError if no worker is in use yet."""
        self._refused.add(member.node)
        self._drop(member)
        if not self.devices:
            raise UserError(f"the worker on {member.host} {why}")
        self.say(f"the worker on {member.host} {why}: that machine gets no work")

    def _lose(self, member: Member, error: Exception) -> Lost:
        """Drop a dead worker, so that another can take its place; return why it died."""
        self._drop(member)
        text = str(error)
        alive = {node["NodeID"] for node in self._nodes()}
        if self._starts.get(member.node, 0) >= MOST_STARTS:
            self._refused.add(member.node)
            self.say(f"workers on {member.host} end before they begin: that machine gets no work")
        is_memory = isinstance(error, self.ray.exceptions.OutOfMemoryError) or LOW_MEMORY in text
        with_its_node = NODE_DIED in text or member.node not in alive
        if is_memory:
            why = "its machine is low on memory"
        elif isinstance(error, self.ray.exceptions.ActorDiedError):
            why = "its machine cannot be reached" if with_its_node else "its process ended"
        else:
            why = first_line(error)
        return Lost(why, is_memory, with_its_node)

    def _drop(self, member: Member) -> None:
        self.all.remove(member)
        self.ray.kill(member.actor)


class Dispatch:
    """One run: which chunks wait, which are training and where, which were lost."""

    def __init__(self, members: Members, training: Training) -> None:
        self.members, self.training = members, training
        self.jobs = Jobs(training.groups)
        self.running: dict[int, Job] = {}
        self.begun: Counter[str] = Counter()  # chunks by name
        self.done: Counter[str] = Counter()  # chunks by node
        self.lost: list[str] = []  # names of chunks whose worker was lost
        self.announced: set[int] = set()  # programs
        members.say = training.progress.say

    def run(self, is_stopping: IsStopping) -> Trained:
        """Yield chunks as they are trained; if asked to stop, save the others and raise Interrupted."""
        yield from self._decided()
        while self.jobs.waiting or self.running:
            if is_stopping():
                yield from self._stop()
                raise Interrupted
            self.members.recruit()
            self._assign()
            self._send_references()
            yield from self._listen()
            self.training.settle(MOST_WAITING)

    def _decided(self) -> Trained:
        """Yield chunks whose trials were all decided in shorter trainings: nothing is left to train."""
        for job in list(self.jobs.waiting):
            group = self.jobs.group(job)
            if group.start(job.trial_ids[0]) == group.spec.steps:
                self.jobs.waiting.remove(job)
                chunk = Chunk(job.rows)
                prepare(chunk, group, self.training.writer)
                yield group, chunk

    def _assign(self) -> None:
        """Send every idle worker a chunk, and each worker a second one while many are waiting."""
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
        known = training.references_of(chunk) if may_stop else {}
        job.lacks_references = known is None
        # One driver writes the saved states of all workers: the more workers, the less often each saves.
        seldom = max(1.0, len(self.members.ready) / SAVED_AT_ONCE)
        task = Task(
            number=job.number,
            program=job.program,
            first_program=self.jobs.first_program,
            group=None if job.program in member.programs else replace(group, streams=()),
            options=replace(training.options, save_every=seldom * training.options.save_every),
            arithmetic=arithmetic(),
            start=prepare(chunk, group, training.writer),
            chunk=chunk,
            trials={i: training.trials[i] for i in job.trial_ids} if may_stop else {},
            references=known,
        )
        member.programs.add(job.program)
        member.jobs.append(job)
        member.orders.tasks.append(task)
        self.running[job.number] = job
        if job.program not in self.announced:
            self.announced.add(job.program)
            training.progress.programs = len(self.jobs.programs)
            training.progress.begin_program(group.label)

    def _send_references(self) -> None:
        """Send reference losses to the workers that wait for them, once they are computed."""
        for member in self.members.ready:
            for job in (job for job in member.jobs if job.lacks_references):
                known = self.training.references_of(Chunk(job.rows))
                if known is not None:
                    member.orders.references[job.number], job.lacks_references = known, False
                elif not self.training.manifest.references.is_busy:
                    raise Interrupted  # their computation ended without them

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
        """Add up what a worker has done since its last report."""
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
            training.later(training.save, group, job.name, event.content)
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
        """Put the chunks of a lost worker back; only the first was being trained."""
        for place, job in enumerate(reversed(member.jobs)):
            self.training.progress.update(steps=-job.steps, spared=-job.spared)
            del self.running[job.number]
            again = replace(job, steps=0.0, spared=0.0, lacks_references=False)
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
        """Split a chunk that may need too much memory; give it up if it cannot be split."""
        group = self.jobs.group(job)
        if self.jobs.halve(job, self.members.share.devices):
            self.training.progress.say(
                f"{group.trials_per_chunk} trials at once were too much for the worker on {member.host}: "
                "trying half as many"
            )
        else:
            self._fail(job, f"not even one trial per device fits into the memory of {member.host} ({why})")

    def _fail(self, job: Job, reason: str) -> None:
        """Give up a chunk; the others continue."""
        label = self.jobs.group(job).label
        self.training.failures.append(Failure(job.trial_ids, reason))
        self.training.progress.say(f"failed: {len(job.trial_ids)} trials of {label}: {reason}")

    def _stop(self) -> Trained:
        """Ask every worker to save and stop; yield what finishes meanwhile."""
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
        """Describe the number of workers, their rates and the lost chunks, for the progress line."""
        rates = sorted(member.rate for member in self.members.ready)
        parts = [counted(len(rates), "worker")]
        if rates and rates[-1]:
            span = f"{rates[0]:,.0f}" if rates[0] == rates[-1] else f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
            parts.append(f"{span} each")
        if self.lost:
            parts.append(f"{counted(len(self.lost), 'chunk')} lost and repeated")
        return ", ".join(parts)


class Estimate(NamedTuple):
    """Estimated seconds of a run and of its parts, and which part limits it."""

    seconds: float
    training: float  # on the busiest worker
    compiling: float  # on the same worker
    dispatch: float  # by the driver, in parallel with training
    writing: float  # by the driver
    limit: str


def estimate(
    groups: Sequence[Group],
    num_workers: int,
    chunk_seconds: Callable[[Group, float], float],
    compile_seconds: float,
) -> Estimate:
    """Estimate a run on `num_workers`, given the seconds of a group's trial-steps on one of them."""
    jobs = Jobs(groups)
    count = len(jobs.waiting)
    dispatch, writing = driver_seconds(jobs)
    training, compiling = [0.0] * num_workers, [0.0] * num_workers
    programs: list[set[int]] = [set() for _ in range(num_workers)]
    free = [(0.0, worker) for worker in range(num_workers)]
    while jobs.waiting:
        now, worker = heapq.heappop(free)
        others = (compiled for other, compiled in enumerate(programs) if other != worker)
        job = jobs.take(programs[worker], others)
        group = jobs.group(job)
        steps = sum(group.spec.steps - group.start(trial_id) for trial_id in job.trial_ids)
        seconds = chunk_seconds(group, steps)
        new = 0.0 if job.program in programs[worker] else compile_seconds
        programs[worker].add(job.program)
        training[worker], compiling[worker] = training[worker] + seconds, compiling[worker] + new
        heapq.heappush(free, (now + seconds + new, worker))
    busy = [a + b for a, b in zip(training, compiling, strict=True)]
    longest = max(busy)
    last = busy.index(longest)
    is_idle = sum(busy) < (1 - IDLE) * longest * num_workers
    limit = limiting(longest, compiling[last], dispatch, writing, count if is_idle else 0, num_workers)
    seconds = max(longest, dispatch + writing)
    return Estimate(seconds, training[last], compiling[last], dispatch, writing, limit)


def limiting(
    longest: float, compiling: float, dispatch: float, writing: float, too_few: int, num_workers: int
) -> str:
    """Describe what limits a run on a cluster."""
    if dispatch + writing > longest > 0:
        return "dispatch of chunks" if dispatch > writing else "writing, by the one process that does it"
    if compiling > MOSTLY * longest:
        return "compiling, on every worker for itself"
    if too_few:
        return (
            f"too few chunks, {too_few:,} for {num_workers:,} workers: a smaller --lanes makes more of them"
        )
    return "training"


def driver_seconds(jobs: Jobs) -> tuple[float, float]:
    """Estimate the driver's seconds to send all chunks and fetch their results, and to write them."""
    dispatch = writing = 0.0
    for job in jobs.waiting:
        size = len(job.trial_ids) * sum(costs.disk_bytes(jobs.group(job)).values())
        dispatch += DISPATCH_SECONDS + size / RETURN_RATE
        writing += WRITE_SECONDS + size / WRITE_RATE
    return dispatch, writing


def slowed(num_workers: int, num_devices: int, is_local: bool) -> float:
    """Estimate how much sharing the cores of this machine slows its workers; 1 if there are enough."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, num_workers * num_devices / cores) if is_local else 1.0
