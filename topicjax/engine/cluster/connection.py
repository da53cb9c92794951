"""The connection to Ray: a cluster is joined, or started and ended; what is wrong is one sentence."""

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from topicjax.engine.cluster.address import Address, check_installed
from topicjax.errors import UserError
from topicjax.store.files import first_line

SETTINGS = {  # of Ray, unless the user has set them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else workers of a cluster that is started here yield to everybody
}
CONNECT_SECONDS = 5.0
NAMESPACE = "topicjax"
TOO_BUSY = "Ray did not start within its 30 seconds; is the machine too busy?"
NONE_HERE = "no Ray cluster runs on this machine; start one (docs/cluster.md), or use local:N"


def connect(address: Address, num_cpus: int) -> None:
    """Join the cluster at an address, or start one with so many CPUs here, or raise a UserError."""
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
        try:
            ray.init(**where)
        except Exception as error:  # Ray raises almost anything
            ray.shutdown()
            why = reason(address, error)
            raise UserError(f"--cluster is {address.text} and cannot be used: {why}") from error
        silence(ray)


def reason(address: Address, error: Exception) -> str:
    """Return why Ray cannot be used, in a sentence."""
    if address.text == "auto" and isinstance(error, ConnectionError):
        return NONE_HERE
    return TOO_BUSY if "timed out during startup" in str(error) else first_line(error)


def disconnect() -> None:
    """Leave the cluster: workers of ours end, and so does all of a cluster that was started here."""
    import ray

    with quiet(), kept_signals():
        ray.shutdown()


def check_reachable(address: Address) -> None:
    """Raise a UserError if nothing answers there: Ray would try for long."""
    try:
        socket.create_connection((address.host, address.port), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"--cluster is {address.text} and nothing answers there ({error.strerror or error}); allowed: "
            "the address of a Ray cluster (docs/cluster.md), or local:N"
        ) from None


def silence(ray: Any) -> None:
    """Keep Ray from printing pages between our lines when a node dies: we say so ourselves."""
    ray._private.worker.print_to_stdstream = lambda *arguments, **options: None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of Ray's own code from our user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """Put back the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
