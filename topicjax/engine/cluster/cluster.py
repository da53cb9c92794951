"""A cluster for the length of a command: its workers, their devices, and the runs that they train."""

from types import TracebackType
from typing import Self

from topicjax.engine.cluster.address import Address
from topicjax.engine.cluster.connection import connect, disconnect
from topicjax.engine.cluster.dispatch import Dispatch
from topicjax.engine.cluster.members import WORKER, Members
from topicjax.engine.cluster.messages import WorkerDevice
from topicjax.engine.costs import host_memory
from topicjax.engine.run import IsStopping, Trained, Training


class Planned:
    """A cluster of workers on this machine that is never started: for plans."""

    def __init__(self, address: Address, devices: int | None = None) -> None:
        """Name how many workers it would have, and how many devices each."""
        self.address, self.num_devices = address, devices or 1

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    @property
    def num_workers(self) -> int:
        """How many workers it would have."""
        return self.address.local

    @property
    def devices(self) -> list[WorkerDevice]:
        """The devices that one worker would have."""
        memory = host_memory() // (self.num_workers * self.num_devices)
        return [WorkerDevice("cpu", "cpu", memory)] * self.num_devices

    def train(self, training: Training, is_stopping: IsStopping, order: str) -> Trained:
        """Raise: nothing is trained in a plan."""
        raise NotImplementedError


class Cluster:
    """Workers that are ours from `with` to the end of its block."""

    def __init__(self, address: Address, devices: int | None = None, maker: tuple[str, str] = WORKER) -> None:
        """Name a cluster; each worker has so many devices, else one here and elsewhere as suits the nodes."""
        self.address, self.maker = address, maker
        self.asked = devices or (1 if address.local else None)
        self.last: Dispatch | None = None

    def __enter__(self) -> Self:
        """Join or start the cluster and wait for its workers, or raise a UserError."""
        connect(self.address, self.address.local * (self.asked or 1))
        try:
            self.members = Members(self.asked, self.maker)
            self.members.gather()
        except BaseException:
            disconnect()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End the workers."""
        disconnect()

    @property
    def devices(self) -> list[WorkerDevice]:
        """The devices of one worker: chunks are shaped for them."""
        return self.members.devices

    @property
    def num_workers(self) -> int:
        """How many workers there are now."""
        return len(self.members.ready)

    def train(self, training: Training, is_stopping: IsStopping, order: str) -> Trained:
        """Give the chunks of all groups as they are trained, in any order."""
        self.last = Dispatch(self.members, training, order)
        try:
            yield from self.last.run(is_stopping)
        finally:
            training.manifest.add(repeated_chunks=self.last.lost)
