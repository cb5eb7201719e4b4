"""Read a run directory for the report: records, configuration and state.

Everything in the folder may be damaged or hostile, so what cannot be used is left out, and the notes of the run say so.
A run without a usable step is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.run import json_lines
from nemo_ada.run.files import read_bounded
from nemo_ada.run.folder import flatten
from nemo_ada.run.redaction import hide, hide_in
from nemo_ada.run.yaml_file import read_mapping

MAX_TEXT = 4000
MAX_RECORDS = 2 << 30  # bytes of a run's records
MAX_VALUE = 1e30  # a larger value is damage, and sums of such values would overflow
MIN_VALUE = 1e-30  # below it a value is 0: a fifth of an axis is not
MAX_STEP = 10**9
MAX_SCORES = 6  # pass@k figures; an evaluation records one or two
PASS_AT_K = re.compile(r"val/pass@[1-9][0-9]{0,4}")
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")


def clean(value: object) -> str:
    """Return text that can be shown: valid UTF-8 without control and direction characters, secrets hidden."""
    return _clean(str(value)[: 2 * MAX_TEXT])


@lru_cache(maxsize=4096)  # names come again in every table
def _clean(text: str) -> str:
    text = hide(text)[:MAX_TEXT]  # a secret is hidden before it could be cut in two
    return UNPRINTABLE.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one run directory.

    Attributes:
        name: The name of the run in the report.
        steps: One record per step, sorted by step.
        evaluations: One record per evaluation, sorted by step.
        config: The configuration as texts, under dotted keys.
        status: The content of status.json.
        notes: What was wrong with the files.
    """

    name: str
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    config: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, name: str | None = None) -> Run:
        """Read the run in `folder`. Raises UserError where it holds no step."""
        path = folder / "metrics.jsonl"
        if not path.is_file():
            raise UserError(_explain_no_metrics(folder))
        notes: list[str] = []

        def note(why: str) -> None:
            notes.append(clean(why)[:220])

        status = read_mapping(folder / "status.json", note)
        writing = status.get("state") == "running"
        steps = read_records(path, notes, writing=writing)
        if not steps:
            raise UserError(f"{path} holds no usable step ({'; '.join(notes) or 'it is empty'})")
        if not (folder / "config.yaml").exists():
            notes.append("config.yaml is missing")
        config = flatten(hide_in(read_mapping(folder / "config.yaml", note)))
        return cls(
            name=name or folder.resolve().name,
            steps=steps,
            evaluations=read_records(folder / "evaluations.jsonl", notes, writing=writing),
            config={clean(key): "null" if value is None else clean(value)[:400] for key, value in config.items()},
            status=status,
            notes=tuple(notes),
        )

    def column(self, key: str) -> np.ndarray:
        """Return a metric over the steps [N], nan where it is missing."""
        return np.array([read_number(record.get(key)) for record in self.steps], np.float64)

    def curve(self, axis: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of `axis` and of `key` over the evaluations that have both."""
        points = [(read_number(record.get(axis)), read_number(record.get(key))) for record in self.evaluations]
        x, y = np.array(points, np.float64).reshape(-1, 2).T
        both = np.isfinite(x) & np.isfinite(y)
        return x[both], y[both]

    def area(self, axis: str, limit: float, key: str = "val/accuracy") -> float:
        """Return the mean of a score over [0, limit] of the axis. The score is linear between evaluations."""
        x, y = self.curve(axis, key)
        return float(np.interp(np.linspace(0.0, limit, 200), x, y).mean())

    @property
    def state(self) -> str:
        """The state as the run wrote it: running, stopped, done or failed."""
        state = self.status.get("state")
        return state if isinstance(state, str) else "unknown"


def find_score_keys(runs: Sequence[Run]) -> list[str]:
    """Return the evaluation scores that any run has: accuracy, then pass@k.

    Nothing else in a record can name a row.
    """
    names = {key for run in runs for record in run.evaluations for key in record}
    passes = sorted((key for key in names if PASS_AT_K.fullmatch(key)), key=lambda key: int(key.partition("@")[2]))
    return (["val/accuracy"] if "val/accuracy" in names else []) + passes[:MAX_SCORES]


def read_usable(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read the runs that hold a step.

    Returns:
        The runs, and sentences that say why the others were left out.

    Raises:
        UserError: A name is not that of a folder, or none of the runs holds a step.
    """
    runs, errors = [], []
    for folder, name in zip(folders, name_runs(folders), strict=True):
        if not folder.is_dir():
            raise UserError(_explain_no_metrics(folder))
        try:
            runs.append(Run.read(folder, name))
        except UserError as error:
            errors.append(error)
    if not runs:
        raise UserError("; ".join(map(str, errors)))
    return runs, [f"left out: {error}" for error in errors]


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ. Raises UserError where a folder is named twice."""
    resolved = [Path(os.path.realpath(folder)) for folder in folders]  # of a loop of links, too
    for folder in resolved:
        if resolved.count(folder) > 1:
            raise UserError(f"{folder} is named twice; name each run once")
    depth = 1
    names = [folder.name for folder in resolved]
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(folder.parts[-depth:]) for folder in resolved]
    return names


def read_number(value: Any) -> float:
    """Return a finite float, or nan for everything else that a damaged record may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return float("nan")
    if abs(value) < MIN_VALUE:
        return 0.0
    return float(value) if abs(value) <= MAX_VALUE else float("nan")


def read_records(path: Path, notes: list[str], *, writing: bool = False) -> list[dict[str, Any]]:
    """Read the records of a run, sorted by step. The later record of a step counts.

    Args:
        path: The file.
        notes: Gets a sentence about damaged lines.
        writing: Whether the run goes on. A last line without its end is then not damage.
    """
    if not path.exists():
        notes.append(f"{path.name} is missing")
        return []
    try:
        content = read_bounded(path, MAX_RECORDS)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    damage: dict[int, str] = {}
    by_step: dict[float, dict[str, Any]] = {}
    for line, record in json_lines.read_records(content, on_damage=damage.__setitem__):
        step = read_number(record.get("step"))
        if step.is_integer() and 0 <= step <= MAX_STEP:
            by_step[step] = record
        else:
            damage[line] = f"its step is {str(record['step'])[:40]!r}" if "step" in record else "it has no step"
    if writing:
        damage.pop(content.count(b"\n") + 1, None)
    if damage:
        line, reason = min(damage.items())
        notes.append(f"{path.name}: damaged lines are left out: {len(damage)}, the first is line {line} ({reason})")
    return [by_step[step] for step in sorted(by_step)]


def _explain_no_metrics(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder; name a run directory (run_dir of a training)"
    inside = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl"))
    hint = f"name the runs in it, such as {folder / inside[0]}" if inside else "has the run made a step?"
    return f"{folder / 'metrics.jsonl'} does not exist; {hint}"
