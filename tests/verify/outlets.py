"""Scorers that an answer has taken over: they write wherever they can, and look at their environment."""

from __future__ import annotations

import os
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


def seen_variables(answer: str, _reference: str) -> float:
    """1 if the variable with this name is in the environment, else 0."""
    return float(answer in os.environ)
