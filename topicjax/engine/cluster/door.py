"""What a worker answers first.  It is sent by value: a worker with another topicjax, or none, can say so."""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import platform
import zlib
from typing import Any

PACKAGES = ("topicjax", "jax", "jaxlib", "numpy")
CODE = ("*.py", "engine/**/*.py", "experiments/**/*.py")  # what numbers depend on, below topicjax/


class Door:
    """The actor of a worker: says what is installed, then becomes the worker that a driver asks for."""

    def versions(self) -> dict[str, str]:
        """Return what must be the same on the driver and on its workers."""
        found = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name in PACKAGES:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "none"
        return found | {"the code of topicjax": self.code()}

    def code(self) -> str:
        """Return a checksum of the modules that numbers depend on."""
        spec = importlib.util.find_spec("topicjax")
        if spec is None or spec.origin is None:
            return "none"
        folder, crc = pathlib.Path(spec.origin).parent, 0
        for path in sorted({path for pattern in CODE for path in folder.glob(pattern)}):
            crc = zlib.crc32(path.relative_to(folder).as_posix().encode() + path.read_bytes(), crc)
        return f"{crc:08x}"

    def open(self, module: str, name: str, num_devices: int, on_cores: bool) -> list[tuple[str, str, int]]:
        """Become a worker with so many devices; return platform, kind and memory of each."""
        self.worker = getattr(importlib.import_module(module), name)(num_devices, on_cores)
        return self.worker.devices

    def exchange(self, orders: Any) -> Any:
        """Give orders to the worker, and return what has happened there."""
        return self.worker.exchange(orders)
