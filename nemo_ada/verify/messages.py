"""What the trainer and the verifier's server process send each other."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from nemo_ada.errors import UserError

MIN_MEMORY_BYTES = 256 << 20  # Python with sympy loaded maps about 150 MiB


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """How many workers, and what one answer may cost.

    deadline_s: wall seconds per answer, from the moment a worker starts on it. Time in the queue does not count.
    workers: processes; None takes one per usable core.
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
    """The outcome of the Work with this ticket: a label, or a cause. detail: for the log."""

    ticket: int
    label: float | None
    cause: str | None
    detail: str
