"""One problem, and how a record of a file or a data set becomes one.

A record has a prompt and an answer in the usual columns (or in the user's). Both are text or numbers. Any other
record is refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from nemo_ada.tasks.lines import text_field
from nemo_ada.tasks.protocol import content_id

EXCERPT = 200  # characters of a refused line that are shown


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with its reference answer.

    Attributes:
        uid: 16 hex digits of a hash of the canonical text. They are equal in every file.
        line: The number of its line in the source, counted from 1.
        text: The problem.
        answer: The reference answer.
        columns: What else its record has, such as level, subject and source.
    """

    uid: str
    line: int
    text: str
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the record that a stage's journal stores."""
        record = {"id": self.uid, "line": self.line, "problem": self.text, "answer": self.answer}
        return record | ({"columns": dict(self.columns)} if self.columns else {})

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Problem:
        """Read what `record` returned."""
        columns = record.get("columns", {})
        return cls(record["id"], record["line"], record["problem"], record["answer"], columns)


def problem_id(text: str) -> str:
    """Return a hash of the canonical text (NFC, single spaces)."""
    return content_id("problem", text)


def parse_record(
    line: int, record: Mapping[str, Any], prompt_fields: Sequence[str], answer_fields: Sequence[str]
) -> Problem:
    """Return the problem of a record, from the first columns that it has. Raises ValueError with the reason."""
    text = text_field(record, prompt_fields, "prompt")
    answer = text_field(record, answer_fields, "answer").strip()
    read = {next(name for name in names if name in record) for names in (prompt_fields, answer_fields)}
    return Problem(problem_id(text), line, text, answer, other_columns(record, read))


def other_columns(record: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    """Return the columns that are not in `read` and that JSON can hold. Dates and decimals become text."""
    columns = {}
    for name, value in record.items():
        if name in read or value is None:
            continue
        value = str(value) if isinstance(value, (date, Decimal)) else value
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except (TypeError, ValueError, RecursionError):  # bytes, images, nan, half of a character
            continue
        columns[str(name)] = value
    return columns


def excerpt(raw: bytes | Mapping[str, Any]) -> str:
    """Return the start of a refused line. Bytes that are not text become U+FFFD."""
    data = raw if isinstance(raw, bytes) else repr(dict(raw)).encode("utf-8", "replace")
    return data[: 4 * EXCERPT].decode("utf-8", "replace").strip()[:EXCERPT]
