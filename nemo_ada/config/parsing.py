"""Strict parsing: a section is a frozen pydantic model, and an error names the key, the value and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import takewhile
from reprlib import Repr
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

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
        lines = list(dict.fromkeys(_sentence(kind, data, where, problem) for problem in problems))
        if len(lines) > MAX_LINES:
            rest = f"and {len(lines) - MAX_LINES} more; is this a file for this command?"
            lines = [*lines[:MAX_LINES], rest]
        raise UserError("\n".join(lines), key=_common_key(kind, data, where, problems)) from None


def _common_key(kind: Any, data: Mapping[str, Any], where: str, problems: Sequence[Any]) -> str | None:
    """Return the key that all problems are about, or the section that holds their keys.

    None where it is the whole config.
    """
    paths = [_path(kind, data, where, problem) for problem in problems]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared) or None


def _path(kind: Any, data: Mapping[str, Any], where: str, problem: Any) -> list[str]:
    """Return the parts of the key that a pydantic error is about, without the tags of unions in its location."""
    path: list[str] = [where] if where else []
    types = [kind]
    below: Any = data
    for part in problem["loc"]:
        if str(part).startswith("@"):  # a form of one value (ada.Number), which no key names
            continue
        if isinstance(below, Mapping) and part not in below and any(part in _tags(t) for t in types):
            types = [t for t in types if part in _tags(t)]
            continue
        path.append(str(part))
        types = [inner for t in types for inner in _models(_fields(t).get(str(part)))]
        below = below[part] if _holds(below, part) else None
    return path


def _sentence(kind: Any, data: Mapping[str, Any], where: str, problem: Any) -> str:
    """One line for one pydantic error."""
    path = _path(kind, data, where, problem)
    key = ".".join(path)
    cause, context = problem["type"], problem.get("ctx", {})
    if isinstance(context.get("error"), UserError):
        return str(context["error"])
    if cause in ("extra_forbidden", "unexpected_keyword_argument"):
        parents = [kind]
        for part in (part for part in problem["loc"][:-1] if not str(part).startswith("@")):
            tagged = [t for t in parents if part in _tags(t)]
            parents = tagged or [inner for t in parents for inner in _models(_fields(t).get(str(part)))]
        names = sorted({name for t in parents for name in _fields(t)})
        return f"unknown key {key}; {_meant(path, names, kind, where)}"
    if cause == "union_tag_invalid":
        choices = [choice.strip().strip("'") for choice in context["expected_tags"].split(",")]
        tag = context["discriminator"].strip("'")
        return f"{key}.{tag}={context['tag']}: no such choice; {suggestion(context['tag'], choices, 'choices')}"
    if cause == "union_tag_not_found":
        return f"{key}.{context['discriminator'].strip(chr(39))} is missing; set it to say which kind {key} is"
    if cause == "missing":
        return f"{key} is missing; set it"
    message = PLAIN.get(cause, problem["msg"].removeprefix("Value error, "))
    given = "" if isinstance(problem["input"], Mapping) else f"={_shorten.repr(problem['input'])}"
    return f"{key}{given}: {message[:1].lower()}{message[1:]}" if key else message


def _meant(path: Sequence[str], names: Sequence[str], kind: Any, where: str) -> str:
    """Say which key a user may have meant: one beside it with a close name, or one anywhere in the tree of the YAML."""
    name = path[-1]
    if not difflib.get_close_matches(name, names, n=1, cutoff=CLOSE):
        elsewhere = meant(name, _keys(kind, f"{where}." if where else ""))
        if elsewhere:
            return f"did you mean {' or '.join(elsewhere)}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    parents = [part for part in path[:-1] if "/" not in part]  # a file's name is no part of a key
    return f"did you mean {'.'.join([*parents, close[0]])}?" if close else suggestion(name, names, "known keys")


def _likely(key: str) -> tuple[int, int]:
    """Sort what people mean first: settings of the training, high in the tree."""
    section = key.partition(".")[0]
    return FIRST.index(section) if section in FIRST else len(FIRST), key.count(".")


def meant(name: str, keys: Iterable[str]) -> list[str]:
    """Return the dotted keys whose last part is a name, or the name that we have for it, or one like it."""
    known = list(dict.fromkeys(keys))
    found = [key for key in known if key.rpartition(".")[2] in (name, MEANT.get(name))]
    if found:
        return sorted(found, key=_likely)[:MOST]
    close = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in known}, n=1, cutoff=CLOSE)
    return [key for key in known if key.rpartition(".")[2] in close][:MOST]


def _keys(kind: Any, prefix: str) -> Iterator[str]:
    """Yield the dotted keys of a section and of those below it."""
    for name, annotation in _fields(kind).items():
        yield f"{prefix}{name}"
        for section in _models(annotation):
            yield from _keys(section, f"{prefix}{name}.")


def suggestion(name: str, known: Sequence[str], title: str) -> str:
    """Ask "did you mean ...?" for a name that is close to a known one, or list the known ones."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"{title}: {', '.join(known)}"


def _holds(container: Any, part: Any) -> bool:
    if isinstance(container, Mapping):
        return part in container
    return isinstance(container, (list, tuple)) and isinstance(part, int) and part < len(container)


def _fields(model: Any) -> dict[str, Any]:
    """Annotation of each field of a section, which is a pydantic model or one of core's dataclasses."""
    if isinstance(model, type) and is_dataclass(model):
        hints = get_type_hints(model, include_extras=True)
        return {field.name: hints[field.name] for field in fields(model)}
    return {name: field.annotation for name, field in getattr(model, "__pydantic_fields__", {}).items()}


def _tags(model: Any) -> set[str]:
    """Return the values of the field that distinguishes the members of a union."""
    annotations = _fields(model)
    return {tag for name in ("kind", "name") if name in annotations for tag in get_args(annotations[name])}


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the section classes that a field's annotation mentions."""
    pending = [annotation]
    while pending:
        annotation = pending.pop()
        if hasattr(annotation, "__pydantic_fields__") or (isinstance(annotation, type) and is_dataclass(annotation)):
            yield annotation
        elif get_origin(annotation) is not None:
            pending.extend(get_args(annotation))
