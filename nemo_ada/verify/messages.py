"""What the trainer, the verifier's server process and its workers send each other, and how it is read.

Python's own reader of pickles runs whatever the other side names. `read` makes objects of the listed classes only. So a
worker that an answer has taken over cannot run code in its server, nor a server in the trainer.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, EnumType
from typing import Any

from nemo_ada.errors import UserError

_MESSAGES = ("Done", "Layers", "VerifierLimits", "Work")  # of this module
_POOL = {  # of pebble, from a worker to the server
    ("pebble.common.types", "Result"),
    ("pebble.common.types", "ResultStatus"),
    ("pebble.pool.process", "Acknowledgement"),
    ("pebble.pool.process", "TaskResult"),
}

MIN_MEMORY_BYTES = 256 << 20  # Python with sympy loaded maps about 150 MiB


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


@dataclass(frozen=True, slots=True)
class Work:
    """One answer to judge within `deadline_s` seconds of its start."""

    ticket: int
    answer: str
    reference: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of the Work with this ticket: a label or a cause, and a detail for the log."""

    ticket: int
    label: float | None
    cause: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Layers:
    """How workers are confined.

    Attributes:
        held: names of the layers that are active.
        missing: the other layers, each with the reason.
    """

    held: tuple[str, ...]
    missing: Mapping[str, str]


def _member(kind: object, name: str) -> Enum:
    """The member of an enumeration. Raises KeyError or TypeError for anything else."""
    if not isinstance(kind, EnumType):
        raise TypeError(f"{kind!r} is no enumeration")
    return kind[name]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class of an object in a message. Raises OSError for one that no message has."""
        if (module, name) == ("builtins", "getattr"):  # Python 3.11.0 to 3.11.3 (Debian 12) write members this way
            return _member
        if (module == __name__ and name in _MESSAGES) or (module, name) in _POOL:
            return super().find_class(module, name)
        raise OSError(f"a message of the verifier names {module}.{name}, which no message has")


def read(message: bytes | memoryview) -> Any:
    """The object in a message. Raises OSError where it is none: pebble then replaces its workers."""
    try:
        return _Reader(io.BytesIO(message)).load()
    except OSError:
        raise
    except Exception as problem:  # noqa: BLE001 - bytes of unknown origin
        raise OSError(f"a message of the verifier cannot be read: {type(problem).__name__}") from None
