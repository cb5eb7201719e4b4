"""Build a task from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from nemo_ada.tasks.arithmetic import Arithmetic
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.protocol import Task, Tokenizer
from nemo_ada.tasks.reasoning import MiniSudoku, SpellBackward
from nemo_ada.tasks.settings import (
    AnyTaskSettings,
    ArithmeticSettings,
    JsonlSettings,
    MiniSudokuSettings,
    SpellBackwardSettings,
)


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
    assert_never(settings)
