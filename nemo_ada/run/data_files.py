"""Read the rows of a user's data: a file, a pattern of several, or a folder as it was downloaded from a hub.

A file holds JSON lines, one JSON array, CSV, Parquet or Arrow. JSON may be packed with gzip or zstd.
"""

from __future__ import annotations

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
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded
from nemo_ada.run.json_lines import OnDamage, Raw, Record, bounded, numbered, parsed

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
SPLITS = ("train", "training", "test", "validation", "valid", "val", "dev", "eval")
_SPLIT = re.compile(rf"(?:^|[/._-])({'|'.join(SPLITS)})(?=[/._-]|$)")
_NO_DATA = re.compile(r"(?:dataset_infos?|dataset_dict|state|index|.*config.*)\.json|cache-.*\.arrow|\..*")


def is_data_file(path: Path) -> bool:
    """Return whether the name of a file ends as those that `rows` reads."""
    return path.name.lower().endswith(SUFFIXES)


def shards(path: Path, split: str = "train") -> list[Path]:
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
    named = {file: _SPLIT.findall(str(file.relative_to(path)).lower()) for file in found}
    chosen = [file for file in found if named[file][-1:] == [split]]
    if not chosen and any(named.values()):
        others = ", ".join(sorted({names[-1] for names in named.values() if names}))
        raise UserError(f"{path} has no files of the split {split!r}, but of {others}; name the files that you mean")
    if not chosen and not found:
        raise UserError(f"{path} holds no data file; {FORMS}")
    return chosen or found


def rows(path: Path, split: str = "train") -> Iterator[tuple[int, Raw]]:
    """Read data as a stream, one file after the other.

    Yields:
        The number of a line, or of an array's element or a table's row, counted from 1 over all files, and the line's
        bytes or the record.

    Raises:
        UserError: A file cannot be read or is damaged.
    """
    before = 0
    for file in shards(path, split):
        number = 0
        for number, raw in _rows(file):
            yield before + number, raw
        before += number


def _rows(path: Path) -> Iterator[tuple[int, Raw]]:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        yield from _delimited(path) if suffix in (".csv", ".tsv") else _table(path)
        return
    try:
        if suffix not in PACKED and (array := _array(path)) is not None:
            yield from enumerate(array, start=1)
            return
        with _opened(path) as file:
            yield from numbered(bounded(file))
    except (OSError, EOFError, zlib.error) as problem:
        raise UserError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with opened_to_read(path) as raw:
        if path.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(raw, compression="zstd") as stream, io.BufferedReader(stream) as file:
                yield cast(IO[bytes], file)
        elif path.suffix.lower() == ".gz":
            yield cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        else:
            yield raw


def records(path: Path, on_damage: OnDamage, split: str = "train") -> Iterator[tuple[int, Record]]:
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
    return parsed(rows(path, split), on_damage)


def _array(path: Path) -> list[Record] | None:
    """Return the records of a file that is one JSON array: of objects, or of rows below a row of names.

    None for any other file.
    """
    with opened_to_read(path) as file:
        if not file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return None
    try:
        content = json.loads(read_bounded(path, MAX_TEXT).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, list) or not content:
        return None
    if all(isinstance(row, dict) for row in content):
        return content
    rows_of_names = all(isinstance(row, list) for row in content) and all(isinstance(name, str) for name in content[0])
    if rows_of_names and len(content) > 1:
        return [dict(zip(content[0], row, strict=False)) for row in content[1:]]
    return None


def _delimited(path: Path) -> Iterator[tuple[int, Raw]]:
    """Read a CSV or TSV file, whose first row has the names."""
    text = read_bounded(path, MAX_TEXT).decode("utf-8-sig", "replace")
    try:
        table = csv.DictReader(io.StringIO(text), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        yield from enumerate(({str(name): value for name, value in row.items()} for row in table), start=1)
    except csv.Error as damage:
        raise UserError(f"{path} is no CSV file, or is damaged: {damage}") from None


def _table(path: Path) -> Iterator[tuple[int, Raw]]:
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
            for batch in _batches(file) if arrow else file.iter_batches(batch_size=TABLE_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except damage as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0]
        kind = "Arrow" if arrow else "Parquet"
        raise UserError(f"{path} is no {kind} file, or is damaged after row {number}: {why}") from None


def _batches(file: Any) -> Iterator[Any]:
    """Return the batches of an Arrow stream, as `datasets` writes them, or of an Arrow file, which has an index."""
    import pyarrow

    try:
        yield from pyarrow.ipc.open_stream(file)
    except pyarrow.ArrowInvalid:
        file.seek(0)
        indexed = pyarrow.ipc.open_file(file)
        yield from (indexed.get_batch(i) for i in range(indexed.num_record_batches))
