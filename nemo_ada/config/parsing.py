"""Strict parsing: a section is a frozen pydantic model, and an error names the key, the value and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from reprlib import Repr
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nemo_ada.errors import UserError

T = TypeVar("T")
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 100


PLAIN = {
    "int_parsing": "it must be a whole number, such as 8",
    "int_type": "it must be a whole number, such as 8",
    "int_from_float": "it must be a whole number, such as 8",
    "float_parsing": "it must be a number, such as 0.5",
    "float_type": "it must be a number, such as 0.5",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "string_type": "it must be text; quotes make text of a number, such as KEY=\"'1'\" on a command line",
}
"""Pydantic's name of a mistake -> what would work."""
MAX_LINES = 10  # of an error's message
CLOSE = 0.75  # difflib's ratio above which one name is a slip for the other
MAX_COUNT = 2**31 - 1  # a larger count is a mistake, and arithmetic on it is not exact
Size = Annotated[int, Field(gt=0, le=10_000_000)]
"""A size in a model, a batch or a layout."""
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
"""A number of steps, rows or prompts, at least one."""
CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""A number of steps, rows or prompts, at least zero."""


MEANT = {
    "learning_rate": "lr", "num_generations": "num_generations_per_prompt", "n": "num_generations_per_prompt",
    "group_size": "num_generations_per_prompt", "steps": "max_num_steps", "max_steps": "max_num_steps",
    "num_steps": "max_num_steps", "batch_size": "num_prompts_per_step", "train_batch_size": "num_prompts_per_step",
    "cap": "max_responses", "method": "preset", "output_dir": "run_dir", "model": "model_name",
    "max_tokens": "max_new_tokens", "max_completion_length": "max_new_tokens", "save_steps": "save_period",
    "eval_steps": "val_period",
}  # fmt: skip
"""A name that other frameworks use -> ours."""
FIRST = ("grpo", "reinforce_ada", "policy", "task", "validation")  # sections in the order of what people mean
MOST = 2  # keys that a suggestion names


class Section(BaseModel):
    """A block of the YAML. Unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def parse(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Validate a section.

    Args:
        kind: the model of the section.
        data: values of the section.
        where: dotted path of the section in the YAML; empty for the whole file.

    Raises:
        UserError: with one line per problem.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(data))
    except ValidationError as error:
        problems = error.errors()
        lines = list(dict.fromkeys(_write_sentence(kind, data, where, problem) for problem in problems))
        if len(lines) > MAX_LINES:
            rest = f"and {len(lines) - MAX_LINES} more; is this a file for this command?"
            lines = [*lines[:MAX_LINES], rest]
        raise UserError("\n".join(lines), key=_find_common_key(data, where, problems)) from None


def _find_common_key(data: Mapping[str, Any], where: str, problems: Sequence[Any]) -> str | None:
    """Return the key that all problems are about, or the section that holds their keys.

    None where it is the whole config.
    """
    paths = [_find_path(data, where, problem) for problem in problems]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared) or None


def _find_path(data: Mapping[str, Any], where: str, problem: Any) -> list[str]:
    """Return the parts of the key that a pydantic error is about, without the tags of unions in its location.

    A tag is the value of the key that chooses a member of the union, or the form of a value (ada.Number).
    """
    path: list[str] = [where] if where else []
    below: Any = data
    for part in problem["loc"]:
        if str(part).startswith("@"):
            continue
        if isinstance(below, Mapping) and part not in below and part in (below.get("kind"), below.get("name")):
            continue
        path.append(str(part))
        with suppress(LookupError, TypeError):
            below = below[part]
    return path


def _write_sentence(kind: Any, data: Mapping[str, Any], where: str, problem: Any) -> str:
    """One line for one pydantic error."""
    path = _find_path(data, where, problem)
    key = ".".join(path)
    cause, context = problem["type"], problem.get("ctx", {})
    if isinstance(context.get("error"), UserError):
        return str(context["error"])
    if cause in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {key}; {_suggest_key(path, kind, where, problem['loc'][:-1])}"
    if cause == "union_tag_invalid":
        choices = [choice.strip().strip("'") for choice in context["expected_tags"].split(",")]
        tag = context["discriminator"].strip("'")
        return f"{key}.{tag}={context['tag']}: no such choice; {suggest_name(context['tag'], choices, 'choices')}"
    if cause == "union_tag_not_found":
        return f"{key}.{context['discriminator'].strip(chr(39))} is missing; set it to say which kind {key} is"
    if cause == "missing":
        return f"{key} is missing; set it"
    message = PLAIN.get(cause, problem["msg"].removeprefix("Value error, "))
    given = "" if isinstance(problem["input"], Mapping) else f"={_shorten.repr(problem['input'])}"
    return f"{key}{given}: {message[:1].lower()}{message[1:]}" if key else message


def _suggest_key(path: Sequence[str], kind: Any, where: str, location: Sequence[str | int]) -> str:
    """Say which key a user may have meant: one beside it with a close name, or one anywhere in the tree of the YAML."""
    from nemo_ada.config.keys import find_fields, list_sections_and_settings  # only a mistake needs them

    name, names = path[-1], find_fields(kind, location)
    if not difflib.get_close_matches(name, names, n=1, cutoff=CLOSE):
        elsewhere = find_meant(name, list_sections_and_settings(kind, f"{where}." if where else ""))
        if elsewhere:
            return f"did you mean {' or '.join(elsewhere)}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    parents = [part for part in path[:-1] if "/" not in part]  # a file's name is no part of a key
    return f"did you mean {'.'.join([*parents, close[0]])}?" if close else suggest_name(name, names, "known keys")


def _rank_key(key: str) -> tuple[int, int]:
    """Sort what people mean first: settings of the training, high in the tree."""
    section = key.partition(".")[0]
    return FIRST.index(section) if section in FIRST else len(FIRST), key.count(".")


def find_meant(name: str, keys: Iterable[str]) -> list[str]:
    """Return the dotted keys whose last part is a name, or the name that we have for it, or one like it."""
    known = list(dict.fromkeys(keys))
    found = [key for key in known if key.rpartition(".")[2] in (name, MEANT.get(name))]
    if found:
        return sorted(found, key=_rank_key)[:MOST]
    close = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in known}, n=1, cutoff=CLOSE)
    return [key for key in known if key.rpartition(".")[2] in close][:MOST]


def suggest_name(name: str, known: Sequence[str], title: str) -> str:
    """Ask "did you mean ...?" for a name that is close to a known one, or list the known ones."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"{title}: {', '.join(known)}"


def join_numbers(numbers: Sequence[int]) -> str:
    """Return the numbers as text, such as "1, 2 or 4"."""
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}" if texts else "none"


def find_divisors(*numbers: int) -> list[int]:
    """Return the common divisors in ascending order."""
    return [d for d in range(1, min(numbers) + 1) if all(number % d == 0 for number in numbers)]
