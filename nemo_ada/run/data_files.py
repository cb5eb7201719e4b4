"""Read the rows of a user's data file: JSON lines, one JSON array, either of them with gzip, or Parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded
from nemo_ada.run.json_lines import OnDamage, Record, bounded, numbered, parse_line

JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
SUFFIXES = (*JSON_SUFFIXES, *(f"{suffix}.gz" for suffix in JSON_SUFFIXES), ".parquet")
FORMS = "use a .jsonl, .json or .parquet file, or one of the first two with .gz"
PARQUET_ROWS = 1024

Raw = bytes | Mapping[str, Any]


def is_data_file(path: Path) -> bool:
    """Return whether the name of a file ends as those that `rows` reads."""
    return path.name.endswith(SUFFIXES)


def rows(path: Path) -> Iterator[tuple[int, Raw]]:
    """Read a data file as a stream.

    Yields:
        The number of a line, or of an array's element or a table's row, counted from 1, and the line's bytes or the
        record.

    Raises:
        UserError: The file cannot be read or is damaged.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    packed = path.suffix == ".gz"
    try:
        if not packed and (array := _array(path)) is not None:
            yield from enumerate(array, start=1)
            return
        with opened_to_read(path) as raw, cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw as file:
            yield from numbered(bounded(file))
    except (OSError, EOFError, zlib.error) as problem:
        raise UserError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


def records(path: Path, on_damage: OnDamage) -> Iterator[tuple[int, Record]]:
    """Read the records of a data file.

    Args:
        path: The file.
        on_damage: Called with the number of a line that holds no object, and with the reason.

    Yields:
        The number of the line, and its record.

    Raises:
        UserError: The file cannot be read.
    """
    for number, raw in rows(path):
        try:
            yield number, parse_line(raw) if isinstance(raw, bytes) else dict(raw)
        except ValueError as problem:
            on_damage(number, str(problem))


def _array(path: Path) -> list[Record] | None:
    """Return the records of a file that is one JSON array of objects. None for any other file."""
    with opened_to_read(path) as file:
        if not file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return None
    try:
        content = json.loads(read_bounded(path, MAX_TEXT).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, list) and content and all(isinstance(row, dict) for row in content) else None


def _parquet(path: Path) -> Iterator[tuple[int, Raw]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path}: Parquet files need the package pyarrow; install it or convert to JSONL") from None
    number = 0
    # Damage can raise almost any of these, some only while values are converted.
    damage = (pyarrow.ArrowException, OSError, ValueError, ArithmeticError, LookupError, MemoryError)
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except damage as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UserError(f"{path} is no Parquet file, or is damaged after row {number}: {why}") from None
