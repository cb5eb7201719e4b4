"""From settings to a task."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.reasoning import MiniSudoku, SpellBackward
from nemo_ada.tasks.settings import (
    SETTINGS_BY_NAME,
    AnyTaskSettings,
    JsonlSettings,
    MiniSudokuSettings,
    SpellBackwardSettings,
)


def parse_task_settings(options: Mapping[str, Any], where: str = "task") -> AnyTaskSettings:
    """Settings from a mapping with a `name`. `where` is the dotted key of the mapping, for the messages.

    Raises UserError on an unknown task, an unknown option or a value out of bounds, saying what would work.
    """
    known = ", ".join(SETTINGS_BY_NAME)
    name = options.get("name")
    if name not in SETTINGS_BY_NAME:
        close = difflib.get_close_matches(str(name), SETTINGS_BY_NAME, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"{where}.name={name!r} is no task; {hint}the tasks are {known}")
    kind = SETTINGS_BY_NAME[name]
    fields = [field.name for field in dataclasses.fields(kind)]
    for key in options:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"{where}.{key} is no option of the task {name}; {hint}its options are {', '.join(fields)}")
    try:
        return kind(**options)
    except ValidationError as problem:
        raise UserError("; ".join(_sentence(where, error) for error in problem.errors())) from None


def _sentence(where: str, error: Any) -> str:
    key = ".".join([where, *map(str, error["loc"])])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("value_error", "missing"):
        return f"{key}: {message}"
    return f"{key}={error['input']!r}: {message[0].lower()}{message[1:]}"


def build_task(
    settings: AnyTaskSettings | Mapping[str, Any], cache_dir: Path | None = None, where: str = "task"
) -> Task:
    """The task that the settings describe. Splits of generated problems are cached under `cache_dir` (None: not
    at all).

    Reads a JSONL file at once, generates problems only when the splits are first asked for. Raises UserError.
    """
    if isinstance(settings, Mapping):
        settings = parse_task_settings(settings, where)
    match settings:
        case MiniSudokuSettings():
            return MiniSudoku(settings, cache_dir, where)
        case SpellBackwardSettings():
            return SpellBackward(settings, cache_dir, where)
        case JsonlSettings():
            return JsonlTask(settings, where)
        case _:
            raise InvariantError(f"no task takes settings of type {type(settings).__name__}")
