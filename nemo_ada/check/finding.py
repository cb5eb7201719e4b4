"""What a check says: one line with a level, the dotted key that it is about, and what would work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "warning", "error"]
EXIT_CODES = {"ok": 0, "skipped": 0, "warning": 3, "error": 2}
"""Python ends a crashed program with 1. So 1 is no answer of a check, and slurm/chain.py refuses it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. key: dotted key of the YAML, or the name of what was looked at."""

    level: Level
    key: str
    message: str


Findings = Iterator[Finding]
Tell = Callable[[str, str], Finding]


def exit_code(findings: Iterable[Finding]) -> int:
    """The exit code of `nemo-ada check`: 0 no warning and no error, 3 warnings only, 2 errors."""
    levels = {finding.level for finding in findings}
    return next((EXIT_CODES[level] for level in ("error", "warning") if level in levels), 0)


def error(key: str, message: str) -> Finding:
    """The run would fail, or train on something wrong."""
    return Finding("error", key, message)


def warning(key: str, message: str) -> Finding:
    """The run may work; the user should know."""
    return Finding("warning", key, message)


def ok(key: str, message: str) -> Finding:
    """Looked at and fine."""
    return Finding("ok", key, message)


def skipped(key: str, message: str) -> Finding:
    """Could not be looked at here."""
    return Finding("skipped", key, message)


def listed(numbers: Sequence[int]) -> str:
    """ "1, 2 or 4"."""
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}" if texts else "none"


def divisors(*numbers: int) -> list[int]:
    """Common divisors, ascending."""
    return [d for d in range(1, min(numbers) + 1) if all(number % d == 0 for number in numbers)]
