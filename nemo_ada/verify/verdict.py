"""What the verifier says about one response: a label, or the cause why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.errors import InvariantError

TIMEOUT = "verifier_timeout"  # the answer used up its deadline (or its processor time)
CRASH = "verifier_crash"  # the process that judged it died
MEMORY = "verifier_memory"  # the answer needed more than the worker's memory limit
INVALID = "verifier_invalid"  # no judgement: the reference cannot be read, or the score is no number in [0, 1]
CAUSES = (TIMEOUT, CRASH, MEMORY, INVALID)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Either a label in [0, 1] or a cause out of CAUSES, never both and never neither.

    A failure has no label, because a failure counted as "wrong" teaches the policy from the verifier's defects.
    """

    label: float | None
    cause: str | None = None

    def __post_init__(self) -> None:
        if (self.label is None) == (self.cause is None):
            raise InvariantError(f"a verdict has a label or a cause: label={self.label!r}, cause={self.cause!r}")
        if self.cause is not None and self.cause not in CAUSES:
            raise InvariantError(f"cause {self.cause!r} is none of {', '.join(CAUSES)}")
        if self.label is not None and not 0.0 <= self.label <= 1.0:
            raise InvariantError(f"label {self.label!r} is outside [0, 1]")
