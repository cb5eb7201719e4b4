"""Logs that hold averages of training steps only: the mean reward, and the share of groups without spread.

Most people keep the curves of a run and no rollouts. The mean reward is the mean of the pass rates p. A group of n
responses has no spread with probability p^n + (1-p)^n, so its logged share is a second mean over the same pass rates.
Read are TRL's trainer_state.json and console, the console of NeMo-RL and of verl, CSV files of Weights & Biases, event
files of TensorBoard, and JSON lines of metrics. NeMo-RL logs the share of responses whose baseline is neither 0 nor 1.
Where the baseline leaves the response out (its recipes do), these are groups of the n - 1 others.
Axes: T steps, K means, J pass rates.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import CONFIDENCE, Estimate
from nemo_ada.lab.whatif.formats import NAMES
from nemo_ada.lab.whatif.logs import CSV, csv_table, decoded, is_rollout_file, percent
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, binomial
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded

MIXED = "baseline_reward/pct_mixed"
METRICS: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "critic/score/mean", "critic/rewards/mean", "ada/pass_rate"),
    "zero_signal": ("frac_reward_zero_std", "frac_zero_std", "ada/zero_signal_groups_if_grpo", MIXED),
    "spread": ("reward_std",),
    "lowest": ("critic/score/min",),
    "highest": ("critic/score/max",),
    "tokens": ("completions/mean_length", "completion_length", "response_length/mean", "mean_gen_tokens_per_sample"),
    "sampling": ("timing_s/gen", "timing/train/generation", "timing/train/exposed_generation"),
    "whole": ("timing_s/step", "timing/train/total_step_time"),
}
"""What is asked of a step -> the metrics that may have it, with or without `train/`. The first that is there counts."""
STEPS = ("step", "Step", "_step", "train/global_step", "global_step", "training/global_step")
NO_SHARE = "the log has no share of groups without spread, so the bounds follow from the mean reward alone"
OF_SUM = "the share of groups without spread is that of the sum of all rewards, so it says nothing about this one"
OF_OTHERS = "NeMo-RL's share counts responses whose baseline is 0 or 1, so it bounds the share of groups without spread"
ONE_GROUP = 20  # steps after which means over several groups would have shown
MOST_TOKENS = 1e9  # of a response
DEEPEST = 4  # objects in objects of metrics
FEW = 4  # steps below which the spread between them says nothing
EDGES = ("__MIN", "__MAX")  # ends of the columns that a chart of W&B has besides its means
EVENTS, STATE, EVENT_FILES = "tfevents", "trainer_state.json", "TensorBoard"
TEXTS = (".log", ".txt", ".out", ".err")
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NEMO_RL_STEP = re.compile(r"=====+ Step (\d+)/\d+ =====")
NEMO_RL = re.compile(
    r"• (Avg(?: Total)? Reward|Mean Generation Length|Total step time|generation|exposed_generation): (\S+)"
)
NEMO_RL_NAMES = {
    "Avg Reward": "reward", "Avg Total Reward": "reward", "Mean Generation Length": "mean_gen_tokens_per_sample",
    "Total step time": "timing/train/total_step_time", "generation": "timing/train/generation",
    "exposed_generation": "timing/train/exposed_generation",
}  # fmt: skip
VERL = re.compile(r"\bstep:(\d+) - (\S.*)")
DICTIONARY = re.compile(r"\{['\"][^{}]*\}", re.S)
NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
ADVICE = (
    "rollouts would narrow the bounds (TRL: log_completions=True; verl: trainer.rollout_data_dir; NeMo-RL writes them)"
)

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Averages:
    """The averages of the steps of some logs. A step without one has NaN.

    Attributes:
        forms: Forms of the logs.
        reward: Name of the reward whose mean is the pass rate.
        mean_T: Mean pass rate.
        zero_T: Share of groups without spread.
        others: Whether `zero_T` counts responses whose n - 1 others are equal, or whose group is.
        spread_T: Mean standard deviation of a group's rewards, in units of the pass rate.
        tokens_T: Mean tokens of a response.
        sampling_T: Seconds of the sampling phase.
        whole_T: Seconds of the step.
        notes: What a reader must know.
    """

    forms: tuple[str, ...]
    reward: str
    mean_T: FloatArray
    zero_T: FloatArray
    others: bool
    spread_T: FloatArray
    tokens_T: FloatArray
    sampling_T: FloatArray
    whole_T: FloatArray
    notes: tuple[str, ...]

    def pass_rate(self) -> Estimate:
        """Return the mean pass rate with its interval."""
        return _estimate(self.mean_T, CONFIDENCE)

    def zero_signal(self) -> Estimate:
        """Return the share of groups without spread, NaN where no step has just that."""
        return _estimate(self.zero_T * (math.nan if self.others else 1.0), CONFIDENCE)

    def with_groups(self, group: int) -> Averages:
        """Return the log with the spread of its groups where each step had one prompt, as with TRL on one GPU.

        Then each mean is a multiple of 1/n, which means over several groups are not for long. A logged share that says
        something else stays.
        """
        pos_T = self.mean_T * group
        if len(pos_T) < ONE_GROUP or np.abs(pos_T - pos_T.round()).max() > 0.01:
            return self
        pos_T = pos_T.round()
        zero_T = ((pos_T == 0) | (pos_T == group)).astype(np.float64)
        if not self.others and np.any(np.abs(self.zero_T - zero_T)[np.isfinite(self.zero_T)] > 0.01):
            return self
        notes = [note for note in self.notes if note not in (NO_SHARE, OF_SUM, OF_OTHERS)]
        notes.append(f"each mean is a multiple of 1/{group}, so each step is taken for one group of {group}")
        spread_T = np.sqrt(pos_T * (group - pos_T) / (group * max(group - 1, 1)))
        return replace(self, zero_T=zero_T, others=False, spread_T=spread_T, notes=tuple(notes))

    def mixture(self, group: int, leave_out: str = "") -> Mixture:
        """Fit the pass rates.

        Args:
            group: Responses of a group of the logged run.
            leave_out: `zero` fits without the share of groups without spread, and with the groups' spread instead.
        """
        means = [(RATE_J, self.mean_T)]
        if leave_out == "zero":
            means.append((expected_spread(group), self.spread_T))
        elif np.isfinite(self.zero_T).any():
            means.append((no_spread(group - 1 if self.others else group), self.zero_T))
        confidence = 1.0 - (1.0 - CONFIDENCE) / len(means)  # all intervals together
        found = [_estimate(value_T, confidence) for _, value_T in means]
        rows = [(value_J, one.mean, one.low, one.high) for (value_J, _), one in zip(means, found, strict=True)]
        if self.others and len(rows) == 2:  # of the n - 1 others at least that, of the whole group at most
            value_J, mean, low, high = rows.pop()
            rows += [(value_J, mean, low, 1.0), (no_spread(group), math.nan, 0.0, high)]
        value_KJ, *ends = (np.array(column) for column in zip(*rows, strict=True))
        return Mixture.from_moments(value_KJ, *ends)


def no_spread(group: int) -> FloatArray:
    """Return the probability [J] that all labels of a group are equal."""
    return RATE_J**group + (1.0 - RATE_J) ** group


def expected_spread(group: int) -> FloatArray:
    """Return the expected standard deviation [J] of a group's labels, with n - 1 in the denominator."""
    pos_K = np.arange(group + 1)
    chance_KJ = binomial(pos_K, np.full(group + 1, group))
    return np.asarray(np.sqrt(pos_K * (group - pos_K) / (group * max(group - 1, 1))) @ chance_KJ)


def _estimate(value_T: FloatArray, confidence: float) -> Estimate:
    """Return the mean over steps with Student's interval. What the steps differ by makes it wider, not narrower."""
    from scipy.special import stdtrit

    there_T = value_T[np.isfinite(value_T)]
    count = len(there_T)
    if count < FEW:
        return Estimate(math.nan, math.nan, math.nan, count)
    mean, error = float(there_T.mean()), float(there_T.std(ddof=1)) / math.sqrt(count)
    error = max(error, 0.5 / count**1.5)  # equal values of few steps are not exact
    half = float(stdtrit(count - 1, (1.0 + confidence) / 2.0)) * error
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0), count)


@dataclass(slots=True)
class _Steps:
    """Metrics while they are read, by log and step."""

    rows: dict[tuple[int, float], Metrics] = field(default_factory=dict)
    forms: dict[str, None] = field(default_factory=dict)
    folders: dict[tuple[int, float], Path] = field(default_factory=dict)

    def add(self, log: int, form: str, file: Path, rows: Iterator[Metrics]) -> None:
        """Join the rows of a file with those of the same step. Charts of one run may be in several files.

        Raises:
            UserError: The file or the folders hold two runs.
        """
        self.forms[form] = None
        first = last = None
        for place, row in enumerate(rows):
            named = {name.removeprefix("train/"): value for name, value in row.items() if math.isfinite(value)}
            time = next((row[name] for name in (*STEPS, "epoch") if name in row), math.nan)
            if first is not None and last is not None and time <= first < last:
                raise UserError(
                    f"{file} holds two runs: behind step {last:g} follows {time:g} again, where the first one began; "
                    "give the lines of one run as a file of their own"
                )
            first, last = time if first is None else first, time
            key = log, next((row[name] for name in STEPS if name in row), place)
            if form == EVENT_FILES and "reward" in named and self.folders.setdefault(key, file.parent) != file.parent:
                raise UserError(
                    f"{self.folders[key]} and {file.parent} both have the reward of step {key[1]:g}, so they are two "
                    "runs; give one of them"
                )
            self.rows.setdefault(key, {}).update(named)


def read_averages(
    paths: Sequence[Path], columns: Mapping[str, str] | None = None, values: tuple[float, float] | None = None
) -> Averages | None:
    """Read the averages of logs. Returns None where the paths hold rollouts.

    Args:
        paths: Files and folders.
        columns: What is asked of a step -> the user's name for it.
        values: The rewards of a wrong and of a right response. None takes 0 and 1, or what verl's log says.

    Raises:
        UserError: A log is damaged, or says too little.
    """
    steps, others, runs = _Steps(), list[Path](), dict[str, Path]()
    own = [name for what, name in (columns or {}).items() if what in ("prompt", "text")]
    for log, path in enumerate(paths):
        found = [(file, one) for file in _candidates(path) if (one := _metrics_of(file, own)) is not None]
        others += [] if found else [path]
        for file, (form, rows) in found:
            for run in _runs(file):
                runs.setdefault(run, file)
            steps.add(-1 if file.suffix == CSV else log, form, file, rows)
    if not steps.forms:
        return None
    if len(runs) > 1:
        owners = ", ".join(f"{run} in {file}" for run, file in runs.items())
        raise UserError(f"the charts are of several runs ({owners[:300]}); give those of one run")
    if others:
        raise UserError(
            f"{others[0]} holds rollouts or nothing, and the other logs averages of steps; give logs of one kind"
        )
    return _averages(list(steps.rows.values()), tuple(steps.forms), columns or {}, values)


def _averages(
    rows: list[Metrics], forms: tuple[str, ...], columns: Mapping[str, str], values: tuple[float, float] | None
) -> Averages:
    """Choose the metrics, and bring rewards to the scale from 0 to 1."""
    names = {
        what: (columns[what].removeprefix("train/"),) if what in columns else known for what, known in METRICS.items()
    }
    if "reward" in columns:
        names["reward"] = (columns["reward"].removeprefix("train/"), f"{columns['reward'].removeprefix('train/')}/mean")
    reward = next((name for name in names["reward"] if any(name in row for row in rows)), None)
    if reward is None:
        raise UserError(
            f"no step has one of the metrics {', '.join(names['reward'])}; name the mean reward with --column "
            f"reward=NAME (the log has {_named(rows)})"
        )
    for what in METRICS:
        if what in columns and what != "reward" and not any(names[what][0] in row for row in rows):
            raise UserError(f"--column {what}={columns[what]}: no step has this metric (the log has {_named(rows)})")
    rows = [row for row in rows if reward in row]
    parts = _parts(rows)
    mixed = [name for name in parts if len({row.get(name) for row in rows}) > 1]
    if "reward" not in columns and len(parts) > 1:
        means = ", ".join(f"{name} (mean {np.mean([row[name] for row in rows if name in row]):.3g})" for name in parts)
        seen_T = _column(rows, names["zero_signal"])
        fact = f"{np.nanmean(seen_T):.0%} of the groups had no spread. " if np.isfinite(seen_T).any() else ""
        raise UserError(
            f"{fact}The reward is a sum of {len(parts)} functions: {means}; for a forecast, name the one that says "
            f"right or wrong, such as --column reward={parts[0]}"
        )
    column = {what: _column(rows, known) for what, known in names.items() if what != "reward"}
    value_T, notes = np.array([row[reward] for row in rows]), list[str]()
    if len(rows) < FEW:
        raise UserError(f"{len(rows)} steps have {reward}; averages need at least {FEW} steps")
    if values is None and np.isfinite(column["lowest"]).any() and np.isfinite(column["highest"]).any():
        values = float(np.nanmedian(column["lowest"])), float(np.nanmedian(column["highest"]))  # not one odd step
        notes.append(f"rewards lie between {values[0]:g} and {values[1]:g}; --values says otherwise")
    low, high = values or (0.0, 1.0)
    if not low < high or not math.isfinite(high - low):
        raise UserError(f"--values {low:g} {high:g}: the reward of a right response must be the larger one, and finite")
    mean_T = (value_T - low) / (high - low)
    outside = np.flatnonzero((mean_T < -1e-9) | (mean_T > 1.0 + 1e-9))
    if len(outside):
        raise UserError(
            f"{reward} has a mean of {value_T[outside[0]]:.4g} in row {outside[0] + 1}, which is not between {low:g} "
            f"and {high:g}; give the rewards of a wrong and of a right response, such as --values -1 1"
        )
    used = next((name for name in names["zero_signal"] if any(name in row for row in rows)), "")
    if used == MIXED:
        column["zero_signal"] = 1.0 - column["zero_signal"] / 100.0
    _check_range(column["zero_signal"], "share of groups without spread", 1.0)
    _check_range(column["tokens"], "mean tokens of a response", MOST_TOKENS)
    zero_T, others = column["zero_signal"], used == MIXED
    if "reward" in columns and "zero_signal" not in columns and any(name != reward for name in mixed):
        zero_T, column["spread"] = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        notes.append(OF_SUM)
    elif others:
        notes.append(OF_OTHERS)
    if not np.isfinite(zero_T).sum() >= FEW:
        zero_T = np.full(len(rows), np.nan)
        notes.append(NO_SHARE)
    notes.append(f"the log has averages of steps and no rollouts: {ADVICE}")
    return Averages(
        forms, reward, np.clip(mean_T, 0.0, 1.0), zero_T, others, column["spread"] / (high - low), column["tokens"],
        column["sampling"], column["whole"], tuple(notes),
    )  # fmt: skip


def _check_range(value_T: FloatArray, what: str, most: float) -> None:
    """Raise UserError where a logged average cannot be."""
    outside = np.flatnonzero((value_T < 0.0) | (value_T > most))
    if len(outside):
        raise UserError(
            f"row {outside[0] + 1} has {value_T[outside[0]]:g} as {what}, which is not between 0 and {most:g}; is it "
            "another metric? --column names yours"
        )


def _named(rows: list[Metrics]) -> str:
    """Return the names of some metrics of a log, for messages."""
    return ", ".join(sorted({name for row in rows for name in row})[:20]) or "no metrics"


def _parts(rows: list[Metrics]) -> list[str]:
    """Return the metrics of TRL's reward functions."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("rewards/"))
    return [
        name for name in names
        if not name.endswith("/std") and (name.endswith("/mean") or f"{name}/mean" not in names)
        and name.count("/") <= 2
    ]  # fmt: skip


def _column(rows: list[Metrics], names: Sequence[str]) -> FloatArray:
    """Return the first of some metrics [T] that any step has, or NaN."""
    name = next((name for name in names if any(name in row for row in rows)), None)
    return np.array([math.nan if name is None else row.get(name, math.nan) for row in rows], np.float64)


def _candidates(path: Path) -> list[Path]:
    """Return the files of a path that may hold averages. Rollouts say more, so a folder with some has none here.

    Of the checkpoints of a run the last one counts.
    """
    if not path.is_dir():
        return [path] if path.is_file() else []
    tables, lines = list[Path](), list[Path]()
    for file in sorted(path.rglob("*")):
        if is_rollout_file(file):
            (tables if _metrics_of(file) is None else lines).append(file)
    if tables:
        return []
    states = sorted(path.rglob(STATE), key=lambda file: [int(part) for part in re.findall(r"\d+", str(file))])
    events = sorted(file for file in path.rglob(f"*{EVENTS}*") if file.is_file())
    return states[-1:] or events or lines or [file for file in [path / "metrics.jsonl"] if file.is_file()]


def _metrics_of(file: Path, names: Sequence[str] = ()) -> tuple[str, Iterator[Metrics]] | None:
    """Return the form of a file and its rows. None where it holds no averages.

    Args:
        file: The file.
        names: The user's names for the prompt and the text of a response.
    """
    if EVENTS in file.name:
        return EVENT_FILES, _events(file)
    if file.suffix == CSV:
        try:
            heads = csv_table(_start(file)).fieldnames or []
        except csv.Error:  # the reader of the rows says what is wrong
            heads = []
        of_responses = any(name in heads for name in (*NAMES["prompt"], *NAMES["text"], *names))
        return None if of_responses else ("W&B (CSV)", _charts(file))
    if file.suffix == ".parquet":
        return None
    start = _start(file)
    if file.name == STATE or (file.suffix == ".json" and start.lstrip().startswith("{")):
        found = _json(file)
        history = found.get("log_history") if isinstance(found, dict) else None
        if not isinstance(history, list):
            return None
        return "TRL (trainer_state.json)", (_numbers(row) for row in history if isinstance(row, dict))
    first = next((line for line in start.splitlines() if line.strip()), "")
    record = _parsed(first)
    if isinstance(record, dict) and not _is_console(first, file):
        return ("metrics (JSON lines)", _json_lines(file)) if _is_metrics(record) else None
    if start.lstrip().startswith("[") or (record is None and file.suffix in (".jsonl", ".ndjson", ".gz")):
        return None
    rows = list(_console(_text(file)))
    return ("console", iter(rows)) if rows or file.suffix in TEXTS else None


def _is_console(line: str, file: Path) -> bool:
    return file.suffix in TEXTS and not line.startswith("{")


def _is_metrics(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON record is about a step, not about a response."""
    known = {name for what in ("reward", "zero_signal", "spread") for name in METRICS[what]}
    named = any(name.removeprefix("train/") in known or name.startswith("rewards/") for name in _numbers(record))
    texts = any(name in record for name in NAMES["prompt"]) or any(
        isinstance(record.get(name), str | list) for name in NAMES["text"]
    )
    return (named or "loss" in record) and not texts


def _start(file: Path, most: int = 1 << 20) -> str:
    """Return the beginning of a text file."""
    with opened_to_read(file) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            data = gzip.GzipFile(fileobj=raw).read(most) if packed else raw.read(most)
        except (OSError, EOFError, zlib.error):
            return ""
    return decoded(data)


def _text(file: Path) -> str:
    """Return a text file, also one that gzip has packed. Raises UserError where it is damaged or too large."""
    data = read_bounded(file, MAX_TEXT)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_TEXT + 1)
        except (OSError, EOFError, zlib.error) as damage:
            raise UserError(f"{file}: the gzip file is damaged or cut off ({damage})") from None
        if len(data) > MAX_TEXT:
            raise UserError(f"{file} has more than {MAX_TEXT:,} bytes when it is unpacked; give a part of it")
    return decoded(data)


def _json(file: Path) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{file} is no JSON, or is damaged: {problem}") from None


def _json_lines(file: Path) -> Iterator[Metrics]:
    for line in _text(file).splitlines():
        record = _parsed(line)
        if isinstance(record, dict):
            yield _numbers(record)


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


def _nemo_rl(text: str) -> Iterator[Metrics]:
    """Read what NeMo-RL prints at the end of a step."""
    _, *parts = NEMO_RL_STEP.split(text)
    for step, part in zip(parts[::2], parts[1::2], strict=True):
        row = {NEMO_RL_NAMES[name]: value.removesuffix("s") for name, value in NEMO_RL.findall(part)}
        if "reward" in row:
            yield {"step": float(step), **_numbers(row)}


def _console(text: str) -> Iterator[Metrics]:
    """Read what TRL, verl and NeMo-RL print. TRL prints a dictionary per step, and verl `step:7 - a:0.5 - ...`."""
    text = NUMPY.sub(r"\1", COLOURS.sub("", text))
    yield from _nemo_rl(text)
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
    try:
        for row in csv_table(_text(file)):
            kept = {
                head if head in STEPS else head.rpartition(" - ")[2]: value for head, value in row.items()
                if isinstance(head, str) and not head.endswith(EDGES)
            }  # fmt: skip
            if numbers := _numbers(kept):
                yield numbers
    except csv.Error as damage:
        raise UserError(f"{file} is no CSV file, or is damaged: {damage}") from None


def _runs(file: Path) -> list[str]:
    """Return the runs that the columns of a CSV file name. Other files name none."""
    if file.suffix != ".csv":
        return []
    try:
        heads = csv_table(_text(file)).fieldnames or []
    except csv.Error:  # the reader of the rows says what is wrong
        return []
    named = (head.rpartition(" - ")[0] for head in heads if head not in STEPS and not head.endswith(EDGES))
    return list(dict.fromkeys(run for run in named if run))


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
