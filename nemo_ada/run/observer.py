"""Callbacks of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks for the progress of a run.

    Attributes:
        on_base: Called with step, number of steps and loss while the base model trains.
        on_message: Called with a text for people.
        on_phase: Called with the number of finished steps and the phase that begins: sampling, update, refit,
            evaluation or save.
        on_step: Called with the record of a step that the run folder also gets.
        on_evaluation: Called with the record of an evaluation that the run folder also gets.
    """

    on_base: Callable[[int, int, float], None] = lambda step, steps, loss: None
    on_message: Callable[[str], None] = lambda text: None
    on_phase: Callable[[int, str], None] = lambda step, phase: None
    on_step: Callable[[Mapping[str, Any]], None] = lambda record: None
    on_evaluation: Callable[[Mapping[str, Any]], None] = lambda record: None
