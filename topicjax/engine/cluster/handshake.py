"""Handshake actor, pickled by value so that a node with a different (or no) topicjax can report its versions.

Nothing here may import topicjax at the top level: the module must load on a node that lacks it.
"""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import platform
import zlib
from typing import Any

PACKAGES = ("topicjax", "jax", "jaxlib", "numpy")
CODE = ("*.py", "engine/**/*.py", "experiments/**/*.py", "theory/*.py", "corpora/*.py")  # results depend on


class Handshake:
    """The actor of a worker: reports what is installed, then holds the worker that the driver requests."""

    def versions(self) -> dict[str, str]:
        """List what must be the same on the driver and its workers."""
        found = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name in PACKAGES:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "none"
        return found | {"the code of topicjax": self.code()}

    def code(self) -> str:
        """Compute a checksum of the modules that results depend on."""
        spec = importlib.util.find_spec("topicjax")
        if spec is None or spec.origin is None:
            return "none"
        folder, crc = pathlib.Path(spec.origin).parent, 0
        for path in sorted({path for pattern in CODE for path in folder.glob(pattern)}):
            crc = zlib.crc32(path.relative_to(folder).as_posix().encode() + path.read_bytes(), crc)
        return f"{crc:08x}"

    def open(self, module: str, name: str, num_devices: int, on_cores: bool) -> list[tuple[str, str, int]]:
        """Make a worker with `num_devices` devices; return platform, kind and memory of each."""
        self.worker = getattr(importlib.import_module(module), name)(num_devices, on_cores)
        return self.worker.devices

    def exchange(self, orders: Any) -> Any:
        """Pass orders to the worker and return its report."""
        return self.worker.exchange(orders)
