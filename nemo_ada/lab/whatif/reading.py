"""Find the files of a log, and open each as records: one per response (rollouts), or one per step (curves of a run).

`run.data_files` reads JSON lines, CSV and Parquet. Further forms are TRL's trainer_state.json and event files of
TensorBoard.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run import data_files
from nemo_ada.run.files import read_json
from nemo_ada.run.json_lines import Record

FIELDS: dict[str, tuple[str, ...]] = {
    "prompt": (
        "prompt_id", "prompt_tokens", "prompt", "input", "problem", "question", "example_id", "id",
        "responses_create_params.input",
    ),
    "reward": ("reward", "score", "total_reward", "correct", "is_correct", "rewards", "scores"),
    "right": ("acc",),  # of verl's reward managers, such as DAPO's, whose score has a penalty for length
    "tokens": (
        "tokens", "response_tokens", "completion_tokens", "output_tokens", "num_tokens", "response_length",
        "token_usage.output_tokens", "response_lengths", "completion_lengths", "response.usage.output_tokens",
    ),
    "step": ("step", "training_step", "global_step"),
    "group": ("prompt_idx", "group_id"),
    "text": ("completion", "response", "output", "text", "completions", "responses", "outputs"),
}  # fmt: skip
"""What a response needs -> the fields that may have it, the first one that is there counts. Dots lead into objects."""
METRICS: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "ada/pass_rate"),
    "zero_signal": ("frac_reward_zero_std", "frac_zero_std", "ada/zero_signal_groups_if_grpo"),
    "tokens": ("completions/mean_length", "completion_length", "mean_gen_tokens_per_sample"),
}
"""What is asked of a step -> the metrics that may have it, with or without `train/`. The first that is there counts."""
STEPS = ("step", "Step", "_step", "global_step", "training/global_step")
NEMO_RL = "token_loss_mask"  # only rollouts of NeMo-RL have this field
ROLLOUTS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet")
SKIPPED = re.compile(
    r"(val_data_step\d+|metrics|evaluations|config_changes|problems|dataset|rejected|pass_rates|.*_metadata)"
    r"\.jsonl(\.gz)?|\..*"
)
"""Files of a folder that hold no training rollouts. A file that is named on the command line is always read."""
STEP_IN_PATH = re.compile(r"(?:train_data_step|step_)(\d{1,15})(?!\d)")
EVENTS, STATE = "tfevents", "trainer_state.json"
MISSING = object()

Numbered = Iterator[tuple[int, Record]]


def files_of(path: Path) -> list[Path]:
    """Return the files of a path that are read, in the order of their numbers.

    Rollouts say more than curves, so the curves of a folder are read where it has no rollouts. Of the checkpoints of a
    run the last one counts.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file()]
    found.sort(key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", str(file))])
    lines = [file for file in found if file.name.endswith(ROLLOUTS) and not SKIPPED.fullmatch(file.name)]
    return (
        [file for file in lines if not opened(file)[0]]
        or [file for file in found if file.name == STATE][-1:]
        or [file for file in found if EVENTS in file.name]
        or lines
        or [file for file in [path / "metrics.jsonl"] if file.is_file()]
        or [file for file in found if file.suffix == ".csv"]
    )


def opened(file: Path, columns: Mapping[str, str] | None = None) -> tuple[bool, Numbered]:
    """Open a file.

    Args:
        file: The file.
        columns: What is asked -> the user's name for it.

    Returns:
        Whether the records are about steps, not about responses. The numbered records.

    Raises:
        UserError: The file cannot be read.
    """
    if EVENTS in file.name:
        return True, enumerate(_events(file))
    if file.suffix == ".json":
        history = read_json(file).get("log_history")
        if not isinstance(history, list):
            raise UserError(f"{file} has no log_history, as TRL's trainer_state.json has; rollouts need JSON lines")
        return True, enumerate(row for row in history if isinstance(row, dict))
    records = _lines(file)
    first = next(records, None)
    if first is None:
        return False, iter(())
    return _is_step(first[1], columns or {}), chain([first], records)


def _lines(file: Path) -> Numbered:
    """Read what `run.data_files` reads. A damaged last line, which a killed run leaves, is left out."""
    damage, number = list[str](), 0
    for number, record in data_files.records(file, lambda line, why: damage.append(f"{file}, line {line}: {why}")):
        if damage:
            raise UserError(damage[0])
        yield number, {name: _cell(value) for name, value in record.items()} if file.suffix == ".csv" else record
    if len(damage) > (number > 0):
        raise UserError(damage[0])


def _cell(text: Any) -> Any:
    """Return the number or truth value that a cell of a CSV file has, else its text."""
    if not isinstance(text, str):
        return text
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return float(text)
    except ValueError:
        return text


def _is_step(record: Record, columns: Mapping[str, str]) -> bool:
    """Return whether a record has metrics of a step, and neither a prompt nor the text of a response."""
    named = {what: (name,) for what, name in columns.items()}
    prompts, texts = ({**FIELDS, **named}[what] for what in ("prompt", "text"))
    if NEMO_RL in record or found(record, prompts) is not MISSING or isinstance(found(record, texts), str | list):
        return False
    known = (*METRICS["reward"], *METRICS["zero_signal"], "reward_std", "loss", "Step", "_step")
    return any(metric(name) in known or name.startswith("rewards/") for name in record)


def metric(name: str) -> str:
    """Return the name of a metric without `train/`, and without the run that a chart of Weights & Biases puts first."""
    return name.rpartition(" - ")[2].removeprefix("train/")


def found(record: Record, names: Iterable[str]) -> Any:
    """Return the value of the first field that is there, else MISSING."""
    for name in names:
        value: Any = record
        for part in [name] if name in record else name.split("."):
            value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
        if value is not MISSING:
            return value
    return MISSING


def _events(file: Path) -> Iterator[Record]:
    """Read the scalars of an event file."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UserError(f"{file}: event files need the package tensorboard; `pip install tensorboard`") from None
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    rows: dict[int, Record] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            rows.setdefault(event.step, {"step": float(event.step)})[name] = float(event.value)
    yield from rows.values()


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a step by metric. Charts have columns for the smallest and largest value, too."""
    return {
        metric(name): float(value) for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        and name and not name.endswith(("__MIN", "__MAX"))
    }  # fmt: skip


def shown(names: Sequence[str]) -> str:
    """Return some names of fields or metrics, for messages."""
    return ", ".join(sorted(str(name)[:40] for name in names)[:20]) or "nothing"
