"""Read logs of rollouts from files and folders into columns. Axes: N responses, G groups, U prompts.

A group is what one training step drew for one prompt. Where a log has no steps, a file takes the place of a step.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import math
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.formats import LoggedResponse, Reader, UnreadableRecord, digest, reader_for
from nemo_ada.run.data_files import rows
from nemo_ada.run.files import MAX_TEXT, json_of, opened_to_read, read_bounded
from nemo_ada.run.json_lines import Record, bounded, numbered, parse_line

PARQUET, CSV = ".parquet", ".csv"
TABLE = ".table.json"  # a table of Weights & Biases
SUFFIXES = (".jsonl", ".ndjson", PARQUET, TABLE)
SKIPPED = re.compile(
    r"(val_data_step\d+|metrics|evaluations|config_changes|problems|dataset|rejected|pass_rates|.*_metadata)\.jsonl|\..*"
)
"""Files of a folder that hold no training rollouts. A file that is named on the command line is always read."""
DECIMAL_COMMA = re.compile(r"(?<![^;\"\s])(-?\d+),(\d+(?:[eE][-+]?\d+)?)(?![^;\"\s])")  # a whole cell
STEP_IN_PATH = re.compile(r"(?:train_data_step|step_)(\d{1,15})(?!\d)")
GZIP, GZIP_MAGIC = ".gz", b"\x1f\x8b"
OFTEN = 10_000  # responses between two words about the progress
MAX_FILES = 100_000
MAX_RESPONSES = 20_000_000


def silent(text: str) -> None:
    """Say nothing: the progress of a caller that wants none."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The responses of some logs.

    Attributes:
        group_N: Group of each response. Responses have the order of the log.
        reward_N: Reward. NaN without a label.
        tokens_N: Generated tokens, or NaN.
        seconds_N: Seconds of the generation, or NaN.
        prompt_G: Prompt of each group.
        step_G: Position of the group's step among all steps.
        names_U: The beginning of each prompt, or its id.
        forms: Forms of the records.
        notes: What a reader must know about the logs.
        counted: Whether the tokens were counted. Otherwise some come from the length of a text.
    """

    group_N: IntArray
    reward_N: FloatArray
    tokens_N: FloatArray
    seconds_N: FloatArray
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


@dataclass(slots=True)
class _Columns:
    """Responses while they are read."""

    group: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    groups: dict[tuple[Any, ...], int] = field(default_factory=dict)
    prompts: dict[bytes, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    prompt_of: list[int] = field(default_factory=list)
    unit_of: list[tuple[int, int, int]] = field(default_factory=list)
    file_of: list[int] = field(default_factory=list)
    spread: set[int] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    forms: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    counted: bool = True
    copies: int = 0
    say: Callable[[str], None] = silent

    def add_lines(self, file: Path, log: int, columns: Mapping[str, str]) -> None:
        """Read a JSON-lines file. A damaged last line, which a killed run leaves, becomes a note."""
        self.files += 1
        step, before = _step_of(file), len(self.group)
        reader: Reader | None = None
        damage: tuple[int, str] | None = None
        for number, line in _lines(file):
            if damage is not None:
                break
            try:
                record = parse_line(line)
            except ValueError as problem:
                damage = (number, str(problem))
                continue
            reader, responses = self._responses(record, f"{file}, line {number}", reader, columns)
            for response in responses:
                self.add(response, log, step)
        else:
            if damage is not None and len(self.group) > before:
                self.notes.append(f"{file}: the last line ({damage[0]}) is cut off or damaged, and was left out")
                return
        if damage is not None:
            raise UserError(f"{file}, line {damage[0]}: {damage[1]}")

    def add_table(self, file: Path, log: int, columns: Mapping[str, str], last_batch: bytes) -> bytes:
        """Read a Parquet file, unless it repeats the batch of the file before. Returns a digest of the batch.

        TRL writes the last batch again where it logs more often than it draws.
        """
        self.files += 1
        reader: Reader | None = None
        batch: list[LoggedResponse] = []
        read: Callable[[Path], Iterable[tuple[int, Any]]] = {CSV: _csv_rows}.get(file.suffix, _json_rows)
        for number, row in rows(file) if file.suffix == PARQUET else read(file):
            record = row if isinstance(row, dict) else {}
            reader, responses = self._responses(record, f"{file}, row {number}", reader, columns)
            batch += responses
        summary = hashlib.blake2b(digest_size=16)
        for response in batch:
            summary.update(response.prompt + repr((response.reward, response.tokens)).encode())
        if summary.digest() == last_batch:
            self.notes.append(f"{file} repeats the batch of the file before it, so it was left out")
            return last_batch
        step = _step_of(file)
        for response in batch:
            self.add(response, log, step)
        return summary.digest()

    def _responses(
        self, record: Record, where: str, reader: Reader | None, columns: Mapping[str, str]
    ) -> tuple[Reader, list[LoggedResponse]]:
        """Return the responses of a record, and the reader of its file, which the first record chooses."""
        try:
            if reader is None:
                form, reader = reader_for(record, columns)
                self.forms[form] = None
            return reader, list(reader(record))
        except UnreadableRecord as problem:
            raise UserError(f"{where}: {problem}") from None
        except RecursionError:
            raise UserError(f"{where}: nested too deeply") from None

    def add(self, response: LoggedResponse, log: int, step: int | None) -> None:
        """Append a response, unless a copy of it was read before.

        Args:
            response: The response.
            log: Number of the argument on the command line. Two logs may have the same steps.
            step: Step that the file's name gives.
        """
        if response.key:
            key = digest([log, response.key])
            if key in self.keys:
                self.copies += 1
                return
            self.keys.add(key)
        step = step if response.step is None else response.step
        unit = (log, -1, step) if step is not None else (log, self.files, -1)
        group = self.groups.setdefault((*unit, response.prompt, response.group), len(self.groups))
        if group == len(self.prompt_of):
            prompt = self.prompts.setdefault(response.prompt, len(self.prompts))
            if prompt == len(self.names):
                self.names.append(response.name)
            self.prompt_of.append(prompt)
            self.unit_of.append(unit)
            self.file_of.append(self.files)
        if self.file_of[group] != self.files:
            self.spread.add(group)
        self.group.append(group)
        if len(self.group) % OFTEN == 0:
            self.say(f"read {len(self.group):,} responses")
        self.reward.append(response.reward)
        self.tokens.append(response.tokens)
        self.seconds.append(response.seconds)
        self.counted = self.counted and (response.counted or math.isnan(response.tokens))


def read_logs(
    paths: Sequence[Path], columns: Mapping[str, str] | None = None, say: Callable[[str], None] = silent
) -> Rollouts:
    """Read the rollouts of files and folders.

    Args:
        paths: Files, or folders that are searched for files.
        columns: What a response needs (`formats.NAMES`) -> the user's field for it.
        say: Is told how far the reading is.

    Raises:
        UserError: A file cannot be read, or a line of it is no rollout. The message names file and line.
    """
    read = _Columns(say=say)
    for log, path in enumerate(paths):
        last_batch = b""
        for file in _files(path):
            if file.suffix in (PARQUET, CSV, ".json"):
                last_batch = read.add_table(file, log, columns or {}, last_batch)
            else:
                read.add_lines(file, log, columns or {})
            if len(read.group) > MAX_RESPONSES:
                raise UserError(f"the logs have more than {MAX_RESPONSES:,} responses; give some of their files")
    if not read.group:
        raise UserError(
            f"{', '.join(map(str, paths))[:200]}: no training rollouts are in it; `nemo-ada whatif --help` lists what "
            "can be read"
        )
    if read.copies:
        read.notes.append(f"{read.copies:,} responses stand in several files (`all` and `effective`) and count once")
    if read.spread:
        read.notes.append(
            f"{len(read.spread):,} groups have responses from several files, because these name the same step and "
            "prompt. If the files are of different runs, give each file or folder as an argument of its own"
        )
    unit_of = {unit: place for place, unit in enumerate(sorted(set(read.unit_of)))}
    return Rollouts(
        np.array(read.group, np.int64), np.array(read.reward), np.array(read.tokens), np.array(read.seconds),
        np.array(read.prompt_of, np.int64), np.array([unit_of[unit] for unit in read.unit_of], np.int64),
        tuple(read.names), tuple(read.forms), tuple(read.notes), read.counted,
    )  # fmt: skip


def _step_of(file: Path) -> int | None:
    """Return the step that a path names. None where it names none."""
    found = STEP_IN_PATH.findall(str(file))
    return int(found[-1]) if found else None


def _files(path: Path) -> list[Path]:
    """Return the files of a path, in the order of their numbers."""
    try:
        mode = path.stat().st_mode
    except ValueError as error:
        raise UserError(f"{str(path)[:200]!r} is no path: {error}") from None
    if stat.S_ISREG(mode):
        return [path]
    if not stat.S_ISDIR(mode):
        raise UserError(f"{path} is neither a file nor a folder")
    found: list[Path] = []
    tables: list[Path] = []  # beside other files they are curves, reports and the like
    for file in path.rglob("*"):
        if is_rollout_file(file):
            found.append(file)
        elif file.suffix == CSV and file.is_file() and not file.name.startswith("."):
            tables.append(file)
        if max(len(found), len(tables)) > MAX_FILES:
            raise UserError(f"{path} has more than {MAX_FILES:,} files with rollouts; give a smaller folder")
    found = found or tables
    if not found:
        raise UserError(f"{path} holds no file that ends in {', '.join((*SUFFIXES, CSV))}")
    return sorted(found, key=lambda file: [int(part) if part.isdigit() else part for part in _parts(str(file))])


def csv_table(text: str) -> csv.DictReader[str]:
    """Return the rows of a CSV text. A spreadsheet in much of Europe writes `;` between cells and 0,5 for 0.5."""
    between = max(",;\t", key=text.partition("\n")[0].count)
    if between == ";":
        text = DECIMAL_COMMA.sub(r"\1.\2", text)
    return csv.DictReader(io.StringIO(text), delimiter=between)


def decoded(data: bytes) -> str:
    """Return a text. Windows writes UTF-16 with a mark in front, such as PowerShell's `>`."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", "replace")


def percent(value: Any) -> Any:
    """Return 57% as 0.57, and anything else as it is."""
    number = value.strip().removesuffix("%") if isinstance(value, str) and value.strip().endswith("%") else None
    return value if number is None else float(number) / 100.0


def _csv_rows(file: Path) -> Iterator[tuple[int, Record]]:
    """Read a CSV file with a response in each row. Cells that are numbers become numbers."""
    try:
        for number, row in enumerate(csv_table(decoded(read_bounded(file, MAX_TEXT))), start=1):
            yield number, {name: _cell(value) for name, value in row.items() if isinstance(name, str)}
    except csv.Error as damage:
        raise UserError(f"{file} is no CSV file, or is damaged: {damage}") from None


def _cell(value: str | None) -> Any:
    """Return the value of a cell: a number, a truth value, a text, or None where it is empty."""
    if value is None or not value.strip():
        return None
    if value in ("True", "False", "true", "false"):
        return value.lower() == "true"
    try:
        return float(percent(value))
    except ValueError:
        return value


def _json_rows(file: Path) -> Iterator[tuple[int, Record]]:
    """Read a JSON file: an array of objects, or a table of Weights & Biases, which has names of columns and rows."""
    try:
        found = json_of(file)
    except ValueError as problem:
        raise UserError(f"{file} is no JSON, or is damaged: {problem}") from None
    if isinstance(found, dict) and isinstance(found.get("columns"), list) and isinstance(found.get("data"), list):
        names = [str(name) for name in found["columns"]]
        found = [dict(zip(names, row, strict=False)) for row in found["data"] if isinstance(row, list)]
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise UserError(
            f"{file} is neither an array of objects, nor a table of W&B (`columns` and `data`), nor TRL's "
            "trainer_state.json (`log_history`); `nemo-ada whatif --help` lists what can be read"
        )
    yield from enumerate(found, start=1)


def is_rollout_file(file: Path) -> bool:
    """Return whether the name of a file in a folder is that of rollouts."""
    name = file.name.removesuffix(GZIP)
    wanted = name.endswith(SUFFIXES) and (name == file.name or not name.endswith((PARQUET, TABLE)))
    return wanted and not SKIPPED.fullmatch(name) and file.is_file()


def _is_gzip(file: BinaryIO) -> bool:
    """Return whether a file begins as gzip's do. The file stays at its start."""
    magic = file.read(len(GZIP_MAGIC))
    file.seek(0)
    return magic == GZIP_MAGIC


def _parts(name: str) -> list[str]:
    """Return text and numbers in turn, so that step 10 follows step 9."""
    return re.split(r"([0-9]+)", name)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers. A file may be compressed by gzip."""
    with opened_to_read(path) as raw, gzip.open(raw) if _is_gzip(raw) else raw as file:
        try:
            yield from numbered(bounded(cast(IO[bytes], file)))
        except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
            raise UserError(f"{path}: the gzip file is damaged or cut off ({damage}); unpack it as far as it goes "
                            f"with `zcat {path.name} > log.jsonl`") from None  # fmt: skip
