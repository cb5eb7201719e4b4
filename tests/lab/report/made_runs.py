"""Run directories with known numbers: what the embedded trainer writes, without training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

PROMPTS, GROUP = 64, 4


def step_record(step: int, lift: float = 0.0, **extra: Any) -> dict[str, Any]:
    """A step whose pass rate rises from .2 towards .6; 20 responses per prompt."""
    rate = 0.2 + lift + 0.4 * (1 - math.exp(-step / 40)) + 0.02 * math.sin(step)
    sampling = 2.0 + 0.1 * (step % 7)
    return {
        "step": step,
        "ada/samples_drawn": 20.0 * PROMPTS,
        "ada/prompts_drawn": float(PROMPTS),
        "ada/zero_signal_groups": 0.25,
        "ada/zero_signal_groups_if_grpo": 0.5,
        "ada/pass_rate": rate,
        "ada/weight_max": 2.0,
        "time/sampling": sampling,
        "time/update": 0.3,
        "time/refit": 0.03,
        "time/step": sampling + 0.33,
        **_totals(step),
        **extra,
    }


def evaluation_record(step: int, lift: float = 0.0) -> dict[str, Any]:
    """An evaluation on the same curve."""
    rate = 0.2 + lift + 0.4 * (1 - math.exp(-step / 40))
    return {"step": step, "val/accuracy": rate, "val/pass@4": rate + 0.2, "time/evaluation": 1.5, **_totals(step)}


def _totals(step: int) -> dict[str, float]:
    return {
        "total/responses": 20 * PROMPTS * step,
        "total/tokens": 20 * PROMPTS * 17 * step,
        "total/rows": PROMPTS * GROUP * step,
        "total/live_rows": 192 * step,
        "total/engine_steps": 17 * step,
        "total/seconds": 2.6 * step,
    }


def make_run(
    folder: Path, steps: int = 60, *, every: int = 10, lift: float = 0.0, config: Any = None, **extra: Any
) -> Path:
    """A finished run of `steps` steps, evaluated every `every` steps; `extra` is in each step's record."""
    folder.mkdir(parents=True)
    lines = [json.dumps(step_record(step, lift, **extra)) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps(evaluation_record(step, lift)) for step in range(0, steps + 1, every)]
    (folder / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"task": {"name": "t"}, "grpo": {"seed": 0}, "run_dir": str(folder)} | (config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "status.json").write_text(json.dumps({"state": "done", "step": steps, "max_steps": steps}))
    return folder


@contextmanager
def rewrite(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The step records of a run, to be changed in place; then they are written back."""
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    yield records
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
