"""Read the text fields of a record with a prompt and an answer.

The jsonl task, data preparation and evaluation use it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

PROMPT_FIELDS = ("problem", "prompt", "question")
ANSWER_FIELDS = ("answer", "gt")
MAX_REASON = 200


def text_field(record: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    """The text (in Unicode NFC) of one of a record's fields. A finite number becomes text.

    Args:
        record: JSON object of a line.
        names: Names of the field. The first one that the record has counts.
        what: What the field holds, for the reason.

    Raises:
        ValueError: The reason why the record has no such text. It is valid UTF-8.
    """
    name = next((n for n in names if n in record), None)
    if name is None:
        present = ", ".join(sorted(map(str, record))) or "no field"
        reason = f"no {what} field ({', '.join(names)}); it has {present}"[:MAX_REASON]
        raise ValueError(reason.encode("utf-8", "replace").decode("utf-8"))  # surrogates become question marks
    value = record[name]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its {name!r} is {value}, not text or a finite number")
    if isinstance(value, float):
        value = format(Decimal(repr(value)), "f")  # 1e22 becomes its digits, because some verifiers compare text
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"its {name!r} is {type(value).__name__}, not text or a number")
    if not value.strip():
        raise ValueError(f"its {name!r} is empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"its {name!r} holds half of a character (a lone surrogate)")
    return unicodedata.normalize("NFC", value)
