"""Read the rows of a user's data: a file, a pattern of several, or a folder as it was downloaded from a hub.

A file holds JSON lines, one JSON array or table, CSV, Parquet or Arrow. JSON may be packed with gzip or zstd.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, open_to_read, read_bounded
from nemo_ada.run.json_lines import MAX_LINE, OnDamage, Raw, Record, number_lines, parse_lines, read_bounded_lines

PACKED = (".gz", ".zst")
TEXT_SUFFIXES = (".jsonl", ".json", ".ndjson")
TABLES = (".parquet", ".arrow", ".csv", ".tsv")
SUFFIXES = (*TEXT_SUFFIXES, *(text + packed for text in TEXT_SUFFIXES for packed in PACKED), *TABLES)
FORMS = (
    "use a .jsonl, .json, .csv, .parquet or .arrow file, one of the first two with .gz or .zst, a pattern such as "
    "'data/train-*.parquet', or a folder of such files"
)
TABLE_ROWS = 1024
MAX_SHARDS = 10_000
SEPARATORS = (",", ";", "\t", "|")
ARRAYS = ("data", "rows", "records", "examples", "instances", "items", "problems", "questions", "train", "test")
"""Names of the array in a file that is one JSON object, in lower case."""
SPLITS = ("train", "training", "test", "validation", "valid", "val", "dev", "eval")
_NAME = re.compile(r"(?=.*[^\W\d])[\w .:/()%#@-]{1,64}")
"""A name in the first row of an array of arrays. Otherwise that row is a record, and nobody says what its parts are."""
_SPLIT = re.compile(rf"(?:^|[/._-])({'|'.join(SPLITS)})(?=[/._-]|$)")
_NO_DATA = re.compile(r"(?:dataset_infos?|dataset_dict|state|index|.*config.*)\.json|cache-.*\.arrow|\..*")


def is_data_file(path: Path) -> bool:
    """Return whether the name of a file ends as those that `read_rows` reads."""
    return path.name.lower().endswith(SUFFIXES)


def list_shards(path: Path, split: str = "train") -> list[Path]:
    """Return the files of a data set: the file itself, those of a pattern, or those of a folder's split.

    Raises:
        UserError: There is no such file, or the folder has other splits only.
    """
    if path.is_file() or (is_data_file(path) and not path.exists() and "*" not in path.name):
        return [path]
    if "*" in path.name and path.parent.is_dir():
        found = sorted(file for file in path.parent.glob(path.name) if file.is_file())
        if not found:
            raise UserError(f"{path} matches no file")
        return found
    if not path.is_dir():
        raise UserError(f"{path} is no file and no folder; {FORMS}")
    found = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if is_data_file(file) and not hidden and not _NO_DATA.fullmatch(file.name) and file.is_file():
            found.append(file)
        if len(found) > MAX_SHARDS:
            raise UserError(f"{path} has more than {MAX_SHARDS:,} data files; name a pattern of some")
    # The last word counts: data/train/test.parquet is a file of the split test.
    named = {file: _SPLIT.findall(str(file.relative_to(path)).lower()) for file in found}
    chosen = [file for file in found if named[file][-1:] == [split]]
    if not chosen and any(named.values()):
        others = ", ".join(sorted({names[-1] for names in named.values() if names}))
        raise UserError(f"{path} has no files of the split {split!r}, but of {others}; name the files that you mean")
    if not chosen and not found:
        raise UserError(f"{path} holds no data file; {FORMS}")
    return chosen or found


def read_rows(path: Path, split: str = "train") -> Iterator[tuple[int, Raw]]:
    """Read data as a stream, one file after the other.

    Yields:
        The number of a line, or of an array's element or a table's row, counted from 1 over all files, and the line's
        bytes or the record.

    Raises:
        UserError: A file cannot be read or is damaged.
    """
    before = 0
    for file in list_shards(path, split):
        number = 0
        for number, raw in _read_file(file):
            yield before + number, raw
        before += number


def _read_file(path: Path) -> Iterator[tuple[int, Raw]]:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        yield from _read_delimited(path) if suffix in (".csv", ".tsv") else _read_table(path)
        return
    try:
        if suffix not in PACKED and (array := _read_array(path)) is not None:
            yield from enumerate(array, start=1)
            return
        with _open_unpacked(path) as file:
            yield from number_lines(read_bounded_lines(file))
    except (OSError, EOFError, zlib.error) as problem:
        raise UserError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


@contextmanager
def _open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    with open_to_read(path) as raw:
        if path.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(raw, compression="zstd") as stream, io.BufferedReader(stream) as file:
                yield cast(IO[bytes], file)
        elif path.suffix.lower() == ".gz":
            yield cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        else:
            yield raw


def read_records(path: Path, on_damage: OnDamage, split: str = "train") -> Iterator[tuple[int, Record]]:
    """Read the records of a data file, or of the files of a pattern or a folder.

    Args:
        path: The file, pattern or folder.
        on_damage: Called with the number of a line that holds no object, and with the reason.
        split: The split of a folder.

    Yields:
        The number of the line, and its record.

    Raises:
        UserError: The file cannot be read.
    """
    return parse_lines(read_rows(path, split), on_damage)


def _read_array(path: Path) -> list[Record] | None:
    """Return the records of a file that is one JSON value: an array, or where its name ends in .json also an object.

    None for a file of lines.

    Raises:
        UserError: The file is an array over several lines, and nobody can say what the parts of its rows are.
    """
    content, lines = _read_json_value(path)
    if not isinstance(content, list):
        return None if content is None else _records_of_object(content)
    found = _records_of(content)
    if found is None and lines > 1:
        raise UserError(
            f"{path} is a JSON array whose parts are not objects; write an object for each record, or a list for each "
            'record below a list of their names, such as [["problem", "answer"], ["2+3=", "5"]]'
        )
    return found


def _read_json_value(path: Path) -> tuple[list[Any] | dict[str, Any] | None, int]:
    """Return the array or object that a whole file is, or None for a file of lines, and the number of its lines, or 2.

    A file of lines is not read to its end, because it may be larger than memory.
    """
    with open_to_read(path) as file:
        first = file.readline(MAX_LINE).lstrip(b"\xef\xbb\xbf \t\r\n")
        more = file.readline(MAX_LINE).strip()
    start = first or more
    if not start.startswith((b"[", b"{")):
        return None, 0
    if start.startswith(b"{") and (path.suffix.lower() != ".json" or (more and _is_json(first))):
        return None, 0
    try:
        content = json.loads(read_bounded(path, MAX_TEXT).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None, 0
    return content, 2 if more else 1


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def is_lines_or_objects(path: Path) -> bool:
    """Return whether a JSON file has a record per line, or is an array of objects, as other programs expect it."""
    content, _ = _read_json_value(path)
    if isinstance(content, list):
        return all(isinstance(row, dict) for row in content)
    return content is None or _records_of_object(content) == [content]


def _records_of(content: list[Any]) -> list[Record] | None:
    """Return the records of an array of objects, of arrays of objects, or of rows below a row of names.

    An array of conversations has a list of messages in each place, which become the column `messages`.
    """
    if not content:
        return None
    if all(isinstance(row, dict) for row in content):
        return content
    if not all(isinstance(row, list) for row in content):
        return None
    if all(isinstance(part, dict) for row in content for part in row):
        if all({"content", "value"} & part.keys() for row in content for part in row):
            return [{"messages": row} for row in content]
        return [part for row in content for part in row]
    names = content[0]
    if all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) and len(content) > 1:
        return [dict(zip(names, row, strict=False)) for row in content[1:]]
    return None


def _records_of_object(content: dict[str, Any]) -> list[Record]:
    """Return the records of a table that is one JSON object.

    Weights & Biases and pandas write `columns` and `data`. Others write a list or an object with numbers per column, a
    record per id, or an array below one name, such as `data`, beside facts about the file. Anything else is one record.
    """
    names, rows = content.get("columns"), content.get("data")
    if isinstance(names, list) and isinstance(rows, list):
        return [dict(zip(map(str, names), row, strict=False)) for row in rows if isinstance(row, list)]
    values = list(content.values())
    sizes = {len(value) if isinstance(value, list) else 0 for value in values}
    if len(values) > 1 and len(sizes) == 1 and sizes.pop() > 1:
        return [dict(zip(content, row, strict=True)) for row in zip(*values, strict=True)]
    if len(values) > 1 and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        if all(name.isdigit() for name in values[0]):
            return [{column: value[name] for column, value in content.items()} for name in values[0]]
        return [{"id": name, **value} for name, value in content.items()]
    arrays = [
        value for name, value in content.items()
        if name.lower() in ARRAYS and isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    ]  # fmt: skip
    return list(arrays[0]) if len(arrays) == 1 else [content]


def _read_delimited(path: Path) -> Iterator[tuple[int, Raw]]:
    """Read a CSV or TSV file, whose first row has the names.

    A spreadsheet in much of Europe writes `;` between cells, and a table that was copied has tabs. So the sign that
    stands most often in the row of names is the one, whatever the suffix says.
    """
    data = read_bounded(path, MAX_TEXT)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell's `>` writes it
    text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
    head = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    between = max((usual, *SEPARATORS), key=head.count)
    try:
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=between)
        for number, row in enumerate(table, start=1):
            yield number, {str(name).strip(): value for name, value in row.items()}
    except csv.Error as damage:
        raise UserError(f"{path} is no CSV file, or is damaged: {damage}") from None


def _read_table(path: Path) -> Iterator[tuple[int, Raw]]:
    """Read a Parquet file, or an Arrow file of `datasets`."""
    arrow = path.suffix.lower() == ".arrow"
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path}: Parquet and Arrow need the package pyarrow; install it or convert to JSONL") from None
    number = 0
    # Damage can raise almost any of these, some only while values are converted.
    damage = (pyarrow.ArrowException, OSError, ValueError, ArithmeticError, LookupError, MemoryError)
    try:
        with parquet.ParquetFile(path) if not arrow else pyarrow.memory_map(str(path)) as file:
            for batch in _read_batches(file) if arrow else file.iter_batches(batch_size=TABLE_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except damage as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0]
        kind = "Arrow" if arrow else "Parquet"
        raise UserError(f"{path} is no {kind} file, or is damaged after row {number}: {why}") from None


def _read_batches(file: Any) -> Iterator[Any]:
    """Return the batches of an Arrow stream, as `datasets` writes them, or of an Arrow file, which has an index."""
    import pyarrow

    try:
        yield from pyarrow.ipc.open_stream(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        indexed = pyarrow.ipc.open_file(file)
        yield from (indexed.get_batch(i) for i in range(indexed.num_record_batches))
