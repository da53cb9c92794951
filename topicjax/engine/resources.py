"""Resources of a run: devices of this process, or the workers of a cluster.

The layout of a run is how many trials each device trains together, on which devices, in which order.  The
same sweep under the same layout and versions gives the same bits; under another layout, the same numbers to
rounding.  A run's entry in manifest.json records its layout as `lanes`, `devices` and `order`.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from topicjax.engine import costs
from topicjax.engine.cluster.connection import Cluster, PlannedCluster, check_installed
from topicjax.engine.options import Options, parse_address, requested_cpu_devices
from topicjax.errors import UserError
from topicjax.store.files import check_kind, first_line
from topicjax.store.manifest import last_run, read_manifest


@dataclass(frozen=True)
class Resources:
    """The devices of this process, or the workers of a cluster and the devices of each."""

    devices: Sequence[Any]
    cluster: Cluster | PlannedCluster | None = None


class Layout(NamedTuple):
    """Trials that a device trains together, and the kind of each device."""

    lanes: int
    devices: tuple[str, ...]


@contextlib.contextmanager
def open_resources(options: Options, plans_only: bool = False) -> Iterator[tuple[Options, Resources]]:
    """Yield the options, completed from a layout if one is given, and the resources they ask for.

    The workers of a cluster end with the block; for a plan, local workers are not started at all.
    """
    layout = layout_of(options.layout) if options.layout is not None else None
    if layout is not None:
        options = replace(options, lanes=layout.lanes)
    wanted = options.devices
    if not isinstance(wanted, int | None):
        yield options, Resources(wanted)
    elif options.cluster is None:
        yield options, Resources(choose_devices(available_devices(), wanted, layout))
    else:
        address = parse_address(options.cluster)
        check_installed()
        count = wanted if layout is None else len(layout.devices)
        if plans_only and address.local:
            made = contextlib.nullcontext(PlannedCluster(address, count))
        else:
            made = Cluster(address, count)
        with made as cluster:
            yield options, Resources(choose_devices(cluster.devices, None, layout), cluster)


def layout_of(folder: Path) -> Layout:
    """Read the layout of a folder's last run, or raise a UserError if it is not recorded."""
    check_kind(folder)
    entry = last_run(read_manifest(folder))
    lanes, devices = entry.get("lanes", 0), entry.get("devices", [])
    if not devices or lanes < 1:
        raise UserError(f"--layout is {folder}, whose last run does not name its layout; allowed: --lanes")
    return Layout(lanes, tuple(devices))


def choose_devices(available: Sequence[Any], count: int | None, layout: Layout | None) -> Sequence[Any]:
    """Choose the first of the available devices: `count`, or as many as a layout has, or all."""
    kind = available[0].device_kind
    if layout is not None and (set(layout.devices) != {kind} or len(layout.devices) > len(available)):
        raise UserError(
            f"--layout asks for {len(layout.devices)} x {layout.devices[0]} and there are "
            f"{len(available)} x {kind}; allowed: --lanes and --devices instead"
        )
    if count is not None and not 1 <= count <= len(available):
        raise UserError(f"--devices is {count}; allowed: 1 to {len(available)}, as many as there are here")
    return available[: len(layout.devices) if layout is not None else count]


def available_devices() -> Sequence[Any]:
    """List the devices of jax, or raise a UserError if it cannot provide those requested."""
    try:
        return jax.local_devices()
    except RuntimeError as error:
        raise UserError(f"jax has no devices: {first_line(error)}") from error


def configure_jax(options: Options) -> None:
    """Configure the devices that the options need; call it before jax starts and a user's file is loaded."""
    if options.cluster is None:
        use_all_cores()
    else:
        check_installed()
        use_one_core()


def use_all_cores(count: int = 0) -> None:
    """Make CPU cores devices (`count`, or as the environment says, or all) and cache compiled programs.

    Call it before jax starts.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = count or requested_cpu_devices() or allowed or 1
    jax.config.update("jax_num_cpu_devices", devices)
    if "NPROC" not in os.environ:  # XLA sizes its thread pool by PJRT_NPROC, else NPROC
        # An additional thread takes over parts of a device's work, away from the cache that holds its data.
        os.environ.setdefault("PJRT_NPROC", str(devices))
    jax.config.update("jax_compilation_cache_dir", str(costs.cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def use_one_core() -> None:
    """Leave accelerators and other cores to the workers; call it before jax starts."""
    jax.config.update("jax_platforms", "cpu")
    use_all_cores(1)
