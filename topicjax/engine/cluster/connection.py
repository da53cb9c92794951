"""Connect to a Ray cluster: join or start one, hold its workers while a command runs, and leave it."""

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from topicjax.advice import guide, install_command
from topicjax.engine.cluster.driver import WORKER, Dispatch, Members
from topicjax.engine.cluster.messages import WorkerDevice
from topicjax.engine.cluster.processes import Processes
from topicjax.engine.costs import host_memory
from topicjax.engine.options import Address
from topicjax.engine.training import IsStopping, Trained, Training
from topicjax.errors import UserError, shown
from topicjax.store.files import first_line

SETTINGS = {  # environment variables of Ray, unless the user set them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else local workers yield to every other process
}
CONNECT_SECONDS = 5.0
NAMESPACE = "topicjax"
TOO_BUSY = "Ray did not start within its 30 seconds; is the machine too busy?"
NONE_HERE = f"no Ray cluster runs on this machine; start one ({guide('cluster')}), or use local:N"


class PlannedCluster:
    """A local cluster that is planned but never started."""

    def __init__(self, address: Address, devices: int | None = None) -> None:
        """Describe its workers, with `devices` devices each."""
        self.address, self.num_devices = address, devices or 1

    @property
    def num_workers(self) -> int:
        """How many workers it would have."""
        return self.address.local

    @property
    def devices(self) -> list[WorkerDevice]:
        """The devices that one worker would have."""
        memory = host_memory() // (self.num_workers * self.num_devices)
        return [WorkerDevice("cpu", "cpu", memory)] * self.num_devices


class Cluster:
    """A cluster whose workers belong to us inside a `with` block."""

    def __init__(self, address: Address, devices: int | None = None, maker: tuple[str, str] = WORKER) -> None:
        """Describe the cluster; a worker gets `devices` devices (default: one if local, else what suits)."""
        self.address, self.maker = address, maker
        self.asked = devices or (1 if address.local else None)
        self.last: Dispatch | None = None

    def __enter__(self) -> Self:
        """Join or start the cluster and wait for its workers, or raise a UserError."""
        self._processes = connect(self.address, self.address.local * (self.asked or 1))
        try:
            self.members = Members(self.asked, self.maker)
            self.members.gather()
        except BaseException as error:
            ended = self._processes.ended() if self._processes else ""
            disconnect(self._processes)
            if ended and self._processes and isinstance(error, Exception):
                raise self._processes.lost(ended) from error
            raise
        if self._processes:
            self._processes.started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Disconnect from the cluster, which ends the workers."""
        disconnect(self._processes)

    @property
    def devices(self) -> list[WorkerDevice]:
        """The devices of one worker: chunks are shaped for them."""
        return self.members.devices

    @property
    def num_workers(self) -> int:
        """How many workers are ready."""
        return len(self.members.ready)

    def train(self, training: Training, is_stopping: IsStopping) -> Trained:
        """Yield the chunks of all groups as they are trained, in any order."""
        self.last = Dispatch(self.members, training)
        try:
            yield from self.last.run(is_stopping)
        finally:
            training.manifest.add(repeated_chunks=self.last.lost)


def check_installed() -> None:
    """Raise a UserError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            f"--cluster needs Ray, which is not installed; install it with: {install_command('ray')}"
        )


def connect(address: Address, num_cpus: int) -> Processes | None:
    """Join the cluster at an address, or start one with `num_cpus` here, or raise a UserError.

    Returns the processes of a cluster that was started.
    """
    check_installed()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if address.host:
        check_reachable(address)
    with quiet(), kept_signals():
        import ray

        where: dict[str, Any] = {"address": address.text}
        if address.local:
            where = {"address": "local", "num_cpus": num_cpus, "num_gpus": 0, "include_dashboard": False}
        where |= {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        processes = Processes(ray, address.text) if address.local else None
        try:
            with loopback_only(ray) if address.local else contextlib.nullcontext():
                ray.init(**where)
        except BaseException as error:  # Ray may raise any exception
            ended = processes.ended() if processes else ""
            disconnect(processes)
            if not isinstance(error, Exception):
                raise
            if processes and ended:
                raise processes.lost(ended) from error
            why = reason(address, error)
            raise UserError(f"--cluster is {address.text} and cannot be used: {why}") from error
        silence(ray)
        return processes


def reason(address: Address, error: Exception) -> str:
    """Explain why Ray cannot be used."""
    if address.text == "auto" and isinstance(error, ConnectionError):
        return NONE_HERE
    return TOO_BUSY if "timed out during startup" in str(error) else first_line(error)


def disconnect(processes: Processes | None) -> None:
    """Leave the cluster; our workers end, and so do the processes of a cluster that we started."""
    import ray

    with quiet(), kept_signals():
        if processes:
            processes.leave()
        ray.shutdown()
        if processes:
            processes.end()


def check_reachable(address: Address) -> None:
    """Raise a UserError if nothing answers at the address; Ray itself would retry for minutes."""
    try:
        socket.create_connection((address.host, address.port), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host can be that long
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"--cluster is {shown(address.text)} and nothing answers there ({why}); allowed: "
            f"the address of a Ray cluster ({guide('cluster')}), or local:N"
        ) from None


def silence(ray: Any) -> None:
    """Stop Ray from printing pages of output when a node dies; the driver reports it."""
    ray._private.worker.print_to_stdstream = lambda *arguments, **options: None


@contextlib.contextmanager
def loopback_only(ray: Any) -> Iterator[None]:
    """Let a cluster that is started inside listen on 127.0.0.1 only, as Ray does on macOS and Windows.

    On Linux it would listen on every interface; `_node_ip_address="127.0.0.1"` of `ray.init` is replaced by
    the address of the machine.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings from Ray's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
