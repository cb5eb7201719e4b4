"""Callbacks of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks for the progress of a run.

    on_base(step, steps, loss); on_message(text); on_phase(steps done, next phase: sampling, update, refit, evaluation
    or save). on_step and on_evaluation get the record that the run folder also gets.
    """

    on_base: Callable[[int, int, float], None] = lambda step, steps, loss: None
    on_message: Callable[[str], None] = lambda text: None
    on_phase: Callable[[int, str], None] = lambda step, phase: None
    on_step: Callable[[Mapping[str, Any]], None] = lambda record: None
    on_evaluation: Callable[[Mapping[str, Any]], None] = lambda record: None
