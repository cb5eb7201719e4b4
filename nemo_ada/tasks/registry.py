"""From settings to a task."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.reasoning import MiniSudoku, SpellBackward
from nemo_ada.tasks.settings import AnyTaskSettings, JsonlSettings, MiniSudokuSettings, SpellBackwardSettings


def build_task(settings: AnyTaskSettings, cache_dir: Path | None = None) -> Task:
    """The task of these settings. Generated problems are cached in `cache_dir` (None: not cached).

    A JSONL file is read at once. Problems are generated when the splits are first used. Raises UserError.
    """
    if isinstance(settings, JsonlSettings):
        return JsonlTask(settings)
    if isinstance(settings, MiniSudokuSettings):
        return MiniSudoku(settings, cache_dir)
    if isinstance(settings, SpellBackwardSettings):
        return SpellBackward(settings, cache_dir)
    assert_never(settings)
