"""Scorers that an answer has taken over: they write wherever they can, and look at their environment."""

from __future__ import annotations

import os
import struct
import sys
import time
from contextlib import suppress
from multiprocessing import resource_tracker


def write_everywhere(_answer: str, reference: str) -> float:
    """Write over the start of the output, and tell the resource tracker to delete a file in /dev/shm."""
    for descriptor in (1, 2):
        with suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"\x1b]0;owned")
    os.write(resource_tracker._resource_tracker._fd, f"REGISTER:/{reference}:shared_memory\n".encode())
    return 1.0


def _channel() -> int:
    """The descriptor on which this worker sends its judgements."""
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return int(frame.f_locals["channel"].writer.fileno())


def spoiled_messages(answer: str, _reference: str) -> float:
    """Score 1. The answers `half`, `endless` and `nonsense` first write that to the pipe that all workers share."""
    if answer == "half":
        os.write(_channel(), struct.pack("!i", 100) + b"x" * 10)
        time.sleep(10_000)
    if answer == "endless":
        os.write(_channel(), struct.pack("!iQ", -1, 1 << 40))
        while True:
            os.write(_channel(), b"x" * 4096)
    if answer == "nonsense":
        os.write(_channel(), struct.pack("!i", 100) + b"x" * 100)
    return 1.0


def seen_variables(answer: str, _reference: str) -> float:
    """1 if the variable with this name is in the environment, else 0."""
    return float(answer in os.environ)
