"""Tasks give prompts, their verifier and demonstrations for the base model. They need neither torch, Ray nor vLLM."""

from __future__ import annotations

from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, Task, canonical_text
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings, MiniSudokuSettings, SpellBackwardSettings, TaskSettings
from nemo_ada.tasks.tokenizer import CharTokenizer

__all__ = [
    "CharTokenizer",
    "Demonstration",
    "JsonlSettings",
    "MiniSudokuSettings",
    "Prompt",
    "SpellBackwardSettings",
    "Splits",
    "Task",
    "TaskSettings",
    "build_task",
    "canonical_text",
]
