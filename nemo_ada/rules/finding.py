"""What a rule says: one line with a level, the dotted key that it is about, and what would work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "warning", "error"]
EXIT_CODES = {"ok": 0, "skipped": 0, "warning": 3, "error": 2}
"""Python ends a crashed program with 1. So no check ends with 1, and slurm/submission.py submits nothing after it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        level: how bad it is.
        key: dotted key of the YAML, or the name of what was checked.
        message: what is wrong and what would work.
    """

    level: Level
    key: str
    message: str


Findings = Iterator[Finding]


def choose_exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of `nemo-ada check`: 0 without warning and error, 3 for warnings only, 2 for errors."""
    levels = {finding.level for finding in findings}
    return next((EXIT_CODES[level] for level in ("error", "warning") if level in levels), 0)


def error(key: str, message: str) -> Finding:
    """The run would fail, or train on something wrong."""
    return Finding("error", key, message)


def warning(key: str, message: str) -> Finding:
    """The run may work, but the user should know this."""
    return Finding("warning", key, message)


def ok(key: str, message: str) -> Finding:
    """It was checked, and nothing is wrong."""
    return Finding("ok", key, message)


def skipped(key: str, message: str) -> Finding:
    """It could not be checked here."""
    return Finding("skipped", key, message)
