r"""What the reference answer of a record says: the one place where a raw reference becomes text.

Every judge reads a reference here, so whoever judges, checks, prepares or evaluates data gives it what the data have: a
text, a number, a list of one of them, a solution whose answer is in its last \boxed{}, a rationale with gsm8k's `####`,
or an answer in <answer> tags. What is no answer is refused with a reason.
"""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

from nemo_ada.verify.boxed import last_boxed

NO_ANSWERS = frozenset((
    "", "proof", "prove", "qed", "notfound", "not found", "n/a", "na", "null", "nan", "unknown", "tbd", "todo", "?",
    "-", "no answer", "not provided", "not given", "see solution", "see above", "omitted", "证明略", "略",
))  # fmt: skip
"""What data sets write in place of an answer. Capitals, points, dollars and \\text{} around it do not matter."""
_MARKED = re.compile(r"####\s*([^\n]+?)\s*\Z|<answer>\s*(.+?)\s*</answer>\s*\Z", re.DOTALL)
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")


class Reading(NamedTuple):
    """A reference, read.

    Attributes:
        text: The answer as text.
        form: What it stood in, in words that follow the name of a column. Empty for a plain text or number.
        value: What is compared: the text, or for a reward of the user's what the data have.
    """

    text: str
    form: str
    value: Any


class Reader:
    """Reads references for a verifier."""

    own = False
    """Whether a reference is the business of a function of the user's, which may want lists, objects and options."""

    def read(self, raw: Any) -> Reading:
        """Return what a raw reference says. Raises ValueError with the reason, as `read_reference` does."""
        return read_reference(raw)


def read_reference(raw: Any) -> Reading:
    """Return the answer that a reference holds. Reading the text again gives the same text.

    Raises:
        ValueError: It holds none. The reason follows the name of a column: "holds 2 answers; one is needed".
    """
    value, form = _take_only_one(raw)
    text = read_text(value).rstrip().lstrip(" \n")  # a form feed in front is a lost backslash, which the audit finds
    while (inner := _find_marked(text)) is not None and inner[0] != text:
        text, form = inner[0], form + inner[1] * (inner[1] not in form)
    bare = _TEXT.sub(r"\1", text).strip(" .$")
    if bare.casefold() in NO_ANSWERS or bare == "None":
        raise ValueError(f"is {text[:80]!r}, which is no answer")
    return Reading(text, form, text)


def read_text(value: Any) -> str:
    """Return a text in Unicode NFC. A finite number becomes text, and a whole one has no point.

    Raises:
        ValueError: It is neither, or empty, or no valid text.
    """
    if value is None:
        raise ValueError("is null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {value}, not text or a finite number")
    if isinstance(value, float):  # 27.0 is the 27 of a column that has a null; 1e22 becomes its digits
        value = format(Decimal(int(value)) if value.is_integer() else Decimal(repr(value)), "f")
    elif isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        value = format(Decimal(value), "f")
    if not isinstance(value, str):
        raise ValueError(f"is {type(value).__name__}, not text or a number")
    if not value.strip():
        raise ValueError("is empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("holds half of a character (a lone surrogate)")
    return unicodedata.normalize("NFC", value)


def as_text(reference: Any) -> str:
    """Return a reference as a response may have it: what is no text as JSON."""
    return reference if isinstance(reference, str) else json.dumps(reference, default=str)


def _take_only_one(value: Any) -> tuple[Any, str]:
    """Return the only element of a list, also of one in JSON or in Python's own form, else the value itself."""
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        value = value.tolist()
    if isinstance(value, str) and value.lstrip().startswith(('["', "['")):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = json.loads(value) if '["' in value.lstrip()[:2] else ast.literal_eval(value.strip())
    if not isinstance(value, (list, tuple)):
        return value, ""
    if len(value) != 1:
        raise ValueError(f"holds {len(value)} answers; one is needed")
    return value[0], " (a list of one)"


def _find_marked(text: str) -> tuple[str, str] | None:
    """Return the answer that a text marks, and how. None where it marks none."""
    if (boxed := last_boxed(text)) is not None:
        return boxed, " (its box)"
    if (found := _MARKED.search(text)) is not None:
        return (found[1], " (after ####)") if found[1] else (found[2], " (in <answer>)")
    if _BOX.search(text):
        raise ValueError(f"ends in a box that is not closed: {text[-80:]!r}")
    return None
