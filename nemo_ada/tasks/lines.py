r"""Read the prompt and the reference answer of a record, whatever layout its file has.

The jsonl task, data preparation, evaluation and `nemo-ada check` use it. A field is a column or a dotted path
(`reward_model.ground_truth`), which leads through JSON text as well, because tables often keep an object as its text.
A prompt is a text or a list of messages, also as JSON text. The judge reads what a reference says
(`verify/reference.py`). Capitals in names of columns do not matter. A record whose options have columns of their own is
refused, and so is one with images, videos or sounds (media.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nemo_ada.tasks.media import refuse_media
from nemo_ada.verify.reference import Reader, read_text

PROMPT_FIELDS = (
    "responses_create_params.input",  # first, because NeMo-Gym sends this and nothing else to the model
    "problem", "prompt", "question", "messages", "conversations", "input", "instruction", "query", "question_stem",
    "ctx", "goal",
)  # fmt: skip
ANSWER_FIELDS = (
    "answer", "gt", "reward_model.ground_truth", "ground_truth", "verification_info.ground_truth", "expected_answer",
    "final_answer", "solution", "label", "target", "output",
)  # fmt: skip
OPTIONS = frozenset(("options", "choices", "endings", "opa", "option_a", "option1", "choice_a", "sol1"))
"""Columns in which data sets keep the options of multiple choice."""
_NAMED = re.compile(r"\(?[A-Ja-j]\)?|\d(?:\.0)?")  # how a reference names an option
_MARK = re.compile(r"^\s*\(?[A-J]\s*[).:]\s*")  # in front of an option
ANY = Reader()  # of a reference that no verifier will judge
MAX_PRESENT = 120  # characters of a record's column names in a reason
_ROLES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "developer": "system"}


@dataclass(frozen=True, slots=True)
class Pair:
    """The prompt and the reference answer of a record.

    Attributes:
        prompt: The text of the user's message.
        answer: What the reference says, as text: for a reader, and to tell equal references.
        reference: The reference as the record has it, which is what a judge takes.
        value: What is compared: the text, or for a reward of the user's the reference as it is.
        system: The system message of a list of messages, else an empty text.
        layout: Where both stood, in words.
        columns: The columns that hold them.
    """

    prompt: str
    answer: str
    reference: Any
    value: Any
    system: str
    layout: str
    columns: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Messages:
    """A conversation with one question: its system message, the question, and the answer if there is one."""

    system: str
    user: str
    assistant: str | None


def pair_of(
    record: Mapping[str, Any], prompt_fields: Sequence[str], answer_fields: Sequence[str], reader: Reader = ANY
) -> Pair:
    """Return the prompt and the reference of a record, from the first of the fields that hold something.

    Args:
        record: The record.
        prompt_fields: Names of the prompt.
        answer_fields: Names of the reference.
        reader: Reads the reference. A judge is one.

    Raises:
        ValueError: The reason why the record has no such pair. It is valid UTF-8.
    """
    name, value = _find_first(record, prompt_fields, "prompt")
    messages = _read_messages(name, value)
    prompt = _read_prompt(name, value if messages is None else messages.user)
    if name in ("input", "instruction") and messages is None:
        prompt = _join_instruction(record) or prompt
    refuse_media(record, prompt)
    try:
        column, reference = _find_first(record, answer_fields, "answer")
    except ValueError:
        if messages is None or messages.assistant is None:
            raise
        column, reference = name, messages.assistant
    if not reader.own:  # a reward of the user's may take the options from elsewhere
        _refuse_options(record, prompt, reference)
    try:
        read = reader.read(reference)
    except ValueError as problem:
        raise ValueError(f"its {column!r} {problem}") from None
    layout = f"prompt {name!r}{'' if messages is None else ' (messages)'}, reference {column!r}{read.form}"
    columns, system = (
        (_find_column(record, name), _find_column(record, column)),
        "" if messages is None else messages.system,
    )
    return Pair(prompt, read.text, reference, read.value, system, layout, columns)


def prompt_of(record: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the prompt of a record that needs no reference. Raises ValueError as `pair_of` does."""
    name, value = _find_first(record, fields, "prompt")
    messages = _read_messages(name, value)
    return _read_prompt(name, value if messages is None else messages.user)


def _refuse_options(record: Mapping[str, Any], prompt: str, reference: Any) -> None:
    """Raise ValueError where the reference names an option by letter or number, and the prompt lacks the options."""
    if not _NAMED.fullmatch(str(reference).strip()):
        return
    lettered = {"A", "B", "C"} <= record.keys()
    for column, value in record.items():
        listed = value.get("text", list(value.values())) if isinstance(value, Mapping) else value
        options = [_MARK.sub("", str(one)) for one in (listed if isinstance(listed, list) else [listed])]
        if not value or not (str(column).lower() in OPTIONS or (lettered and column == "A")) or reference in options:
            continue
        if 2 * sum(option in prompt for option in options) <= len(options):
            raise ValueError(f"its options are in {column!r}; write them into the prompt, with a letter as answer")


def _join_instruction(record: Mapping[str, Any]) -> str:
    """Return what Alpaca's format asks: an instruction, and what it is about. Empty where one of them is missing."""
    parts = [record.get(name) for name in ("instruction", "input")]
    texts = [part.strip() for part in parts if isinstance(part, str) and part.strip()]
    return "\n\n".join(texts) if len(texts) == 2 else ""


def _find_first(record: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[str, Any]:
    """Return the first field that is neither null nor blank, and its value."""
    there = [(name, value) for name in names for value in _find_values(record, name)]
    for name, value in there:
        if value is not None and not (isinstance(value, str) and not value.strip()) and value != []:
            return name, value
    if there:
        name, value = there[0]
        raise ValueError(f"its {name!r} is {'empty' if value is not None else 'null'}")
    present = ", ".join(sorted(map(str, record))) or "no field"
    reason = f"no {what} field; it has {present[:MAX_PRESENT]}, and none of {', '.join(names)}"
    raise ValueError(reason.encode("utf-8", "replace").decode("utf-8"))  # surrogates become question marks


def _find_values(record: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the value of a column, or of a dotted path, if there is one."""
    if name in record:
        yield record[name]
        return
    here: Any = record
    for part in name.split("."):
        here = _object_of(here)
        if here is None or (key := _find_spelling(here, part)) is None:
            return
        here = here[key]
    yield here


def _object_of(value: Any) -> Mapping[str, Any] | None:
    """Return the object that a value is, or that its text is in JSON. None where it is neither."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return value if isinstance(value, Mapping) else None


def _find_spelling(record: Mapping[str, Any], name: str) -> str | None:
    """Return the key that is this name, or this name with other capitals."""
    return name if name in record else next((key for key in record if str(key).lower() == name.lower()), None)


def _find_column(record: Mapping[str, Any], name: str) -> str:
    return name if name in record else _find_spelling(record, name.partition(".")[0]) or name


def _read_messages(name: str, value: Any) -> Messages | None:
    """Return the conversation that a value is. None for a text. Raises ValueError where it has no single question."""
    if isinstance(value, str) and value.lstrip().startswith(("[{", "[ {", "[\n")):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, Mapping) and ("content" in value or "value" in value):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(message, Mapping) for message in value):
        return None
    turns = [(str(one.get("role", one.get("from"))), one.get("content", one.get("value"))) for one in value]
    turns = [(_ROLES.get(role, role), content) for role, content in turns]
    system = "\n".join(_read_content(name, content) for role, content in turns if role == "system")
    rest = [(role, content) for role, content in turns if role != "system"]
    roles = [role for role, _ in rest]
    if roles not in (["user"], ["user", "assistant"]):
        raise ValueError(f"its {name!r} is a conversation of {', '.join(roles)[:80] or 'nobody'}; one question works")
    return Messages(system, _read_content(name, rest[0][1]), _read_content(name, rest[1][1]) if len(rest) > 1 else None)


def _read_content(name: str, content: Any) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        for part in content:
            kind = str(part.get("type", "text"))
            if not kind.endswith("text") or not isinstance(part.get("text"), str):  # Arrow gives each part all columns
                raise ValueError(f"its {name!r} has a message with a part of type {kind[:40]!r}; only text is read")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"its {name!r} has a message that is {type(content).__name__}, not text")
    return content


def _read_prompt(name: str, value: Any) -> str:
    """Return the text of a prompt. Raises ValueError that names its column."""
    try:
        return read_text(value)
    except ValueError as problem:
        raise ValueError(f"its {name!r} {problem}") from None
