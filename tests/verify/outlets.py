"""Scorers that an answer has taken over: they write wherever they can, and look at their environment."""

from __future__ import annotations

import os
import time
from contextlib import suppress

JUDGEMENT = b'[1.0, null, ""]\n'


def write_everywhere(_answer: str, _reference: str) -> float:
    """Write over the start of the output, and to all that is open beside the worker's own connection."""
    for descriptor in range(1, 64):
        with suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_SET)
        with suppress(OSError):
            os.write(descriptor, b"\x1b]0;owned")
    return 1.0


def spoiled_messages(answer: str, _reference: str) -> float:
    """Score 1. The names of MESSAGES first write that to the worker's connection, and then sleep."""
    if answer in MESSAGES:
        os.write(0, MESSAGES[answer])
        while answer == "endless":
            os.write(0, b"x" * 4096)
        if answer == "closed":
            os.close(0)
        time.sleep(10_000)
    return 1.0


MESSAGES = {
    "half": b"[1.0, nu",
    "endless": b"[",
    "nonsense": b"x" * 100 + b"\n",
    "nested": b"[" * 5000 + b"\n",
    "too much": b'[2.0, null, ""]\n',
    "no cause": b'[null, "tired", ""]\n',
    "closed": b"",
}


def judged_and_deaf(answer: str, _reference: str) -> float:
    """Send a judgement for `deaf`, and then read nothing any more."""
    if answer == "deaf":
        os.write(0, JUDGEMENT)
        time.sleep(10_000)
    return 1.0


def judged_twice(answer: str, _reference: str) -> float:
    """Score 0. `twice` sends a second judgement, of an answer that it was not asked about."""
    if answer == "twice":
        os.write(0, JUDGEMENT + JUDGEMENT)
    return 0.0


def seen_variables(answer: str, _reference: str) -> float:
    """1 if the variable with this name is in the environment, else 0."""
    return float(answer in os.environ)
