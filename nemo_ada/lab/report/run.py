"""Read a run directory for the report: records, configuration, provenance and plan.

Everything in the folder may be damaged or hostile. The notes of a run name each line that cannot be used. A run without
a usable step is an error.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from nemo_ada.core.metrics import LISTS as METRIC_LISTS
from nemo_ada.core.metrics import PREFIX, RATE_BINS, TENTHS
from nemo_ada.errors import UserError
from nemo_ada.run.files import json_of, read_bounded
from nemo_ada.run.json_lines import records
from nemo_ada.run.redaction import HIDDEN, hide, is_secret_name
from nemo_ada.run.yaml_file import read_yaml

MAX_CONFIG_KEYS = 3000
MAX_CONFIG_DEPTH = 20
MAX_TEXT = 4000
MAX_BYTES = 5_000_000  # of a JSON file beside the records
MAX_RECORDS = 2 << 30  # bytes of a run's records
PLANNED_AS = {"update": "training"}  # phases that published step times name differently
SHOWN = 5  # lines that a note names
MAX_VALUE = 1e30  # a larger value is damage, and sums of such values would overflow
MIN_VALUE = 1e-30  # below it a value is 0: a fifth of an axis is not
MAX_STEP = 10**9
MAX_SCORES = 6  # pass@k figures; an evaluation records one or two
PASS_AT_K = re.compile(r"val/pass@[1-9][0-9]{0,4}")
LISTS = {  # metrics with several values: how many
    f"{PREFIX}{name}": TENTHS if name.startswith("predicted_") else len(RATE_BINS) for name in METRIC_LISTS
}
SAMPLES = "samples"  # texts of an evaluation
SUM = "sum/"  # before the name of a metric: its sum over the steps so far
ALWAYS = ("ada/", "time/", "total/", "val/")  # prefixes of metrics that every record has when one has them
SOMETIMES = "ada/failed/"
THEIRS = {"train/approx_entropy": "train/entropy"}
"""NeMo-RL's name of the policy's entropy."""
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
_shorten = Repr()
_shorten.maxlevel, _shorten.maxlist, _shorten.maxtuple, _shorten.maxdict = 4, 24, 24, 24
_shorten.maxstring = _shorten.maxother = 300


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
        folder: The run directory.
        config: The configuration as texts, under dotted keys.
        environment: The content of environment.json.
        status: The content of status.json.
        plan: The content of plan.json.
        notes: What was wrong with the files.
    """

    name: str
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    folder: Path = Path()
    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, name: str | None = None) -> Run:
        """Read the run in `folder`. Raises UserError where it holds no step."""
        path = folder / "metrics.jsonl"
        if not path.is_file():
            raise UserError(_no_metrics(folder))
        notes: list[str] = []
        status = _read_mapping(folder / "status.json", notes)
        writing = _state(status) == "running"
        steps = read_records(path, notes, writing=writing)
        if not steps:
            raise UserError(f"{path} holds no usable step ({'; '.join(notes) or 'it is empty'})")
        config = _read_mapping(folder / "config.yaml", notes, required=True)
        return cls(
            name=name or folder.resolve().name,
            steps=steps,
            evaluations=read_records(folder / "evaluations.jsonl", notes, writing=writing),
            folder=folder,
            config=dict(_leaves(config, notes)),
            environment=_read_mapping(folder / "environment.json", notes, required=True),
            status=status,
            plan=_read_mapping(folder / "plan.json", notes),
            notes=tuple(notes),
        )

    def column(self, key: str) -> np.ndarray:
        """Return a metric over the steps [N], nan where it is missing. `sum/METRIC` is its sum so far."""
        if key.startswith(SUM):
            step_N, value_N = self.column("step"), self.column(key.removeprefix(SUM))
            return np.cumsum(value_N) if len(step_N) and step_N[0] == 1 else np.full(len(step_N), np.nan)
        return np.array([number(record.get(key)) for record in self.steps], np.float64)

    def counts(self, key: str, width: int) -> np.ndarray:
        """Return a metric of `width` counts over the steps [N, width], zeros where it is missing or damaged."""
        rows = [counts(record.get(key), width) or [0.0] * width for record in self.steps]
        return np.array(rows, np.float64).reshape(len(rows), width)

    def evaluation_column(self, key: str) -> np.ndarray:
        """Return a metric over the evaluations [N], nan where it is missing. Sums are those after its step."""
        if key.startswith(SUM):
            step_N, sum_N = self.column("step"), self.column(key)
            sum_of = {0.0: 0.0} if np.isfinite(sum_N).any() else {}  # before the first step
            sum_of |= dict(zip(step_N.tolist(), sum_N.tolist(), strict=True))
            return np.array([sum_of.get(step, np.nan) for step in self.evaluation_column("step").tolist()], np.float64)
        return np.array([number(record.get(key)) for record in self.evaluations], np.float64)

    def curve(self, axis: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of `axis` and of `key` over the evaluations that have both."""
        x, y = self.evaluation_column(axis), self.evaluation_column(key)
        both = np.isfinite(x) & np.isfinite(y)
        return x[both], y[both]

    def area(self, axis: str, limit: float, key: str = "val/accuracy") -> float:
        """Return the mean of a score over [0, limit] of the axis. The score is linear between evaluations."""
        x, y = self.curve(axis, key)
        return float(np.interp(np.linspace(0.0, limit, 200), x, y).mean())

    def samples(self, evaluation: int) -> list[Mapping[str, Any]]:
        """Return the answers of an evaluation. Damaged ones are left out."""
        samples = self.evaluations[evaluation].get(SAMPLES)
        return [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []

    def forecast(self, phase: str) -> Mapping[str, Any]:
        """Return the forecast of a phase, of `step` or of `evaluation`: p50, p95, worst (seconds) and origin."""
        forecast = as_mapping(self.plan.get("forecast"))
        phases = as_mapping(forecast.get("phases"))
        names = (name for name in (phase, PLANNED_AS.get(phase, phase)) if name in phases)
        return as_mapping(phases.get(next(names, phase), forecast.get(phase)))

    def planned_seconds(self, phase: str) -> tuple[float, float]:
        """Return p50 and p95 of the forecast of a phase in seconds, nan where nothing was predicted."""
        entry = self.forecast(phase)
        p50, p95 = number(entry.get("p50")), number(entry.get("p95"))
        return (p50, p95) if p50 > 0 else (float("nan"), float("nan"))

    @property
    def state(self) -> str:
        """The state as the run wrote it: running, stopped, done or failed."""
        return _state(self.status)


def score_keys(runs: Sequence[Run]) -> list[str]:
    """Return the evaluation scores that any run has: accuracy, then pass@k.

    Nothing else in a record can name a figure or a file.
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
    for folder, name in zip(folders, names_of(folders), strict=True):
        if not folder.is_dir():
            raise UserError(_no_metrics(folder))
        try:
            runs.append(Run.read(folder, name))
        except UserError as error:
            errors.append(error)
    if not runs:
        raise UserError("; ".join(map(str, errors)))
    return runs, [f"left out: {error}" for error in errors]


def names_of(folders: Sequence[Path]) -> list[str]:
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


def number(value: Any) -> float:
    """Return a finite float, or nan for everything else that a damaged record may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return float("nan")
    if abs(value) < MIN_VALUE:
        return 0.0
    return float(value) if abs(value) <= MAX_VALUE else float("nan")


def counts(value: Any, width: int) -> list[float] | None:
    """Return a list of `width` counts, or None for everything else."""
    if not isinstance(value, list) or len(value) != width:
        return None
    numbers = [number(count) for count in value]
    return numbers if all(count >= 0 for count in numbers) else None


def read_records(path: Path, notes: list[str], *, writing: bool = False) -> list[dict[str, Any]]:
    """Read the records of a run, sorted by step, one per step.

    Args:
        path: The file.
        notes: Gets a sentence for each kind of damage, with the numbers of the lines.
        writing: Whether the run goes on. A last line without its end is then not damage.
    """
    if not path.exists():
        notes.append(f"{path.name} is missing")
        return []
    try:
        content = read_bounded(path, MAX_RECORDS)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    cut_off = content.count(b"\n") + 1  # the number of the line without its end
    by_step: dict[int, tuple[int, dict[str, Any]]] = {}
    damaged: list[str] = []
    repeated: list[str] = []

    def note_damage(count: int, reason: str) -> None:
        if count < cut_off:
            damaged.append(f"line {count}: {reason}")
        elif not writing:
            notes.append(f"{path.name}: the last line ({count}) is cut off and left out ({reason})")

    for count, record in records(content, on_damage=note_damage):
        try:
            step = _step(record)
        except ValueError as problem:
            note_damage(count, str(problem))
            continue
        if step in by_step:
            repeated.append(f"line {count}: step {step}")
        by_step[step] = count, {THEIRS.get(key, key): value for key, value in record.items()}
    ordered = [by_step[step] for step in sorted(by_step)]
    for noun, verdict, where in (
        ("damaged line", "left out", damaged),
        ("step", "recorded twice, the later record is used", repeated),
        ("value", "not a finite number, shown as a gap", _no_numbers(ordered)),
        ("line", "without metrics that others have", _lacking(ordered)),
    ):
        if where:
            first = "; ".join(where[:SHOWN]) + ("; ..." if len(where) > SHOWN else "")
            notes.append(f"{path.name}: {len(where)} {noun}{'s' if len(where) > 1 else ''} {verdict} ({first})")
    return [record for _, record in ordered]


def _step(record: Mapping[str, Any]) -> int:
    """Return the step of a record. Raises ValueError with the reason where it has none."""
    step = number(record.get("step"))
    if not (step.is_integer() and 0 <= step <= MAX_STEP):
        raise ValueError(f"its step is {str(record['step'])[:40]!r}" if "step" in record else "it has no step")
    return int(step)


def _no_numbers(numbered: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    return [
        f"line {line}: {key[:80]}"
        for line, record in numbered
        for key, value in record.items()
        if key != SAMPLES and (counts(value, LISTS[key]) is None if key in LISTS else math.isnan(number(value)))
    ]


def _lacking(numbered: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    every = {
        key for _, record in numbered for key in record if key.startswith(ALWAYS) and not key.startswith(SOMETIMES)
    }
    lacking = []
    for line, record in numbered:
        missing = sorted(every.difference(record))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            lacking.append(f"line {line}: {missing[0][:80]}{more}")
    return lacking


def _state(status: Mapping[str, Any]) -> str:
    state = status.get("state")
    return state if isinstance(state, str) else "unknown"


def _no_metrics(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder; name a run directory (run_dir of a training)"
    inside = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl"))
    hint = f"name the runs in it, such as {folder / inside[0]}" if inside else "has the run made a step?"
    return f"{folder / 'metrics.jsonl'} does not exist; {hint}"


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the mapping, or an empty one for everything else that a damaged file may hold."""
    return value if isinstance(value, Mapping) else {}


def _read_mapping(path: Path, notes: list[str], *, required: bool = False) -> Mapping[str, Any]:
    """Read a YAML or JSON file that should hold a mapping. Return an empty one, with a note, where it does not."""
    if not path.exists():
        if required:
            notes.append(f"{path.name} is missing")
        return {}
    try:
        value = read_yaml(path, written=True) if path.suffix == ".yaml" else json_of(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read: {clean(error)[:200] or type(error).__name__}")
        return {}
    if not isinstance(value, Mapping):
        notes.append(f"{path.name} holds no mapping")
        return {}
    return value


def _leaves(config: Mapping[str, Any], notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values as text. Their number is bounded, because a YAML file can refer to itself."""
    pending: list[tuple[str, Any, int]] = [(str(key), value, 1) for key, value in reversed(list(config.items()))]
    shown = 0
    while pending:
        name, value, depth = pending.pop()
        if isinstance(value, Mapping) and value and depth < MAX_CONFIG_DEPTH:
            pending.extend((f"{name}.{key}", inner, depth + 1) for key, inner in reversed(list(value.items())))
            continue
        if shown == MAX_CONFIG_KEYS:
            notes.append(f"config.yaml: only the first {MAX_CONFIG_KEYS} keys are shown")
            return
        shown += 1
        secret = is_secret_name(name) and value not in (None, "")
        text = value if isinstance(value, str) else "null" if value is None else _shorten.repr(value)
        yield clean(name), HIDDEN if secret else clean(text)[:400]
