"""Multiple choice: the options that a record has in columns of their own become part of its prompt.

The reference is then a letter, whether the record names the right option by letter, by number or by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

LISTS = ("options", "choices", "endings")
COLUMNS = (  # names of the first two columns of a set, with place for the others
    ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J"), ("opa", "opb", "opc", "opd", "ope"),
    ("option_a", "option_b", "option_c", "option_d", "option_e"),
    ("option1", "option2", "option3", "option4", "option5"),
    ("choice_a", "choice_b", "choice_c", "choice_d"), ("sol1", "sol2"), ("answer1", "answer2", "answer3", "answer4"),
)  # fmt: skip
KEYS = (
    "answerKey", "answer_key", "answer_idx", "answer_index", "correct_option", "correct", "cop", "gold", "label",
    "answer", "target",
)  # fmt: skip
"""Columns that may say which option is right."""
LETTERS = "ABCDEFGHIJ"
_MARK = re.compile(r"\s*\(?([A-Ja-j])\s*[).:]\s*")
_INLINE = re.compile(r"(?:^|,\s*)([a-j])\s*\)\s*")


def with_options(record: Mapping[str, Any], prompt: str) -> tuple[str, str, str] | None:
    """Return the prompt with its options, the letter of the right one, and the column that named it.

    None where the record has no options, or where its prompt has them and names none as right.
    """
    columns = {str(name).lower(): name for name in record}
    options, first = _options(record, columns)
    if not 2 <= len(options) <= len(LETTERS):
        return None
    for key in KEYS:
        if (column := columns.get(key.lower())) is not None:
            place = _place(record[column], options, first)
            if place is not None:
                shown = [f"({LETTERS[i]}) {text}" for i, text in enumerate(options)]
                there = sum(text in prompt for text in options) > len(options) / 2
                return (prompt if there else "\n".join([prompt.rstrip() + "\n", *shown])), LETTERS[place], column
    return None


def _options(record: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the texts of the options, and the number of the first one."""
    for name in LISTS:
        if name in columns and (found := _listed(record[columns[name]])):
            return found, 0
    for names in COLUMNS:
        found = []
        for name in names:
            value = record.get(name if len(name) == 1 else columns.get(name.lower(), ""))
            if value is None or not str(value).strip():
                break
            found.append(str(value).strip())
        if len(found) > (2 if names[0] == "A" else 1):  # a and b may be two numbers
            return found, int(names[0].endswith("1"))
    return [], 0


def _listed(value: Any) -> list[str]:
    """Return the options of a list, of an object such as {"text": [...], "label": [...]}, or of a text."""
    if isinstance(value, str):
        parts = _INLINE.split(value.strip())
        if len(parts) > 3 and [letter.upper() for letter in parts[1::2]] == [*LETTERS[: len(parts) // 2]]:
            return [part.strip(" ,") for part in parts[2::2]]
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        texts = value.get("text", value.get("texts"))
        value = texts if isinstance(texts, list) else [value[key] for key in sorted(value)]
    if not isinstance(value, list) or not all(isinstance(one, str | int | float) for one in value):
        return []
    texts = [str(one).strip() for one in value]
    marks = [_MARK.match(text) for text in texts]
    if all(mark is not None and mark[1].upper() == LETTERS[i] for i, mark in enumerate(marks) if i < len(LETTERS)):
        texts = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True) if mark is not None]
    return texts if all(texts) and len(set(texts)) == len(texts) else []


def _place(value: Any, options: list[str], first: int) -> int | None:
    """Return the place of the option that a letter, a number or a text names. None where it names none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    mark = _MARK.fullmatch(text + ")") or _MARK.fullmatch(text)
    if mark is not None and isinstance(value, str):
        place = LETTERS.index(mark[1].upper())
        return place if place < len(options) else None
    if isinstance(value, str) and text in options:
        return options.index(text)
    with suppress(ValueError):
        place = int(float(text)) - first
        if float(text).is_integer() and 0 <= place < len(options):
            return place
    return None
