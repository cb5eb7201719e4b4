"""Misspelled keys in NeMo-RL's sections: it accepts any (tried: `gpro:` and `grpo.batch_multiplyer` load).

Its schema cannot be enforced as it stands, because NeMo-RL's own recipes use names that it lacks. So a key is an error
when the schema lacks it and has one that is a slip or two of the keyboard away; other unknown keys pass.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_ada.errors import UserError

OURS = ("backend", "run_dir", "resume", "reinforce_ada", "defaults")
LONG = 8  # letters from which two slips are still the same word


def check_names(config: Mapping[str, Any], schema: type) -> None:
    """Raise UserError naming every key of `config` that is a near miss of one in `schema` (NeMo-RL's MasterConfig)."""
    problems = [
        f"unknown key {key}; did you mean {close}?"
        for key, close in _near_misses({k: v for k, v in config.items() if k not in OURS}, [schema], "")
    ]
    if problems:
        raise UserError("\n".join(problems))


def _near_misses(section: Mapping[str, Any], kinds: list[Any], where: str) -> Iterator[tuple[str, str]]:
    known: dict[str, list[Any]] = {}
    for kind in kinds:
        for name, annotation in _fields(kind).items():
            known.setdefault(name, []).extend(_sections(annotation))
    if not known:
        return
    for key, value in section.items():
        name = str(key)
        if name in known:
            if isinstance(value, Mapping):
                yield from _near_misses(value, known[name], f"{where}{name}.")
        else:
            close = [other for other in known if _slips(name, other) <= (2 if len(name) >= LONG else 1)]
            if close:
                yield f"{where}{name}", f"{where}{close[0]}"


def _slips(left: str, right: str) -> int:
    """Letters to add, leave out, change or swap with their neighbour (optimal string alignment distance)."""
    if abs(len(left) - len(right)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, letter in enumerate(left, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(right, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == other:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]


def _fields(kind: Any) -> dict[str, Any]:
    """Names and annotations of a pydantic model or a TypedDict."""
    if hasattr(kind, "model_fields"):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return typing.get_type_hints(kind, include_extras=True)


def _sections(annotation: Any) -> list[Any]:
    """The models and TypedDicts that an annotation mentions; a plain dict holds any names."""
    origin = typing.get_origin(annotation)
    if origin is typing.Union or origin is types.UnionType or (origin is not None and origin not in (dict, list)):
        return [inner for part in typing.get_args(annotation) for inner in _sections(part)]
    if hasattr(annotation, "model_fields") or hasattr(annotation, "__required_keys__"):
        return [annotation]
    return []
