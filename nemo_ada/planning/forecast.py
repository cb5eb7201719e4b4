"""Step times: phases measured in an earlier run, or published, carried to this plan by the simulated sampling phase.

Sampling of a step = (a * engine steps + b * tokens) * noise, with a, b >= 0 and the noise fitted to the run. The last
factor is resampled, so p95 has the machine's noise in it; worst is a bound of the plan (`phase.worst_work`) at the
slowest pace seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.planning.history import History
from nemo_ada.planning.phase import Phases

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
    """Seconds of the sampling phase = (per_step * engine steps + per_token * tokens) * calibration * one of noise_S."""

    per_step: float
    per_token: float
    noise_S: FloatArray
    calibration: float = 1.0

    def seconds(self, engine_steps: FloatArray | float, tokens: FloatArray | float) -> FloatArray:
        """Of simulated work, without noise."""
        return np.asarray(self.calibration * (self.per_step * engine_steps + self.per_token * tokens), np.float64)

    def bound(self, engine_steps: float, tokens: float) -> float:
        """Of work that no step passes, at the slowest pace seen."""
        slowest = max(1.0, float(self.noise_S.max()))
        return float(self.seconds(engine_steps, tokens)) / min(self.calibration, 1.0) * slowest

    @property
    def clock(self) -> tuple[float, float]:
        """Seconds of a simulated engine step, and more of it per running response."""
        return max(self.calibration * self.per_step, 1e-9), self.calibration * self.per_token

    def calibrated(self, history: History, own: Phases) -> Pace:
        """With the run's median as the median of its own simulated phases."""
        simulated = self.per_step * own.engine_steps_S + self.per_token * own.tokens_S
        return replace(self, calibration=float(np.median(history.sampling_S) / np.median(simulated)))

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
class Published:
    """A published step without its update: seconds per engine step, seconds that do not follow the engine's steps, and
    where they come from."""

    per_step: float
    fixed: float
    source: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """Phases of a step by name, and the whole step; evaluation and save come between steps."""

    phases: dict[str, Time]
    step: Time
    evaluation: Time
    save: Time
    fixed: float = 0.0
    """Seconds of the first phase that do not follow the engine's steps (published figures hold log-probs and refit)."""

    @property
    def sampling(self) -> Time:
        """The first phase, which the caps bound."""
        return next(iter(self.phases.values()))


def from_history(
    history: History,
    pace: Pace,
    this: Phases,
    plan: SamplingPlan,
    *,
    prompts: int,
    longest: int,
    worst: tuple[float, float],
    save: Time,
    carried: float | None = None,
    seed: int = 0,
) -> Forecast:
    """Forecast for `plan` from a run. pace: calibrated. this: simulated phases of `plan`.

    worst: engine steps and tokens that no step of `plan` passes. carried: where `plan` is not the run's own, its rows
    with an advantage over the run's, which is what the update costs.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(history.update_S), size=DRAWS)  # phases of a step together: a slow machine slows all
    sampling = rng.choice(pace.seconds(this.engine_steps_S, this.tokens_S), DRAWS) * pace.noise_S[drawn]
    update, refit = history.update_S[drawn] * (carried or 1.0), history.refit_S[drawn]
    bound = max(pace.bound(*worst), float(sampling.max()))
    if plan.caps.max_seconds is not None:
        drain = pace.bound(longest, longest * tokens_per_engine_step(history))
        bound = min(bound, max(plan.caps.max_seconds, float(np.quantile(sampling, 0.95))) + drain)
    every_row = prompts * plan.group_size / max(float(np.median(history.rows_S)), 1.0)
    label = "measured here" + ("" if carried is None else ", carried to this plan by simulation")
    phases = {
        "sampling": Time(*_quantiles(sampling), bound, label),
        "update": Time(*_quantiles(update), float(history.update_S.max()) * max(every_row, 1.0), label),
        "refit": Time(*_quantiles(refit), float(history.refit_S.max()), "measured here"),
    }
    total = sampling + update + refit
    step = Time(*_quantiles(total), sum(time.worst for time in phases.values()), label)
    seen = history.evaluation
    evaluation = Time(seen, 1.5 * seen, 2 * seen, "measured here") if seen else Time(0.0, 0.0, 0.0, "not measured")
    return Forecast(phases, step, evaluation, save)


def tokens_per_engine_step(history: History) -> float:
    """Responses in flight, mean over the run's engine steps."""
    return float((history.tokens_S / np.maximum(history.engine_steps_S, 1)).mean())


def _quantiles(seconds: FloatArray) -> tuple[float, float]:
    return float(np.quantile(seconds, 0.5)), float(np.quantile(seconds, 0.95))


def from_published(
    sampling: Published,
    update: tuple[float, str],
    this: Phases,
    worst_steps: float,
    *,
    longest: int,
    evaluation: Time,
    save: Time,
    cap: float | None = None,
) -> Forecast:
    """Forecast from step times that somebody published, spread as simulated. update: seconds, and their source.

    Log-probs, refit and whatever else the published figure held stay inside the first phase, as its part `fixed`:
    nobody published them apart. cap: budget.max_seconds, which `this` was simulated under; what is in flight then
    takes a longest response more.
    """
    fixed, unit = sampling.fixed, sampling.per_step
    p50, p95 = (fixed + unit * float(np.quantile(this.engine_steps_S, q)) for q in (0.5, 0.95))
    worst = fixed + unit * worst_steps
    said = f"{sampling.source}; p95 and worst simulated"
    if cap is not None:
        worst = max(p95, min(worst, fixed + cap + unit * longest))
        said += f", and the effect of max_seconds={cap:g}"
    seconds, update_said = update
    phases = {
        "sampling, rest": Time(p50, p95, worst, said),
        "update": Time(seconds, 1.1 * seconds, 1.3 * seconds, f"{update_said}; p95 and worst assumed: x1.1, x1.3"),
    }
    step = Time(
        sum(time.p50 for time in phases.values()),
        sum(time.p95 for time in phases.values()),
        sum(time.worst for time in phases.values()),
        f"{sampling.source.partition(' (')[0]}; update {update_said.partition(' (')[0]}",
    )
    return Forecast(phases, step, evaluation, save, fixed)
