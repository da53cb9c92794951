"""Describe the machine of a benchmark: with `--json`, all that is needed to read figures sent by others."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import jax

from topicjax.engine.run import provenance

ACCELERATOR_PACKAGE = re.compile(r"libtpu|torch|nvidia-.*|jax-(cuda|rocm).*")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, Any]:
    """Describe devices, versions, driver and system; a driver that nobody names is None."""
    devices = jax.local_devices()
    memory = devices[0].memory_stats() or {}
    return provenance(devices) | dict(
        platform=devices[0].platform,
        runtime=str(devices[0].client.platform_version),
        driver=nvidia_driver(),
        device_memory_bytes=memory.get("bytes_limit"),
        accelerator_packages=accelerator_packages(),
        system=platform.platform(),
        processor=processor(),
        cores=os.cpu_count(),
    )


def nvidia_driver() -> str | None:
    """Read the version of NVIDIA's driver, as its kernel module states it; None without one."""
    try:
        found = re.search(r"\s(\d+\.\d[\d.]*)\s", NVIDIA_DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


def accelerator_packages() -> dict[str, str]:
    """List the installed packages that drive accelerators, with their versions."""
    every = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return {name: every[name] for name in sorted(filter(None, every)) if ACCELERATOR_PACKAGE.fullmatch(name)}


def processor() -> str:
    """Name the model of the CPU."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor()
