"""Read logs of rollouts from files and folders into columns. Axes: N responses, G groups, U prompts.

A group is what one training step drew for one prompt. Where a log has no steps, a file takes the place of a step.
`run.data_files` reads the files, and pandas reads CSV and finds the groups.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.formats import LoggedResponse, Reader, UnreadableRecord, reader_for
from nemo_ada.run import data_files
from nemo_ada.run.files import MAX_TEXT, json_of, read_bounded
from nemo_ada.run.json_lines import parse_line

if TYPE_CHECKING:
    import pandas as pd

PARQUET, CSV = ".parquet", ".csv"
TABLE = ".table.json"  # a table of Weights & Biases
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", PARQUET, TABLE)
SKIPPED = re.compile(
    r"(val_data_step\d+|metrics|evaluations|config_changes|problems|dataset|rejected|pass_rates|.*_metadata)"
    r"\.jsonl(\.gz)?|\..*"
)
"""Files of a folder that hold no training rollouts. A file that is named on the command line is always read."""
STEP_IN_PATH = re.compile(r"(?:train_data_step|step_)(\d{1,15})(?!\d)")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The responses of some logs.

    Attributes:
        group_N: Group of each response. Responses have the order of the log.
        reward_N: Reward. NaN without a label.
        right_N: Whether the answer is right, 0 or 1, where the log says so beside the reward. Else NaN.
        tokens_N: Generated tokens, or NaN.
        prompt_G: Prompt of each group.
        step_G: Position of the group's step among all steps.
        names_U: The beginning of each prompt, or its id.
        forms: Forms of the records.
        notes: What a reader must know about the logs.
        counted: Whether the tokens were counted. Otherwise some come from the length of a text.
    """

    group_N: IntArray
    reward_N: FloatArray
    right_N: FloatArray
    tokens_N: FloatArray
    prompt_G: IntArray
    step_G: IntArray
    names_U: tuple[str, ...]
    forms: tuple[str, ...]
    notes: tuple[str, ...]
    counted: bool

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.step_G.max()) + 1

    def correct_N(self, threshold: float) -> BoolArray:
        """Return which responses count as correct: what the log says, else those with a reward above the threshold."""
        return np.where(np.isnan(self.right_N), self.reward_N > threshold, self.right_N == 1.0)


def read_logs(paths: Sequence[Path], columns: Mapping[str, str] | None = None) -> Rollouts:
    """Read the rollouts of files and folders.

    Args:
        paths: Files, or folders that are searched for files.
        columns: What a response needs (`formats.NAMES`) -> the user's field for it.

    Raises:
        UserError: A file cannot be read, or a line of it is no rollout. The message names file and line.
    """
    forms, notes = dict[str, None](), list[str]()
    read: list[tuple[int, int, LoggedResponse]] = []  # number of the argument, number of the file
    for log, path in enumerate(paths):
        last_batch = ""
        for file in _files(path):
            number, found = len(read), _responses(file, columns or {}, forms, notes)
            if file.suffix == PARQUET or file.name.endswith(TABLE):
                batch = repr([(one.prompt, one.reward, one.tokens) for one in found])
                if batch == last_batch:  # TRL writes the last batch again where it logs more often than it draws
                    notes.append(f"{file} repeats the batch of the file before it, so it was left out")
                    continue
                last_batch = batch
            read += [(log, number, one) for one in found]
    if not read:
        raise UserError(
            f"{', '.join(map(str, paths))[:200]}: no training rollouts are in it; `nemo-ada whatif --help` lists what "
            "can be read"
        )
    return _rollouts(read, tuple(forms), notes)


def _rollouts(read: Sequence[tuple[int, int, LoggedResponse]], forms: tuple[str, ...], notes: list[str]) -> Rollouts:
    """Find the groups, prompts and steps of responses."""
    import pandas as pd

    frame = pd.DataFrame(
        [(log, file, one.step, one.prompt, one.name, one.group, one.key, one.reward, one.right, one.tokens, one.counted)
         for log, file, one in read],
        columns=["log", "file", "step", "prompt", "name", "number", "key", "reward", "right", "tokens", "counted"],
    )  # fmt: skip
    copy_N = (frame["key"] != "") & frame.duplicated(["log", "key"])
    if copy_N.any():
        notes.append(f"{copy_N.sum():,} responses stand in several files (`all` and `effective`) and count once")
        frame = frame[~copy_N]
    frame["unit"] = frame["file"].where(frame["step"].isna(), -1)  # what takes the place of a step
    frame["step"] = frame["step"].astype(float).fillna(-1.0)
    unit = ["log", "unit", "step"]
    frame["group"] = frame.groupby([*unit, "prompt", "number"], sort=False).ngroup()
    spread = int((frame.groupby("group")["file"].nunique() > 1).sum())
    if spread:
        notes.append(
            f"{spread:,} groups have responses from several files, because these name the same step and "
            "prompt. If the files are of different runs, give each file or folder as an argument of its own"
        )
    firsts = frame.drop_duplicates("group")
    reward_N, right_N, tokens_N = (frame[key].to_numpy(np.float64) for key in ("reward", "right", "tokens"))
    return Rollouts(
        frame["group"].to_numpy(np.int64), reward_N, right_N, tokens_N,
        pd.factorize(firsts["prompt"])[0].astype(np.int64), firsts.groupby(unit).ngroup().to_numpy(np.int64),
        tuple(firsts.drop_duplicates("prompt")["name"]), forms, tuple(notes),
        bool((frame["counted"] | frame["tokens"].isna()).all()),
    )  # fmt: skip


def _responses(
    file: Path, columns: Mapping[str, str], forms: dict[str, None], notes: list[str]
) -> list[LoggedResponse]:
    """Read a file, whose first record chooses the reader. A damaged last line, which a killed run leaves, is a note."""
    step = _step_of(file)
    reader: Reader | None = None
    found: list[LoggedResponse] = []
    damage = ""
    for number, raw in _records(file):
        if damage:
            raise UserError(damage)
        where = f"{file}, {'line' if isinstance(raw, bytes) else 'row'} {number}"
        try:
            record = parse_line(raw) if isinstance(raw, bytes) else dict(raw)
        except ValueError as problem:
            damage = f"{where}: {problem}"
            continue
        try:
            if reader is None:
                form, reader = reader_for(record, columns)
                forms[form] = None
            found += [one if one.step is not None else one.at(step) for one in reader(record)]
        except UnreadableRecord as problem:
            raise UserError(f"{where}: {problem}") from None
        except RecursionError:
            raise UserError(f"{where}: nested too deeply") from None
    if damage and not found:
        raise UserError(damage)
    if damage:
        notes.append(f"{damage}; this last line is cut off or damaged, and was left out")
    return found


def _records(file: Path) -> Iterator[tuple[int, data_files.Raw]]:
    """Read the records of a file: a table of W&B or of a spreadsheet, or what `run.data_files` reads."""
    if file.suffix == CSV:
        table = csv_table(file, decoded(read_bounded(file, MAX_TEXT)))
        cells = table.astype(object).where(table.notna(), None).to_dict("records")
        yield from enumerate(({str(name): percent(cell) for name, cell in row.items()} for row in cells), start=1)
        return
    found = _json(file) if file.suffix == ".json" else None
    if isinstance(found, dict) and isinstance(found.get("columns"), list) and isinstance(found.get("data"), list):
        names = [str(name) for name in found["columns"]]
        rows = [row for row in found["data"] if isinstance(row, list)]
        yield from enumerate((dict(zip(names, row, strict=False)) for row in rows), start=1)
    else:
        yield from data_files.rows(file)


def _json(file: Path) -> Any:
    try:
        return json_of(file)
    except ValueError:
        return None


def _step_of(file: Path) -> int | None:
    """Return the step that a path names. None where it names none."""
    found = STEP_IN_PATH.findall(str(file))
    return int(found[-1]) if found else None


def _files(path: Path) -> list[Path]:
    """Return the files of a path, in the order of their numbers."""
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if is_rollout_file(file)] or [
        file for file in path.rglob(f"*{CSV}") if file.is_file() and not file.name.startswith(".")
    ]  # beside other files, tables are curves, reports and the like
    if not found:
        raise UserError(f"{path} holds no file that ends in {', '.join((*SUFFIXES, CSV))}")
    return sorted(found, key=lambda file: [int(p) if p.isdigit() else p for p in re.split(r"([0-9]+)", str(file))])


def is_rollout_file(file: Path) -> bool:
    """Return whether the name of a file in a folder is that of rollouts."""
    return file.name.endswith(SUFFIXES) and not SKIPPED.fullmatch(file.name) and file.is_file()


def decoded(data: bytes) -> str:
    """Return a text. Windows writes UTF-16 with a mark in front, such as PowerShell's `>`."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", "replace")


def csv_table(file: Path, text: str, rows: int | None = None) -> pd.DataFrame:
    """Read the rows of a CSV text. A spreadsheet in much of Europe writes `;` between cells and 0,5 for 0.5.

    Args:
        file: The file, for messages.
        text: The text.
        rows: How many rows are read at most. None reads all.
    """
    import pandas as pd

    between = max(",;\t", key=text.partition("\n")[0].count)
    try:
        return pd.read_csv(
            io.StringIO(text), sep=between, decimal="," if between == ";" else ".", nrows=rows, low_memory=False
        )
    except ValueError as damage:  # EmptyDataError and ParserError as well
        raise UserError(f"{file} is no CSV file, or is damaged: {damage}") from None


def percent(value: Any) -> Any:
    """Return 57% as 0.57, and anything else as it is."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return value
    try:
        return float(value.strip().removesuffix("%")) / 100.0
    except ValueError:
        return value
