"""Find the files of a log, and open each as records: one per response (rollouts), or one per step (curves of a run).

`run.data_files` reads JSON lines, arrays and tables of JSON, CSV and Parquet. Further forms are TRL's
trainer_state.json, event files of TensorBoard, what a run printed (console.py), and rollouts that slime and miles save
with torch (torch_file.py).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.console import read_console
from nemo_ada.lab.whatif.names import is_step
from nemo_ada.lab.whatif.torch_file import read_torch_file
from nemo_ada.run import data_files
from nemo_ada.run.files import MAX_TEXT, read_bounded
from nemo_ada.run.json_lines import Record, parse_line

NEMO_RL = "token_loss_mask"  # only rollouts of NeMo-RL have this field
TORCH = (".pt", ".pth")
ROLLOUTS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet", ".table.json", *TORCH)
CONSOLE = (".log", ".txt", ".out", ".err")
SKIPPED = re.compile(
    r"(val_data_step\d+|metrics|evaluations|config_changes|problems|dataset|rejected|pass_rates|.*_metadata)"
    r"\.jsonl(\.gz)?|eval_.*\.pt|\..*"
)
"""Files of a folder that hold no training rollouts. A file that is named on the command line is always read."""
SKIPPED_FOLDERS = frozenset(("eval", "evals", "validation", "val", "dumped_evals", "checkpoints"))
STEP_IN_PATH = re.compile(r"(?:train_data_step|step_)(\d{1,15})(?!\d)")
EVENTS, STATE = "tfevents", "trainer_state.json"

Numbered = Iterator[tuple[int, Record]]


def find_files(path: Path, without: Collection[Path] = ()) -> list[Path]:
    """Return the files of a path that are read, in the order of their numbers.

    Rollouts say more than curves, so the curves of a folder are read where it has no rollouts, and what was printed
    where it has no curves. Of the checkpoints of a run the last one counts.

    Args:
        path: A file or a folder.
        without: Files of the folder that hold something else.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file() and file not in without]
    found.sort(key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", str(file))])
    lines = [file for file in found if _may_be_rollouts(file, path)]
    return (
        [file for file in lines if not open_log(file)[0]]
        or [file for file in found if file.name == STATE][-1:]
        or [file for file in found if EVENTS in file.name]
        or lines
        or [file for file in [path / "metrics.jsonl"] if file.is_file()]
        or [file for file in found if file.suffix == ".csv"]
        or [file for file in found if file.suffix in CONSOLE and next(open_log(file)[1], None) is not None]
    )


def _may_be_rollouts(file: Path, folder: Path) -> bool:
    """Return whether the name of a file in a folder is that of training rollouts.

    prime-rl writes each step twice: `all` has every rollout, and `effective` those that it trained on.
    """
    parts = file.relative_to(folder).parts[:-1]
    selected = file.parent.name == "effective" and (file.parent.parent / "all").is_dir()
    return (
        file.name.endswith(ROLLOUTS) and not SKIPPED.fullmatch(file.name)
        and not SKIPPED_FOLDERS & {part.lower() for part in parts} and not selected
    )  # fmt: skip


def open_log(file: Path, columns: Mapping[str, str] | None = None) -> tuple[bool, Numbered]:
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
        return True, enumerate(_read_events(file))
    if file.suffix in TORCH:
        return False, enumerate(read_torch_file(file), start=1)
    if not data_files.is_data_file(file) and (text := _read_printed_text(file)) is not None:
        return True, enumerate(read_console(text), start=1)
    records = _read_lines(file)
    first = next(records, None)
    if first is None:
        return False, iter(())
    history = first[1].get("log_history")  # of TRL's trainer_state.json
    if isinstance(history, list):
        return True, enumerate(row for row in history if isinstance(row, dict))
    return NEMO_RL not in first[1] and is_step(first[1], columns or {}), chain([first], records)


def _read_printed_text(file: Path) -> str | None:
    """Return what a run printed into a file. None for a file of JSON lines with any name.

    Raises:
        UserError: The file is no text.
    """
    try:
        data = read_bounded(file, MAX_TEXT)
    except OSError as problem:
        raise UserError(f"{file} cannot be read: {problem.strerror or problem}") from None
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell's `>` writes it
    if b"\0" in data[:4096] and not wide:
        raise UserError(f"{file} is no text; `nemo-ada whatif --help` lists what can be read")
    text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
    start = text.lstrip().partition("\n")[0]
    try:
        parse_line(start.encode())
    except ValueError:
        return text
    return None


def _read_lines(file: Path) -> Numbered:
    """Read what `run.data_files` reads. A damaged last line, which a killed run leaves, is left out."""
    damage, number = list[str](), 0
    spreadsheet = file.suffix.lower() in (".csv", ".tsv")
    for number, record in data_files.read_records(file, lambda line, why: damage.append(f"{file}, line {line}: {why}")):
        if damage:
            raise UserError(damage[0])
        yield number, {name: _read_cell(value) for name, value in record.items()} if spreadsheet else record
    if len(damage) > (number > 0):
        raise UserError(damage[0])


def _read_cell(text: Any) -> Any:
    """Return the number or truth value that a cell of a CSV file has, else its text.

    A spreadsheet in much of Europe writes 0,5 for 0.5. Behind three digits a comma may part thousands, as in 1,234.
    """
    if not isinstance(text, str):
        return text
    plain = text.strip()
    if plain in ("", "True", "False", "true", "false", "TRUE", "FALSE"):
        return {"": None, "t": True, "f": False}[plain[:1].lower()]
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    percent = plain.endswith("%")
    try:
        return float(plain.removesuffix("%").strip().replace(",", ".")) / (100.0 if percent else 1.0)
    except ValueError:
        return text


def _read_events(file: Path) -> Iterator[Record]:
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
