"""The verdict on one response: a label, or the cause of a failure."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.errors import InvariantError

TIMEOUT = "verifier_timeout"  # the answer reached its deadline or its CPU time limit
CRASH = "verifier_crash"  # the worker process died
MEMORY = "verifier_memory"  # the answer needed more than the worker's memory limit
INVALID = "verifier_invalid"  # the reference is empty, or the score is no number in [0, 1]
CAUSES = (TIMEOUT, CRASH, MEMORY, INVALID)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A label or a cause, and not both.

    A failure has no label. If it counted as "wrong", it would train the policy on the verifier's defects.

    Attributes:
        label: label in [0, 1], None for a failure.
        cause: one of CAUSES for a failure, else None.
    """

    label: float | None
    cause: str | None = None

    def __post_init__(self) -> None:
        if (self.label is None) == (self.cause is None):
            raise InvariantError(f"a verdict has a label or a cause: label={self.label!r}, cause={self.cause!r}")
        if self.cause is not None and self.cause not in CAUSES:
            raise InvariantError(f"cause {self.cause!r} is not one of {', '.join(CAUSES)}")
        if self.label is not None and not 0.0 <= self.label <= 1.0:
            raise InvariantError(f"label {self.label!r} is outside [0, 1]")
