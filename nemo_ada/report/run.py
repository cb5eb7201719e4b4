"""A run directory as the report reads it: records, configuration, provenance, and what was wrong with the files.

Everything in the folder may be damaged or hostile. Lines that cannot be used are counted with their numbers and shown;
a run without a single usable step is an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np
import yaml

from nemo_ada.errors import UserError
from nemo_ada.report.records import counts, number, read_records
from nemo_ada.run.redaction import HIDDEN, hide, is_secret_name

MAX_CONFIG_KEYS = 3000
MAX_CONFIG_DEPTH = 20
MAX_TEXT = 4000
MAX_BYTES = 5_000_000  # of a configuration, which takes PyYAML seconds per megabyte
# PyYAML's constructors and a resolver of timestamps raise bare ones of these for values like `!!bool x`
DAMAGE = (OSError, ValueError, RecursionError, ArithmeticError, LookupError, AttributeError, TypeError, yaml.YAMLError)
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_shorten = Repr()
_shorten.maxlevel, _shorten.maxlist, _shorten.maxtuple, _shorten.maxdict = 4, 24, 24, 24
_shorten.maxstring = _shorten.maxother = 300


def clean(value: object) -> str:
    """Text that can be shown: no control or direction characters, valid UTF-8, secrets hidden."""
    return _clean(str(value)[: 2 * MAX_TEXT])


@lru_cache(maxsize=4096)  # names come again with every point of a line
def _clean(text: str) -> str:
    text = hide(text)[:MAX_TEXT]  # a secret is hidden before it could be cut in two
    return UNPRINTABLE.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one run directory; steps and evaluations are sorted by step and have one record each."""

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
        """The run in `folder`; raises UserError when it holds no step."""
        path = folder / "metrics.jsonl"
        if not path.is_file():
            raise UserError(_no_metrics(folder))
        notes: list[str] = []
        status = _mapping(folder / "status.json", notes)
        writing = _state(status) == "running"
        steps = read_records(path, notes, writing=writing)
        if not steps:
            raise UserError(f"{path} holds no usable step ({'; '.join(notes) or 'it is empty'})")
        config = _mapping(folder / "config.yaml", notes, required=True)
        return cls(
            name=name or folder.resolve().name,
            steps=steps,
            evaluations=read_records(folder / "evaluations.jsonl", notes, writing=writing),
            folder=folder,
            config=dict(_leaves(config, notes)),
            environment=_mapping(folder / "environment.json", notes, required=True),
            status=status,
            plan=_mapping(folder / "plan.json", notes),
            notes=tuple(notes),
        )

    def column(self, key: str) -> np.ndarray:
        """A metric over the steps; nan where it is missing."""
        return np.array([number(record.get(key)) for record in self.steps], np.float64)

    def counts(self, key: str, width: int) -> np.ndarray:
        """A metric of `width` counts over the steps, [steps, width]; zeros where it is missing or damaged."""
        rows = [counts(record.get(key), width) or [0.0] * width for record in self.steps]
        return np.array(rows, np.float64).reshape(len(rows), width)

    def evaluation_column(self, key: str) -> np.ndarray:
        """A metric over the evaluations; nan where it is missing."""
        return np.array([number(record.get(key)) for record in self.evaluations], np.float64)

    def curve(self, axis: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(x, y) over the evaluations that have both."""
        x, y = self.evaluation_column(axis), self.evaluation_column(key)
        both = np.isfinite(x) & np.isfinite(y)
        return x[both], y[both]

    @property
    def state(self) -> str:
        """running, stopped, done or failed as the run wrote it."""
        return _state(self.status)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """All runs, named by the shortest ends of their paths that tell them apart; raises UserError for one without."""
    return [Run.read(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]


def read_usable(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that hold a step, and why the others were left out.

    Raises UserError for a name that is no folder, and where no run holds a step.
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
    """The shortest ends of the paths that tell them apart; raises UserError for a folder that is named twice."""
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


def state_of(folder: Path) -> str:
    """What the run in this folder says of itself, unknown where it does not."""
    return _state(_mapping(folder / "status.json", []))


def _state(status: Mapping[str, Any]) -> str:
    state = status.get("state")
    return state if isinstance(state, str) else "unknown"


def _no_metrics(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder; name a run directory (run_dir of a training)"
    inside = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl"))
    hint = f"name the runs in it, such as {folder / inside[0]}" if inside else "has the run made a step?"
    return f"{folder / 'metrics.jsonl'} does not exist; {hint}"


def _mapping(path: Path, notes: list[str], *, required: bool = False) -> Mapping[str, Any]:
    """A YAML or JSON file that should hold a mapping; an empty one, with a note, where it does not."""
    if not path.exists():
        if required:
            notes.append(f"{path.name} is missing")
        return {}
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except DAMAGE as error:
        notes.append(f"{path.name} cannot be read: {clean(error)[:200] or type(error).__name__}")
        return {}
    if not isinstance(value, Mapping):
        notes.append(f"{path.name} holds no mapping")
        return {}
    return value


def _leaves(config: Mapping[str, Any], notes: list[str]) -> Iterator[tuple[str, str]]:
    """Dotted keys and shown values; bounded, because a YAML file can refer to itself."""
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
