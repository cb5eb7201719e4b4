"""What an earlier run measured, by its metrics.jsonl, its evaluations.jsonl and its newest checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.errors import UserError
from nemo_ada.run.files import json_of
from nemo_ada.run.folder import RunDir, read_lines

SAMPLER_STATES = ("state.json", "reinforce_ada.json")  # embedded, NeMo-RL
log = logging.getLogger(__name__)

MAX_VALUE = 1e15  # of any figure of a step
MIN_STEPS = 3  # of a run that is worth a forecast


@dataclass(frozen=True, slots=True)
class History:
    """The steps of a run. Arrays with the axis S have one entry per step.

    Attributes:
        sampling_S: seconds of the sampling phase.
        update_S: seconds of the update.
        refit_S: seconds of the refit.
        engine_steps_S: steps of the engine.
        tokens_S: tokens that were generated.
        responses_S: responses that were drawn.
        rows_S: rows with an advantage.
        pass_rate: mean pass rate.
        zero_signal: share of groups of equal labels, if the groups had the size of GRPO's.
        mean_length: mean tokens of a response.
        evaluation: seconds of a validation. 0 where the run made none.
        lengths_L: tokens of single responses. It may be empty.
    """

    sampling_S: FloatArray
    update_S: FloatArray
    refit_S: FloatArray
    engine_steps_S: FloatArray
    tokens_S: FloatArray
    responses_S: FloatArray
    rows_S: FloatArray
    pass_rate: float
    zero_signal: float
    mean_length: float
    evaluation: float
    lengths_L: IntArray

    @classmethod
    def read(cls, run_dir: Path, *, steps: int | None = None) -> History:
        """Read the first `steps` steps of a run, all of them by default. Raises UserError for few or damaged steps."""
        records = read_lines(run_dir / "metrics.jsonl")[:steps]
        if len(records) < MIN_STEPS:
            raise UserError(
                f"--run={run_dir}: metrics.jsonl holds {len(records)} steps, at least {MIN_STEPS} are needed; name a "
                "folder that `nemo-ada train` wrote"
            )

        def column(name: str, default: float | None = None) -> FloatArray:
            return np.array([_read_number(record, name, default, run_dir / "metrics.jsonl") for record in records])

        path = run_dir / "evaluations.jsonl"
        evaluations = [_read_number(record, "time/evaluation", None, path) for record in read_lines(path)]
        tokens, responses = column("ada/tokens_drawn"), column("ada/samples_drawn")
        return cls(
            sampling_S=column("time/sampling"),
            update_S=column("time/update"),
            refit_S=column("time/refit"),
            engine_steps_S=column("engine_steps", 0.0),
            tokens_S=tokens,
            responses_S=responses,
            rows_S=column("ada/live_rows"),
            pass_rate=float(column("ada/pass_rate").mean()),
            zero_signal=float(column("ada/zero_signal_groups_if_grpo").mean()),
            mean_length=float(tokens.sum() / max(responses.sum(), 1.0)),
            evaluation=float(np.median(evaluations)) if evaluations else 0.0,
            lengths_L=_read_lengths(run_dir),
        )

    def beta(self, group: int) -> tuple[float, float]:
        """Return the Beta(a, b) with the run's mean pass rate and with its share of groups whose labels all agree.

        This share, E[p^n + (1-p)^n] for groups of n = `group` rows, falls with a + b. So a bisection gives a + b.
        """
        mean = min(max(self.pass_rate, 0.01), 0.99)
        low, high = 0.05, 200.0
        for _ in range(60):
            middle = float(np.sqrt(low * high))
            if _compute_equal_share(mean * middle, (1 - mean) * middle, group) > self.zero_signal:
                low = middle
            else:
                high = middle
        return mean * low, (1 - mean) * low


def _read_number(record: Mapping[str, Any], name: str, default: float | None, path: Path) -> float:
    """Return a finite number that is not negative. Raises UserError with the file and the record's step."""
    value = record.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_VALUE:
        fault = "is missing" if value is None else f"is {str(value)[:40]!r}, no number that can be"
        raise UserError(f"--run: {path}: {name} of step {str(record.get('step'))[:20]} {fault}; mend the file")
    return float(value)


def _compute_equal_share(a: float, b: float, n: int) -> float:
    """E[p^n + (1-p)^n] under Beta(a, b)."""
    k = np.arange(n)
    return float(np.prod((a + k) / (a + b + k)) + np.prod((b + k) / (a + b + k)))


def _read_lengths(run_dir: Path) -> IntArray:
    """Return the tokens of single responses, by the newest checkpoint of either back end that can be read."""
    saved = reversed(RunDir(run_dir).list_checkpoints())
    for state in (path for folder in saved for name in SAMPLER_STATES if (path := folder / name).exists()):
        try:
            lengths = json_of(state)["sampler"]["latency"]["lengths"]
            return np.array([length for length in lengths if 0 < int(length) < MAX_VALUE], np.int64)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as problem:
            log.warning("%s: no response lengths (%s)", state, str(problem)[:100])
    return np.zeros(0, np.int64)
