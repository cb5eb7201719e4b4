"""Step times: phases measured in an earlier run, or published, carried to this plan by the simulated sampling phase.

Sampling of a step = (a * engine steps + b * tokens) * noise, with a, b >= 0 and the noise fitted to the run. The last
factor is resampled, so p95 has the machine's noise in it; worst is a bound of the plan (`phase.worst_work`) at the
slowest pace seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.plan import SamplingPlan
from nemo_ada.planning.history import History
from nemo_ada.planning.phase import Phases, worst_work

FloatArray = NDArray[np.float64]
DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a phase and how far to trust them: measured here, published, extrapolated or assumed."""

    p50: float
    p95: float
    worst: float
    source: str


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of the sampling phase = (per_step * engine steps + per_token * tokens) * a factor of noise_S."""

    per_step: float
    per_token: float
    noise_S: FloatArray

    def seconds(self, engine_steps: FloatArray | float, tokens: FloatArray | float) -> FloatArray:
        """Without noise."""
        return np.asarray(self.per_step * engine_steps + self.per_token * tokens, np.float64)

    @classmethod
    def fit(cls, history: History) -> Pace:
        """Least squares with both coefficients >= 0 over the run's steps; engine steps alone where that is as good."""
        work = {
            (1, 0): np.stack([history.engine_steps_S, np.zeros_like(history.tokens_S)]),
            (0, 1): np.stack([np.zeros_like(history.tokens_S), history.tokens_S]),
            (1, 1): np.stack([history.engine_steps_S, history.tokens_S]),
        }
        best: tuple[float, FloatArray] | None = None
        for columns in work.values():
            found = np.linalg.lstsq(columns.T, history.sampling_S, rcond=None)[0]
            fitted = found @ columns
            if (found < 0).any() or (fitted <= 0).any():
                continue
            error = float(np.abs(history.sampling_S / fitted - 1.0).mean())
            if best is None or error < 0.98 * best[0]:
                best = error, found
        if best is None:
            best = 0.0, np.array([0.0, float(np.median(history.sampling_S / history.tokens_S))])
        a, b = best[1]
        ratio = history.sampling_S / (a * history.engine_steps_S + b * history.tokens_S)
        middle = float(np.median(ratio))
        return cls(float(a) * middle, float(b) * middle, ratio / middle)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Phases of a step by name, and the whole step; evaluation and save come between steps."""

    phases: dict[str, Time]
    step: Time
    evaluation: Time
    save: Time
    fixed: float = 0.0
    """Seconds of the first phase that do not follow the engine's steps (published figures hold log-probs and refit)."""


def from_history(
    history: History,
    own: Phases,
    this: Phases,
    plan: SamplingPlan,
    *,
    prompts: int,
    slots: int | None,
    longest: int,
    save: Time,
    seed: int = 0,
) -> Forecast:
    """Forecast for `plan` from a run. own, this: simulated phases of the run's plan and of `plan` (may be the same).

    The simulation is calibrated on the run: its median of the run's own plan is the run's median.
    """
    rng, pace = np.random.default_rng(seed), Pace.fit(history)
    calibration = float(np.median(history.sampling_S) / np.median(pace.seconds(own.engine_steps_S, own.tokens_S)))
    simulated_S = pace.seconds(this.engine_steps_S, this.tokens_S) * calibration
    drawn = rng.integers(len(history.update_S), size=DRAWS)  # phases of a step together: a slow machine slows all
    sampling = rng.choice(simulated_S, DRAWS) * pace.noise_S[drawn]
    update, refit = history.update_S[drawn], history.refit_S[drawn]
    slowest = max(1.0, float(pace.noise_S.max()))
    bound = float(pace.seconds(*worst_work(plan, prompts, slots, longest))) * max(calibration, 1.0) * slowest
    bound = max(bound, float(sampling.max()))
    if plan.caps.max_seconds is not None:
        drain = longest * pace_per_engine_step(pace, history) * slowest
        bound = min(bound, max(plan.caps.max_seconds, float(np.quantile(sampling, 0.95))) + drain)
    every_row = prompts * plan.group_size / max(float(np.median(history.rows_S)), 1.0)
    label = "measured here" if own is this else "measured here, carried to this plan by simulation"
    phases = {
        "sampling": Time(*_quantiles(sampling), bound, label),
        "training": Time(*_quantiles(update), float(history.update_S.max()) * max(every_row, 1.0), "measured here"),
        "refit": Time(*_quantiles(refit), float(history.refit_S.max()), "measured here"),
    }
    total = sampling + update + refit
    step = Time(*_quantiles(total), sum(time.worst for time in phases.values()), label)
    seen = history.evaluation
    evaluation = Time(seen, 1.5 * seen, 2 * seen, "measured here") if seen else Time(0.0, 0.0, 0.0, "not measured")
    return Forecast(phases, step, evaluation, save)


def pace_per_engine_step(pace: Pace, history: History) -> float:
    """Seconds of one engine step at the run's mean load."""
    tokens_per_step = float((history.tokens_S / np.maximum(history.engine_steps_S, 1)).mean())
    return pace.per_step + pace.per_token * tokens_per_step


def _quantiles(seconds: FloatArray) -> tuple[float, float]:
    return float(np.quantile(seconds, 0.5)), float(np.quantile(seconds, 0.95))


def from_published(
    sampling: float,
    fixed: float,
    update: float,
    label: str,
    this: Phases,
    worst_steps: float,
    *,
    evaluation: Time,
    save: Time,
    cap: float | None = None,
) -> Forecast:
    """Forecast from a step time that somebody published: `sampling` is this plan's median, spread as simulated.

    Log-probs, refit and whatever else the published figure held stay inside `sampling`, as its part `fixed`: nobody
    published them apart. cap: budget.max_seconds.
    """
    median = float(np.median(this.engine_steps_S))
    p95 = fixed + (sampling - fixed) * float(np.quantile(this.engine_steps_S, 0.95)) / median
    worst = fixed + (sampling - fixed) * worst_steps / median
    if cap is not None:
        first_waves = fixed + (sampling - fixed) * float(this.engine_steps_S.min()) / median
        worst = min(worst, fixed + max(cap, first_waves) * 1.5)
        sampling, p95 = min(sampling, fixed + max(cap, first_waves)), min(p95, worst)
    phases = {
        "sampling, log-probs, refit": Time(sampling, p95, worst, label),
        "training": Time(update, 1.1 * update, 1.3 * update, label),
    }
    step = Time(
        sum(time.p50 for time in phases.values()),
        sum(time.p95 for time in phases.values()),
        sum(time.worst for time in phases.values()),
        label,
    )
    return Forecast(phases, step, evaluation, save, fixed)
