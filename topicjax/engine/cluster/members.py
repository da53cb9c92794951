"""The workers of a cluster: found wherever there is room, replaced when they are lost, asked in turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topicjax.engine.cluster import door
from topicjax.engine.cluster.messages import Event, Lost, Orders, Report, WorkerDevice
from topicjax.errors import UserError
from topicjax.store.files import first_line

WORKER = ("topicjax.engine.cluster.worker", "Worker")
LOOK_SECONDS = 2.0  # from one look for new nodes to the next
MOST_CORES = 8  # of a worker, unless asked for: chunks stay small enough to be lost, and to be spread
MOST_STARTS = 3  # of workers on a node that never came to work
START_SECONDS = 300.0  # for the first worker
PATIENCE = 10.0  # for the others, once one is there
LOW_MEMORY = "running low on memory"  # what Ray says when it ends a worker for that
NODE_DIED = "its node has died"


class Share(NamedTuple):
    """What every worker gets of a node."""

    resource: str  # as Ray names it: CPU, GPU, TPU
    devices: int  # of a worker
    request: dict[str, Any]  # the same as options of an actor

    @property
    def on_cores(self) -> bool:
        """Whether its devices are CPU cores."""
        return self.resource == "CPU"


def share_of(nodes: Sequence[dict[str, Any]], asked: int | None) -> Share:
    """Return what a worker gets: one GPU, the TPUs of a host, or the cores of the smallest node."""
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
    """A worker, as its driver knows it."""

    actor: Any
    node: str
    host: str
    call: Any = None  # what it was last asked and has not answered yet
    stage: str = "greeting"  # then opening, then ready
    orders: Orders = field(default_factory=Orders)  # for the next call
    jobs: list[Any] = field(default_factory=list)  # it has; the first is being trained
    programs: set[int] = field(default_factory=set)  # it has compiled, or is about to
    steps: float = 0.0
    seconds: float = 0.0  # it was busy, without compiling
    asked: float = 0.0  # when
    sent: list[int] = field(default_factory=list)  # the tasks of the last orders

    @property
    def rate(self) -> float:
        """Trial-steps a second."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


class Members:
    """All workers of a cluster that this driver is connected to."""

    def __init__(self, asked: int | None, maker: tuple[str, str] = WORKER) -> None:
        """Look who is there; `asked` devices each, or as many as suit the nodes."""
        import ray
        from ray import cloudpickle

        self.ray: Any = ray
        self.maker, self.all = maker, list[Member]()
        cloudpickle.register_pickle_by_value(door)
        self.door, self.versions = self.ray.remote(door.Door), door.Door().versions()
        self.share = share_of(self._nodes(), asked)
        self.devices: list[WorkerDevice] = []  # of one worker
        self.say: Callable[[str], None] = lambda text: None
        self._looked = 0.0
        self._starts: dict[str, int] = {}  # by node, since one of its workers was ready
        self._refused: set[str] = set()  # nodes whose workers are of no use

    @property
    def ready(self) -> list[Member]:
        """The workers that can be given orders."""
        return [member for member in self.all if member.stage == "ready"]

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def recruit(self) -> None:
        """Start workers where there is room and none is: on new nodes, and in place of lost ones."""
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
                actor = self.door.options(**self.share.request, scheduling_strategy=place).remote()
                member = Member(actor, name, node["NodeManagerHostname"])
                member.call = actor.versions.remote()
                self.all.append(member)
        self._looked = time.monotonic()

    def gather(self, patience: float = PATIENCE) -> None:
        """Wait for the workers that start now; raise a UserError if there is none that can be used.

        Once there is one, wait so many seconds for the others.
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
        """Give a worker its orders, unless it has still to answer the last ones."""
        if member.call is None and (member.jobs or member.orders.tasks):
            member.sent, member.asked = [task.number for task in member.orders.tasks], time.monotonic()
            member.call, member.orders = member.actor.exchange.remote(member.orders), Orders()

    def listen(self, seconds: float) -> list[tuple[Member, Report | Lost]]:
        """Return what workers report, and which are lost; wait so long for the first."""
        asked = {member.call: member for member in self.all if member.call is not None}
        if not asked:
            time.sleep(seconds)
            return []
        some, others = self.ray.wait(list(asked), timeout=seconds)
        more, _ = self.ray.wait(others, num_returns=len(others), timeout=0) if others else ([], [])
        heard = [(asked[call], self._answer(asked[call])) for call in [*some, *more]]
        return [(member, answer) for member, answer in heard if answer is not None]

    def _answer(self, member: Member) -> Report | Lost | None:
        """Return the report of a worker, or that it is lost; None if it was about its start."""
        call, member.call = member.call, None
        try:
            answer = self.ray.get(call)
            if member.stage == "ready":
                member.seconds += time.monotonic() - member.asked - answer.compile_seconds
                member.steps += sum(done for done, _ in answer.steps.values())
                return answer
            self._welcome(member, answer)
        except self.ray.exceptions.RayTaskError as error:
            why = f"{type(error.cause).__name__}: {first_line(error.cause)}"
            if (
                member.stage == "ready"
            ):  # what was sent cannot be read there: a module of the user's is missing
                member.programs = set()  # to be sent again
                return Report([Event(task, "failed", why) for task in member.sent])
            self._refuse(member, f"cannot start ({why})")
        except self.ray.exceptions.RayError as error:
            return self._lose(member, error)
        return None

    def _welcome(self, member: Member, answer: Any) -> None:
        """Take a new worker one step further: its versions are right, its devices are known."""
        if member.stage == "greeting":
            differ = [name for name, own in self.versions.items() if answer.get(name) != own]
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
        """Do without the workers of a node; before anything is trained that is the end of the run."""
        self._refused.add(member.node)
        self._drop(member)
        if not self.devices:
            raise UserError(f"the worker on {member.host} {why}")
        self.say(f"the worker on {member.host} {why}: that machine gets no work")

    def _lose(self, member: Member, error: Exception) -> Lost:
        """Return why a worker is gone; its place is free for another."""
        self._drop(member)
        text = str(error)
        alive = {node["NodeID"] for node in self._nodes()}
        if self._starts.get(member.node, 0) >= MOST_STARTS:
            self._refused.add(member.node)
            self.say(f"workers on {member.host} end before they begin: that machine gets no work")
        is_memory = isinstance(error, self.ray.exceptions.OutOfMemoryError) or LOW_MEMORY in text
        return Lost(first_line(error), is_memory, NODE_DIED in text or member.node not in alive)

    def _drop(self, member: Member) -> None:
        self.all.remove(member)
        self.ray.kill(member.actor)
