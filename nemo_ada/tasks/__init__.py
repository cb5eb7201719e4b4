"""Tasks: prompts, their verifier, and the base model's demonstrations. Imports no torch, ray or vllm."""

from __future__ import annotations

from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, Task, canonical_text
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings, MiniSudokuSettings, SpellBackwardSettings, TaskSettings
from nemo_ada.tasks.supervision import DemonstrationBatches, SupervisedBatch
from nemo_ada.tasks.tokenizer import CharTokenizer

__all__ = [
    "CharTokenizer",
    "Demonstration",
    "DemonstrationBatches",
    "JsonlSettings",
    "MiniSudokuSettings",
    "Prompt",
    "SpellBackwardSettings",
    "Splits",
    "SupervisedBatch",
    "Task",
    "TaskSettings",
    "build_task",
    "canonical_text",
]
