"""One problem, and how a record of a file or a data set becomes one.

`nemo_ada.tasks.lines` says which layouts are read. Any other record is refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from nemo_ada.tasks.lines import ANY, pair_of
from nemo_ada.tasks.protocol import make_content_id
from nemo_ada.verify.reference import Reader

EXCERPT = 200  # characters of a refused line that are shown


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with its reference answer.

    Attributes:
        uid: 16 hex digits of a hash of the canonical text. They are equal in every file.
        line: The number of its line in the source, counted from 1.
        text: The problem.
        answer: The reference answer as text.
        reference: What the judge gets as the reference: `answer`, or for a reward what the record has.
        columns: What else its record has, such as level, subject and source, and `system` of a list of messages.
        layout: Where the problem and its answer stood in the record, in words.
    """

    uid: str
    line: int
    text: str
    answer: str
    reference: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""


def compute_problem_id(text: str) -> str:
    """Return a hash of the canonical text (NFC, single spaces)."""
    return make_content_id("problem", text)


def parse_record(
    line: int, record: Mapping[str, Any], prompt_fields: Sequence[str], answer_fields: Sequence[str],
    reader: Reader = ANY,
) -> Problem:  # fmt: skip
    """Return the problem of a record, from the first columns that it has. Raises ValueError with the reason.

    reader: reads the reference. A judge is one.
    """
    pair = pair_of(record, prompt_fields, answer_fields, reader)
    reference = pair.value if isinstance(pair.value, str) else json.loads(pair.answer)  # as JSON will have it
    columns = keep_other_columns(record, pair.columns) | ({"system": pair.system} if pair.system else {})
    return Problem(compute_problem_id(pair.prompt), line, pair.prompt, pair.answer, reference, columns, pair.layout)


def keep_other_columns(record: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
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


def make_excerpt(raw: bytes | Mapping[str, Any]) -> str:
    """Return the start of a refused line. Bytes that are not text become U+FFFD."""
    data = raw if isinstance(raw, bytes) else repr(dict(raw)).encode("utf-8", "replace")
    return data[: 4 * EXCERPT].decode("utf-8", "replace").strip()[:EXCERPT]
