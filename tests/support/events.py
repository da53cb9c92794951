"""Read the event files of TensorBoard."""

import struct
from pathlib import Path
from typing import Any

import pytest


def read_events(path: Path) -> list[Any]:
    """Parse the events of a file, frame by frame, and check their checksums."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    checksum = pytest.importorskip("tensorboardX.record_writer").masked_crc32c
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        head, body, tail = data[8:12], data[12 : 12 + length], data[12 + length : 16 + length]
        assert struct.unpack("<II", head + tail) == (checksum(data[:8]), checksum(body))
        events.append(event_pb2.Event.FromString(body))
        data = data[16 + length :]
    return events
