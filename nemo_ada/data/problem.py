"""One problem, and how a record of a file or a data set becomes one.

A record has a prompt and an answer in the usual columns (or in the user's). Both are text or numbers. Any other
record is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_ada.tasks.lines import text_field
from nemo_ada.tasks.protocol import content_id

EXCERPT = 200  # characters of a refused line that are shown


@dataclass(frozen=True, slots=True)
class Problem:
    """line: its number (from 1) in the source. uid: 16 hex digits of its canonical text, equal in every file."""

    uid: str
    line: int
    text: str
    answer: str

    def record(self) -> dict[str, Any]:
        """As a stage's journal stores it."""
        return {"id": self.uid, "line": self.line, "problem": self.text, "answer": self.answer}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Problem:
        """From `record`."""
        return cls(record["id"], record["line"], record["problem"], record["answer"])


def problem_id(text: str) -> str:
    """Hash of the canonical text (NFC, single spaces). The line number does not matter."""
    return content_id("problem", text)


def parse_record(
    line: int, record: Mapping[str, Any], prompt_fields: Sequence[str], answer_fields: Sequence[str]
) -> Problem:
    """The problem of a record, from the first columns that it has. Raises ValueError with the reason."""
    text = text_field(record, prompt_fields, "prompt")
    return Problem(problem_id(text), line, text, text_field(record, answer_fields, "answer").strip())


def excerpt(raw: bytes | Mapping[str, Any]) -> str:
    """The start of a refused line. Bytes that are not text become U+FFFD."""
    data = raw if isinstance(raw, bytes) else repr(dict(raw)).encode("utf-8", "replace")
    return data[: 4 * EXCERPT].decode("utf-8", "replace").strip()[:EXCERPT]
