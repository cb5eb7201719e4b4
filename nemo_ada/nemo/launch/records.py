"""Write metrics.jsonl and evaluations.jsonl of a NeMo-RL run, which `nemo-ada report` and `nemo-ada plan --run` read.

`Records` is a back end of NeMo-RL's own logger, so it has the methods of its LoggerInterface. grpo_train logs a step in
pieces, each with a prefix. We give the metrics the names of the CPU back end, and write a line at the end of the
step:

    train              -> ada/... as they are, everything else as train/...
    timing/train       -> time/sampling, time/update, time/refit, time/step, time/save, and also timing/...
    validation         -> val/... in evaluations.jsonl, with time/evaluation
    performance        -> performance/...

engine_steps is the fewest steps that the rollout can have taken (metrics.bound_engine_steps).

The time of sampling is NeMo-RL's `generation`, and that of the refit its `prepare_for_generation/total`. In
asynchronous training they are `exposed_generation`, in which the learner waits for groups, and `weight_sync`. The
update is the rest of the step (log-probabilities, advantages, training). Saves and evaluations belong to no step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nemo_ada.core.metrics import PREFIX
from nemo_ada.nemo.metrics import ENGINE_STEPS
from nemo_ada.run import policy_gap
from nemo_ada.run.folder import RunDir, read_lines

log = logging.getLogger(__name__)

METRICS, EVALUATIONS = "metrics", "evaluations"
TRAIN, TIMING, VALIDATION, VALIDATION_TIMING, PERFORMANCE = (
    "train",
    "timing/train",
    "validation",
    "timing/validation",
    "performance",
)
PREFIXES = (TRAIN, TIMING, VALIDATION, VALIDATION_TIMING, PERFORMANCE)
TOTALS = ("responses", "tokens", "rows", "live_rows", "seconds")
NEWEST, VERSIONS = PREFIX + "newest_prob_error", PREFIX + "pools_mixed_versions"
PER_CALL = (*(PREFIX + name for name in ("samples_drawn", "tokens_drawn", "prompts_drawn")), ENGINE_STEPS)
VALIDATION_NAMES = {"avg_length": "response_length"}
Unlogged = Callable[[], Mapping[str, list[int] | float]]


class Records:
    """Writes a run's records into its folder, line by line. The pieces of an unfinished step stay in memory."""

    def __init__(self, run_dir: RunDir, rows: int, unlogged: Unlogged, step: int) -> None:
        """Write into a run's folder. Records after `step` are removed.

        Args:
            run_dir: The run's folder.
            rows: Training rows of a step.
            unlogged: Gives the metrics of the last step that NeMo-RL does not log.
            step: Complete steps of the run.
        """
        run_dir.rewind(step if step > 0 else -1)
        lines = read_lines(run_dir.path / f"{METRICS}.jsonl")
        before = lines[-1] if lines else {}
        self._run_dir, self._rows, self._unlogged = run_dir, rows, unlogged
        self._totals: dict[str, float] = {name: before.get(f"total/{name}", 0.0) for name in TOTALS}
        self._pieces: dict[str, dict[str, float]] = {}
        self._calls: list[dict[str, float]] = []  # metrics of the step's rollout calls, in the order of the log

    @contextmanager
    def log_from(self, logger: Any) -> Iterator[None]:
        """Within the block NeMo-RL's logger also logs to these records."""
        logger.loggers.append(self)
        try:
            yield
        finally:
            logger.loggers.remove(self)

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Remember the numbers of one piece. With `step_finished` write the step."""
        if prefix not in PREFIXES:  # NeMo-RL's monitor of the GPUs logs from another thread
            return
        numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
        if prefix == TRAIN and PER_CALL[0] in numbers:
            self._calls.append(numbers)
        self._pieces.setdefault(prefix, {}).update(numbers)
        if step_finished:
            self._write(step)
        elif step == 0 and {VALIDATION, VALIDATION_TIMING} <= self._pieces.keys():
            self._write_evaluation(step)

    def log_hyperparams(self, *_: Any) -> None:
        """Do nothing, because config.yaml has the parameters."""

    log_histogram = log_plot = log_hyperparams

    def _write(self, step: int) -> None:
        """Write the step's line, and that of its validation."""
        train, timing = self._pieces.get(TRAIN, {}), self._pieces.get(TIMING, {})
        unlogged = self._unlogged()
        train |= self._sum_rollout_calls() | {
            name: value for name, value in unlogged.items() if isinstance(value, float)
        }
        times = self._compute_phases(timing)
        increase = {
            "responses": train.get(PER_CALL[0], 0.0),
            "tokens": train.get(PER_CALL[1], 0.0),
            "rows": float(self._rows),
            "live_rows": train.get(PREFIX + "live_rows", 0.0),
            "seconds": times["step"],
        }
        self._totals = {name: value + increase[name] for name, value in self._totals.items()}
        record = {
            "step": step,
            **{name if name.startswith(PREFIX) else f"train/{name}": value for name, value in train.items()},
            "engine_steps": train.get(ENGINE_STEPS, 0.0),
            **{f"time/{name}": value for name, value in times.items()},
            **{f"timing/{name}": value for name, value in timing.items()},
            **{f"performance/{name}": value for name, value in self._pieces.get(PERFORMANCE, {}).items()},
            **unlogged,
            **self._name_totals(),
        }
        self._run_dir.log(METRICS, record, tensorboard=False)
        error = train.get(NEWEST if VERSIONS in train else policy_gap.METRIC)  # async GRPO mixes versions by design
        if error is not None and not error <= policy_gap.HIGHEST:  # NaN counts as too high
            log.warning("%s", policy_gap.write_advice(f"step {step}", error))
        if VALIDATION in self._pieces:
            self._write_evaluation(step)
        self._pieces, self._calls = {}, []

    def _sum_rollout_calls(self) -> dict[str, float]:
        """Return responses, tokens and prompts of all rollout calls of the step together.

        DAPO's filtering makes several calls. The loop logs the last one again at the end of the step.
        """
        calls = self._calls[:-1] if len(self._calls) > 1 else self._calls
        return {name: sum(call[name] for call in calls) for name in PER_CALL if calls and name in calls[0]}

    def _compute_phases(self, timing: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of each phase of the step, from NeMo-RL's timers."""
        sampling = timing.get("generation", timing.get("exposed_generation", 0.0))
        refit = timing.get("prepare_for_generation/total", timing.get("weight_sync", 0.0))
        save, evaluation = timing.get("checkpointing", 0.0), self._get_evaluation_seconds()
        update = max(timing.get("total_step_time", 0.0) - sampling - refit - save - evaluation, 0.0)
        step = sampling + update + refit
        return {"sampling": sampling, "update": update, "refit": refit, "step": step, "save": save}

    def _get_evaluation_seconds(self) -> float:
        return self._pieces.get(VALIDATION_TIMING, {}).get("total_validation_time", 0.0)

    def _write_evaluation(self, step: int) -> None:
        """Write the line of a validation."""
        values = self._pieces.pop(VALIDATION)
        names = {name: VALIDATION_NAMES.get(name, name.removeprefix(PREFIX)) for name in values}
        record = {
            "step": step,
            **{f"val/{names[name]}": value for name, value in values.items()},
            "time/evaluation": self._get_evaluation_seconds(),
            **self._name_totals(),
        }
        self._pieces.pop(VALIDATION_TIMING, None)
        if values:
            self._run_dir.log(EVALUATIONS, record, tensorboard=False)

    def _name_totals(self) -> dict[str, float]:
        return {f"total/{name}": value for name, value in self._totals.items()}


def _number(value: Any) -> float | None:
    """Return a scalar of Python, numpy or torch as a float. None for everything else that NeMo-RL logs."""
    if isinstance(value, bool | str):
        return None
    if getattr(value, "ndim", 0) == 0 and hasattr(value, "item"):
        value = value.item()
    return float(value) if isinstance(value, int | float) else None
