"""The layout of a run: how many trials each device trains together, on which devices.

Under the same layout and versions the same sweep gives the same bits; under another, the same numbers to
rounding.  A run's layout is in its entry of the manifest, as `lanes`, `devices` and `order`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from topicjax.errors import UserError, shown
from topicjax.store.files import check_kind
from topicjax.store.manifest import last_run, read_manifest

DEVICES_VARIABLE = "JAX_NUM_CPU_DEVICES"
DEVICES_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\S*)")
MAX_DEVICES = 4096


class Layout(NamedTuple):
    """Trials that a device trains together, the kind of each device, and the order of the work."""

    lanes: int
    devices: tuple[str, ...]
    order: str


def layout_of(folder: Path) -> Layout:
    """Return the layout of a folder's last run, or raise a UserError if the folder does not say."""
    check_kind(folder)
    entry = last_run(read_manifest(folder))
    lanes, devices = entry.get("lanes", 0), entry.get("devices", [])
    if not devices or lanes < 1:
        raise UserError(f"--layout is {folder}, whose last run does not name its layout; allowed: --lanes")
    return Layout(lanes, tuple(devices), entry.get("order", ""))


def choose_devices(available: Sequence[Any], count: int | None, layout: Layout | None) -> Sequence[Any]:
    """Return the first of the available devices, as many as are asked for, or all."""
    kind = available[0].device_kind
    if layout is not None and (set(layout.devices) != {kind} or len(layout.devices) > len(available)):
        raise UserError(
            f"--layout asks for {len(layout.devices)} x {layout.devices[0]} and there are "
            f"{len(available)} x {kind}; allowed: --lanes and --devices instead"
        )
    if count is not None and not 1 <= count <= len(available):
        raise UserError(f"--devices is {count}; allowed: 1 to {len(available)}, as many as there are here")
    return available[: len(layout.devices) if layout is not None else count]


def requested_cpu_devices() -> int | None:
    """Return how many CPU devices the environment asks JAX for; None if it leaves that open."""
    flag = DEVICES_FLAG.search(os.environ.get("XLA_FLAGS", ""))
    for name, text in (
        (DEVICES_VARIABLE, os.environ.get(DEVICES_VARIABLE)),
        ("--xla_force_host_platform_device_count in XLA_FLAGS", flag and flag[1]),
    ):
        if text is not None:
            if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_DEVICES:
                raise UserError(f"{name} is {shown(text)}; allowed: 1 to {MAX_DEVICES}")
            return int(text)
    return None
