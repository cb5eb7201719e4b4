"""Build a task from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from nemo_ada.by_name import check_part, make_object
from nemo_ada.errors import UserError
from nemo_ada.tasks.arithmetic import Arithmetic
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.protocol import Task, Tokenizer, score_many
from nemo_ada.tasks.reasoning import MiniSudoku, SpellBackward
from nemo_ada.tasks.settings import (
    AnyTaskSettings,
    ArithmeticSettings,
    JsonlSettings,
    MiniSudokuSettings,
    OwnTaskSettings,
    SpellBackwardSettings,
)

TASK_HAS = ("name", "tokenizer", "max_prompt_tokens", "max_new_tokens", "splits", "submit", "close")


def build_task(settings: AnyTaskSettings, cache_dir: Path | None = None, tokenizer: Tokenizer | None = None) -> Task:
    """Build the task of these settings. A JSONL file is read at once, and problems are generated on first use.

    Args:
        settings: Settings of the task.
        cache_dir: Folder for generated problems. None stores nothing.
        tokenizer: Tokenizer of the model that answers. None takes the task's character tokenizer.

    Raises:
        UserError: The file or the reward cannot be used.
    """
    if isinstance(settings, JsonlSettings):
        return JsonlTask(settings, tokenizer)
    if isinstance(settings, MiniSudokuSettings):
        return MiniSudoku(settings, cache_dir, tokenizer)
    if isinstance(settings, SpellBackwardSettings):
        return SpellBackward(settings, cache_dir, tokenizer)
    if isinstance(settings, ArithmeticSettings):
        return Arithmetic(settings, cache_dir, tokenizer)
    if isinstance(settings, OwnTaskSettings):
        return _build_own(settings, tokenizer)
    assert_never(settings)


def _build_own(settings: OwnTaskSettings, tokenizer: Tokenizer | None) -> Task:
    """Build the user's task, and judge one of its answers. Raises UserError where that does not work."""
    key = "task.task"
    task: Task = make_object(key, settings.task, tokenizer, **settings.arguments)
    lacking = [name for name in TASK_HAS if not hasattr(task, name)]
    if lacking:
        raise UserError(f"{key}={settings.task!r}: it has no {', '.join(lacking)}; recipes/extend/task.py has all")

    def tried() -> float:
        prompt = task.splits().train[0]
        (verdict,) = score_many(task, [(prompt, prompt.answer, True)])
        return float("nan") if verdict.label is None else verdict.label

    check_part(key, settings.task, tried, float)
    return task
