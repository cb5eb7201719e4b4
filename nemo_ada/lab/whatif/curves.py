"""Read the curves of a run: rows of metrics, in each form that people keep.

Read are TRL's trainer_state.json and console, the console of NeMo-RL and of verl, CSV files of Weights & Biases, event
files of TensorBoard, and JSON lines of metrics.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.formats import NAMES
from nemo_ada.lab.whatif.logs import CSV, csv_table, decoded, is_rollout_file, percent
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded

MIXED = "baseline_reward/pct_mixed"
METRICS: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "critic/score/mean", "critic/rewards/mean", "ada/pass_rate"),
    "zero_signal": ("frac_reward_zero_std", "frac_zero_std", "ada/zero_signal_groups_if_grpo", MIXED),
    "lowest": ("critic/score/min",),
    "highest": ("critic/score/max",),
    "tokens": ("completions/mean_length", "completion_length", "response_length/mean", "mean_gen_tokens_per_sample"),
}
"""What is asked of a step -> the metrics that may have it, with or without `train/`. The first that is there counts."""
STEPS = ("step", "Step", "_step", "train/global_step", "global_step", "training/global_step")
DEEPEST = 4  # objects in objects of metrics
EDGES = ("__MIN", "__MAX")  # ends of the columns that a chart of W&B has besides its means
EVENTS, STATE, EVENT_FILES = "tfevents", "trainer_state.json", "TensorBoard"
TEXTS = (".log", ".txt", ".out", ".err")
START = 1 << 20  # bytes of a file by which its form is known
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NEMO_RL_STEP = re.compile(r"=====+ Step (\d+)/\d+ =====")
NEMO_RL = re.compile(r"• (Avg(?: Total)? Reward|Mean Generation Length): (\S+)")
NEMO_RL_NAMES = {
    "Avg Reward": "reward", "Avg Total Reward": "reward", "Mean Generation Length": "mean_gen_tokens_per_sample",
}  # fmt: skip
VERL = re.compile(r"\bstep:(\d+) - (\S.*)")
DICTIONARY = re.compile(r"\{['\"][^{}]*\}", re.S)
NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")

Metrics = dict[str, float]


@dataclass(slots=True)
class Curves:
    """Metrics by log and step, while they are read.

    Attributes:
        rows: Log and step -> metrics.
        forms: Forms of the files.
    """

    rows: dict[tuple[int, float], Metrics] = field(default_factory=dict)
    forms: dict[str, None] = field(default_factory=dict)
    _folders: dict[tuple[int, float], Path] = field(default_factory=dict)
    _runs: dict[str, Path] = field(default_factory=dict)

    def add(self, log: int, file: Path, own: Sequence[str]) -> bool:
        """Join the rows of a file with those of the same step. Charts of one run may be in several files.

        Args:
            log: Number of the argument on the command line. Two logs may have the same steps.
            file: The file.
            own: The user's names for the prompt and the text of a response.

        Returns:
            Whether the file holds averages.

        Raises:
            UserError: The file, the folders or the charts hold two runs.
        """
        found = curve_of(file, own)
        if found is None:
            return False
        form, rows = found
        self.forms[form] = None
        first = last = None
        for place, row in enumerate(rows):
            for run in {name.rpartition(" - ")[0] for name in row if file.suffix == CSV} - {""}:
                if self._runs.setdefault(run, file) and len(self._runs) > 1:
                    owners = ", ".join(f"{run} in {file}" for run, file in self._runs.items())
                    raise UserError(f"the charts are of several runs ({owners[:300]}); give those of one run")
            named = {
                name.rpartition(" - ")[2].removeprefix("train/"): value for name, value in row.items()
                if math.isfinite(value) and not name.endswith(EDGES)
            }  # fmt: skip
            time = next((row[name] for name in (*STEPS, "epoch") if name in row), math.nan)
            if first is not None and last is not None and time <= first < last:
                raise UserError(
                    f"{file} holds two runs: behind step {last:g} follows {time:g} again, where the first one began; "
                    "give the lines of one run as a file of their own"
                )
            first, last = time if first is None else first, time
            step = next((row[name] for name in STEPS if name in row), place)
            key = -1 if file.suffix == CSV else log, step
            if form == EVENT_FILES and "reward" in named and self._folders.setdefault(key, file.parent) != file.parent:
                raise UserError(
                    f"{self._folders[key]} and {file.parent} both have the reward of step {step:g}, so they are two "
                    "runs; give one of them"
                )
            self.rows.setdefault(key, {}).update(named)
        return True


def read_curves(paths: Sequence[Path], own: Sequence[str] = ()) -> Curves | None:
    """Read the curves of logs. Returns None where the paths hold rollouts.

    Args:
        paths: Files and folders.
        own: The user's names for the prompt and the text of a response.

    Raises:
        UserError: A log is damaged, or some hold rollouts and others curves.
    """
    curves, others = Curves(), list[Path]()
    for log, path in enumerate(paths):
        added = [curves.add(log, file, own) for file in _candidates(path)]
        others += [] if any(added) else [path]
    if not curves.forms:
        return None
    if others:
        raise UserError(
            f"{others[0]} holds rollouts or nothing, and the other logs averages of steps; give logs of one kind"
        )
    return curves


def _candidates(path: Path) -> list[Path]:
    """Return the files of a path that may hold averages. Rollouts say more, so a folder with some has none here.

    Of the checkpoints of a run the last one counts.
    """
    if not path.is_dir():
        return [path] if path.is_file() else []
    lines = sorted(file for file in path.rglob("*") if is_rollout_file(file))
    if any(curve_of(file) is None for file in lines):
        return []
    states = sorted(path.rglob(STATE), key=lambda file: [int(part) for part in re.findall(r"\d+", str(file))])
    events = sorted(file for file in path.rglob(f"*{EVENTS}*") if file.is_file())
    return states[-1:] or events or lines or [file for file in [path / "metrics.jsonl"] if file.is_file()]


def curve_of(file: Path, own: Sequence[str] = ()) -> tuple[str, Iterator[Metrics]] | None:
    """Return the form of a file and its rows. None where it holds no averages."""
    if EVENTS in file.name:
        return EVENT_FILES, _events(file)
    if file.suffix in (".parquet", ".gz"):
        return None
    with opened_to_read(file) as raw:
        start = decoded(raw.read(START))
    if file.suffix == CSV:
        heads = set(csv_table(file, start, 0).columns)
        return None if heads & {*NAMES["prompt"], *NAMES["text"], *own} else ("W&B (CSV)", _charts(file))
    if file.suffix == ".json":
        return _state(file) if start.lstrip().startswith("{") or file.name == STATE else None
    record = _parsed(next((line for line in start.splitlines() if line.strip()), ""))
    if isinstance(record, dict):
        return ("metrics (JSON lines)", _json_lines(file)) if _is_metrics(record) else None
    if start.lstrip().startswith("[") or (record is None and file.suffix in (".jsonl", ".ndjson")):
        return None
    rows = list(_console(_text(file)))
    return ("console", iter(rows)) if rows or file.suffix in TEXTS else None


def _state(file: Path) -> tuple[str, Iterator[Metrics]] | None:
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{file} is no JSON, or is damaged: {problem}") from None
    history = found.get("log_history") if isinstance(found, dict) else None
    if not isinstance(history, list):
        return None
    return "TRL (trainer_state.json)", (_numbers(row) for row in history if isinstance(row, dict))


def _is_metrics(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON record is about a step, not about a response."""
    known = {"reward_std", *METRICS["reward"], *METRICS["zero_signal"]}
    named = any(name.removeprefix("train/") in known or name.startswith("rewards/") for name in _numbers(record))
    texts = any(name in record for name in NAMES["prompt"]) or any(
        isinstance(record.get(name), str | list) for name in NAMES["text"]
    )
    return (named or "loss" in record) and not texts


def _text(file: Path) -> str:
    return decoded(read_bounded(file, MAX_TEXT))


def _json_lines(file: Path) -> Iterator[Metrics]:
    records = (_parsed(line) for line in _text(file).splitlines())
    yield from (_numbers(record) for record in records if isinstance(record, dict))


def _parsed(line: str) -> Any:
    """Return a JSON value. None where the text is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _numbers(row: Mapping[str, Any], before: str = "") -> Metrics:
    """Return the numbers of a row, also those that are written as text or percent, and those in objects within it."""
    found: Metrics = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and before.count("/") < DEEPEST:
            found |= _numbers(value, f"{before}{name}/")
            continue
        try:
            found[f"{before}{name}"] = math.nan if isinstance(value, bool) else float(percent(value))
        except (TypeError, ValueError, OverflowError):
            continue
    return found


def _console(text: str) -> Iterator[Metrics]:
    """Read what TRL, verl and NeMo-RL print. TRL prints a dictionary per step, and verl `step:7 - a:0.5 - ...`."""
    text = NUMPY.sub(r"\1", COLOURS.sub("", text))
    _, *parts = NEMO_RL_STEP.split(text)
    for step, part in zip(parts[::2], parts[1::2], strict=True):
        row = {NEMO_RL_NAMES[name]: value for name, value in NEMO_RL.findall(part)}
        if "reward" in row:
            yield {"step": float(step), **_numbers(row)}
    for found in VERL.finditer(text):
        pairs = (part.rpartition(":") for part in found[2].split(" - "))
        yield {"step": float(found[1]), **_numbers({name.strip(): value for name, _, value in pairs})}
    for block in DICTIONARY.finditer(text):
        try:
            record = ast.literal_eval(block[0])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(record, dict) and _is_metrics({str(name): value for name, value in record.items()}):
            yield _numbers(record)


def _charts(file: Path) -> Iterator[Metrics]:
    """Read a CSV file of Weights & Biases. A chart has a column `RUN - METRIC`, and its smallest and largest value."""
    for row in csv_table(file, _text(file)).to_dict("records"):
        yield _numbers({str(head): value for head, value in row.items() if value == value})  # without NaN


def _events(file: Path) -> Iterator[Metrics]:
    """Read the scalars of an event file."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UserError(f"{file}: event files need the package tensorboard; `pip install tensorboard`") from None
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    rows: dict[int, Metrics] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            rows.setdefault(event.step, {"step": float(event.step)})[name] = float(event.value)
    yield from rows.values()
