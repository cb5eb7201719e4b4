"""What the trainer, the verifier's server process and its workers send each other: JSON, one message per line.

Reading JSON makes numbers, texts, lists and dictionaries only. So a worker that an answer has taken over cannot run
code in its server.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_ada.errors import UserError

MIN_MEMORY_BYTES = 256 << 20  # Python with sympy loaded maps about 150 MiB
_AT_ONCE = 1 << 16  # bytes that are received in one piece


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """How many workers there are, and what one answer may cost.

    Attributes:
        deadline_s: wall seconds per answer, from the moment when a worker starts on it. Time in the queue does not
            count.
        workers: number of processes. None takes one per usable core.
        memory_bytes: address space of one worker (RLIMIT_AS).
        answers_per_worker: a worker is replaced after this many answers, because sympy's caches grow without limit.
    """

    deadline_s: float = 5.0
    workers: int | None = None
    memory_bytes: int = 1 << 30
    answers_per_worker: int = 2000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.deadline_s) and self.deadline_s > 0):
            raise UserError(f"verifier.deadline_s={self.deadline_s} must be a positive number of seconds; 5 is usual")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"verifier.workers={self.workers} must be 1 or more, or null for all cores")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise UserError(
                f"verifier.memory_bytes={self.memory_bytes} is too little for Python and sympy; "
                f"use {MIN_MEMORY_BYTES} or more"
            )
        if self.answers_per_worker < 1:
            raise UserError(f"verifier.answers_per_worker={self.answers_per_worker} must be 1 or more; 2000 is usual")

    @property
    def processes(self) -> int:
        """Number of workers."""
        return self.workers if self.workers is not None else len(os.sched_getaffinity(0))


class Work(NamedTuple):
    """One answer to judge within `deadline_s` seconds of its start."""

    ticket: int
    answer: str
    reference: Any
    deadline_s: float


class Done(NamedTuple):
    """The outcome of the Work with this ticket: a label or a cause, and a detail for the log."""

    ticket: int
    label: float | None
    cause: str | None
    detail: str


class Layers(NamedTuple):
    """How workers are confined.

    Attributes:
        held: names of the layers that are active.
        missing: the other layers, each with the reason.
    """

    held: tuple[str, ...]
    missing: Mapping[str, str]


class SpoiledError(Exception):
    """The other side sent what is no message."""


def line(message: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def read(text: bytes | bytearray) -> Any:
    """Return the message in a line. Raises SpoiledError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # numbers of many digits, nested lists
        raise SpoiledError(f"what it sent cannot be read: {type(problem).__name__}") from None


class Channel:
    """The server's end of a connection. Nothing here waits for the other side.

    Args:
        connection: a stream socket.
        longest: bytes of the longest line that the other side may send. None trusts it.
    """

    def __init__(self, connection: socket.socket, longest: int | None = None) -> None:
        connection.setblocking(False)
        self._connection, self._longest = connection, longest
        self._received = bytearray()
        self.unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    def send(self, message: object) -> None:
        """Send a message, or keep what the other side does not take yet for `flush`."""
        self.unsent += line(message)
        self.flush()

    def flush(self) -> None:
        """Send what is left. If the other side is gone, `receive` will say so."""
        with suppress(OSError):
            while self.unsent:
                del self.unsent[: self._connection.send(self.unsent)]

    def receive(self) -> list[Any]:
        """Return the messages that are there. Call it where the selector says that there is something.

        Raises:
            EOFError: the other side is gone.
            SpoiledError: it sent a line that is too long or no message.
        """
        try:
            part = os.read(self.fileno(), _AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            part = b""
        if not part:
            raise EOFError
        self._received += part
        *lines, self._received = self._received.split(b"\n") if b"\n" in part else (self._received,)
        if self._longest is not None and max(map(len, (*lines, self._received))) > self._longest:
            raise SpoiledError(f"what it sent is longer than {self._longest} bytes")
        return [read(text) for text in lines]

    def close(self) -> None:
        """Close the connection. The other side reads an end."""
        self._connection.close()
