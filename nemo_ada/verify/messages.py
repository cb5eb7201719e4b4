"""What the trainer and the verifier's server process say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.verify.limits import VerifierLimits


@dataclass(frozen=True, slots=True)
class Hello:
    """First message: what the pool is."""

    scorer: str
    limits: VerifierLimits


@dataclass(frozen=True, slots=True)
class Work:
    """One answer to judge within `deadline_s` seconds of its start."""

    ticket: int
    answer: str
    reference: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the Work with this ticket."""

    ticket: int
    label: float | None
    cause: str | None
    detail: str
