"""The one reader of JSON-lines files: a JSON object per line, in UTF-8. Blank lines count but are skipped."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from nemo_ada.run.files import MAX_DIGITS, open_to_read, parse_whole_number

Record = dict[str, Any]
Raw = bytes | Mapping[str, Any]
OnDamage = Callable[[int, str], None]
MAX_LINE = 64 << 20  # bytes
_LONG = re.compile(rb"\d{%d}" % MAX_DIGITS)
BOM = b"\xef\xbb\xbf"  # some editors begin a file with it


class DamagedLine(ValueError):
    """A line that holds no JSON object. The text has the line's number and the reason."""


def refuse_line(number: int, reason: str) -> None:
    """Raise DamagedLine. The default of `read_records`: a file of ours has no damaged line."""
    raise DamagedLine(f"line {number}: {reason}")


def read_bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Read the lines of a file. Of one with over MAX_LINE bytes only the start comes: `parse_line` refuses it."""
    while line := file.readline(MAX_LINE + 1):
        yield line
        while len(line) > MAX_LINE and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE + 1)


def number_lines(source: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield number lines from 1, without the blank ones and without a byte order mark at the start."""
    for number, line in enumerate(source, start=1):
        line = line.removeprefix(BOM) if number == 1 else line
        if line.strip():
            yield number, line


def read_records(source: Path | bytes, on_damage: OnDamage = refuse_line) -> Iterator[tuple[int, Record]]:
    """Read the JSON objects of a file.

    Args:
        source: The file, or its content.
        on_damage: Called with the number of a damaged line, counted from 1, and with the reason. It raises an error to
            stop, and the line is left out where it returns.

    Yields:
        The line's number and its object.

    Raises:
        OSError: The file cannot be read.
        DamagedLine: A line is damaged, and `on_damage` was not given.
    """
    with open_to_read(source) if isinstance(source, Path) else io.BytesIO(source) as file:
        yield from parse_lines(number_lines(read_bounded_lines(file)), on_damage)


def parse_lines(lines: Iterable[tuple[int, Raw]], on_damage: OnDamage) -> Iterator[tuple[int, Record]]:
    """Yield the number and the object of each line, or the record that a table has there."""
    for number, raw in lines:
        try:
            record = parse_line(raw) if isinstance(raw, bytes) else dict(raw)
        except ValueError as problem:
            on_damage(number, str(problem))
        else:
            yield number, record


def parse_line(line: bytes) -> Record:
    """Parse one line. NaN and Infinity are read as floats.

    Raises:
        ValueError: The line holds no JSON object. The text is the reason.
    """
    if len(line) > MAX_LINE:
        raise ValueError(f"longer than {MAX_LINE:,} bytes")
    if b"\0" in line:  # never part of a JSON text
        raise ValueError("holds NUL bytes (UTF-16? save the file as UTF-8)")
    try:
        long = parse_whole_number if _LONG.search(line) else None
        record = json.loads(line.decode("utf-8"), parse_int=long)  # json.loads of bytes would guess other encodings
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"not JSON ({problem.msg.removesuffix(' at')} at column {problem.colno})") from None
    except ValueError:
        raise ValueError("a number with thousands of digits") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__}, not an object")
    return record
