"""The verdict on one response: a label, or the cause of a failure."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

from nemo_ada.errors import InvariantError

TIMEOUT = "verifier_timeout"  # the answer reached its deadline or its CPU time limit
CRASH = "verifier_crash"  # the worker process died
MEMORY = "verifier_memory"  # the answer needed more than the worker's memory limit
INVALID = "verifier_invalid"  # the reference is empty, or the score is no number in [0, 1]
REWARD = "reward_error"  # the user's function raised an error or gave no number; file and line follow
CAUSES = (TIMEOUT, CRASH, MEMORY, INVALID, REWARD)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A label or a cause, and not both.

    A failure has no label. If it counted as "wrong", it would train the policy on the verifier's defects.

    Attributes:
        label: label in [0, 1], None for a failure.
        cause: one of CAUSES for a failure, with details behind a blank, else None.
        detail: more about the failure, for a person: an error's message.
    """

    label: float | None
    cause: str | None = None
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (self.label is None) == (self.cause is None):
            raise InvariantError(f"a verdict has a label or a cause: label={self.label!r}, cause={self.cause!r}")
        if self.cause is not None and self.cause.partition(" ")[0] not in CAUSES:
            raise InvariantError(f"cause {self.cause!r} is not one of {', '.join(CAUSES)}")
        if self.label is not None and not 0.0 <= self.label <= 1.0:
            raise InvariantError(f"label {self.label!r} is outside [0, 1]")


def describe_bad_score(label: object) -> str | None:
    """Return in words what a function gave in place of a number in [0, 1]. None for such a number."""
    if inspect.isawaitable(label):
        if inspect.iscoroutine(label):
            label.close()
        return "a coroutine (write def in place of async def)"
    kind = type(label).__name__
    try:
        value = float(label)  # type: ignore[arg-type]
        scalar = not isinstance(label, str) and getattr(label, "ndim", 0) == 0
    except (TypeError, ValueError):
        return f"a {kind}" if label is not None else "None"
    if not scalar:
        return f"a {kind}"
    return None if 0.0 <= value <= 1.0 else f"a number outside [0, 1]: {value:g}"


def locate_function(function: object) -> str:
    """Return file and line of a user's function."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(function).__name__
