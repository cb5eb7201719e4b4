"""JSON lines of a run directory, whatever happened to the file: usable records, and what was wrong, by line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_ada.core.metrics import LISTS as METRIC_LISTS
from nemo_ada.core.metrics import PREFIX, RATE_BINS
from nemo_ada.errors import UserError
from nemo_ada.tasks.lines import parse_line

SHOWN = 5
LARGEST = 1e30  # beyond it a value is damage: sums and axes of what is drawn stay finite
SMALLEST = 1e-30  # below it a value is 0: a fifth of an axis is not
LATEST_STEP = 10**9
LISTS = {f"{PREFIX}{name}": len(RATE_BINS) for name in METRIC_LISTS}  # metrics with several values: how many
ALWAYS = ("ada/", "time/", "total/", "val/")  # prefixes of metrics that every record has when one has them
SOMETIMES = "ada/failed/"


def number(value: Any) -> float:
    """A finite float, or nan for everything else that a damaged record may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return float("nan")
    if abs(value) < SMALLEST:
        return 0.0
    return float(value) if abs(value) <= LARGEST else float("nan")


def counts(value: Any, width: int) -> list[float] | None:
    """A list of `width` counts, or None for everything else."""
    if not isinstance(value, list) or len(value) != width:
        return None
    found = [number(count) for count in value]
    return found if all(count >= 0 for count in found) else None


def read_records(path: Path, notes: list[str], *, writing: bool = False) -> list[dict[str, Any]]:
    """Records sorted by step, one per step. Everything else becomes a note with the numbers of its lines.

    writing: the run says that it goes on, so a last line without its end is no damage.
    """
    if not path.exists():
        notes.append(f"{path.name} is missing")
        return []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    bad: list[str] = []
    repeated: list[str] = []
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_line(line)
            step = _step(record)
        except ValueError as problem:
            if count < len(lines):
                bad.append(f"line {count}: {problem}")
            elif not writing:
                notes.append(f"{path.name}: the last line ({count}) is cut off and left out ({problem})")
            continue
        if step in found:
            repeated.append(f"line {count}: step {step}")
        found[step] = count, record
    ordered = [found[step] for step in sorted(found)]
    for noun, rest, where in (
        ("damaged line", "left out", bad),
        ("step", "recorded twice, the later record is used", repeated),
        ("value", "not a finite number, shown as a gap", _no_numbers(ordered)),
        ("line", "without metrics that others have", _lacking(ordered)),
    ):
        if where:
            notes.append(f"{path.name}: {len(where)} {noun}{'s' if len(where) > 1 else ''} {rest} ({some(where)})")
    return [record for _, record in ordered]


def some(where: Sequence[str]) -> str:
    """The first few of them."""
    return "; ".join(where[:SHOWN]) + ("; ..." if len(where) > SHOWN else "")


def _step(record: dict[str, Any]) -> int:
    """A ValueError says why it has none."""
    step = number(record.get("step"))
    if not (step.is_integer() and 0 <= step <= LATEST_STEP):
        raise ValueError(f"its step is {str(record['step'])[:40]!r}" if "step" in record else "it has no step")
    return int(step)


def _no_numbers(records: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    return [
        f"line {line}: {key[:80]}"
        for line, record in records
        for key, value in record.items()
        if (counts(value, LISTS[key]) is None if key in LISTS else math.isnan(number(value)))
    ]


def _lacking(records: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    every = {key for _, record in records for key in record if key.startswith(ALWAYS) and not key.startswith(SOMETIMES)}
    found = []
    for line, record in records:
        missing = sorted(every.difference(record))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            found.append(f"line {line}: {missing[0][:80]}{more}")
    return found
