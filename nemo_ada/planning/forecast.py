"""Step times: the pace of an earlier run, or of the roofline, over the simulated work of the sampling phase.

Sampling of a step = (a * engine steps + b * tokens) * noise. A run's noise is fitted and resampled, so that its p95 has
the machine's noise in it. The roofline has none: its p95 and worst take the slow end of its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.planning.history import History
from nemo_ada.planning.roofline import RANGE, Roofline
from nemo_ada.planning.sampling import Phases

DRAWS = 4000
LEARNING = ("log-probs", "update")  # phases whose time grows with the tokens that are trained on
UNCOVERED = {"asynchronous training": (0.32, 1.49), "FP8": RANGE}
"""What no fitted point covers, and published / forecast seconds of rows that nobody had fitted.

Compared on 24 November 2026 with NeMo-RL's performance page: five asynchronous rows (forecast / published 1.14, 1.04,
.67, 1.79 and 3.13) and one FP8 row (1.05). recipes/results/forecast.md has the fitted points.
"""
# of CPU per response in one thread of NeMo-RL's driver (no GPU); 0.3 ms of it are ours (bench_driver.py)
DRIVER_SECONDS = 0.0077


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a phase and how far to trust them: measured here, roofline or assumed."""

    p50: float
    p95: float
    worst: float
    source: str


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of the sampling phase = (per_step * engine steps + per_token * tokens) * one of noise_S, and no less than
    per_response for each response."""

    per_step: float
    per_token: float
    noise_S: FloatArray
    per_response: float = 0.0

    @property
    def clock(self) -> tuple[float, float]:
        """Seconds of a simulated engine step, and more of it per running response."""
        return max(self.per_step, 1e-9), self.per_token

    def seconds(self, work: Phases) -> FloatArray:
        """Of simulated steps, without noise."""
        engine = self.per_step * work.engine_steps_S + self.per_token * work.tokens_S
        return np.asarray(np.maximum(engine, self.per_response * work.responses_S), np.float64)

    def bound(self, engine_steps: float, tokens: float, responses: float = 0.0) -> float:
        """Of work that no step passes, at the slowest pace seen."""
        slowest = max(1.0, float(self.noise_S.max()))
        return max(self.per_step * engine_steps + self.per_token * tokens, self.per_response * responses) * slowest

    @classmethod
    def of_roofline(cls, roofline: Roofline, mean_tokens: float) -> Pace:
        """Without a run. mean_tokens: of a response."""
        return cls(*roofline.clock(mean_tokens), np.ones(1), DRIVER_SECONDS)

    @classmethod
    def fit(cls, history: History) -> Pace:
        """Least squares with both coefficients >= 0 over the run's steps; engine steps alone where that is as good."""
        steps_S, tokens_S = history.engine_steps_S, history.tokens_S
        zeros_S = np.zeros_like(tokens_S)
        best: tuple[float, FloatArray] | None = None
        for columns in ([steps_S, zeros_S], [zeros_S, tokens_S], [steps_S, tokens_S]):
            work = np.stack(columns)
            factors: FloatArray = np.linalg.lstsq(work.T, history.sampling_S, rcond=None)[0].astype(np.float64)
            fitted_S = factors @ work
            if (factors < 0).any() or (fitted_S <= 0).any():
                continue
            error = float(np.abs(history.sampling_S / fitted_S - 1.0).mean())
            if best is None or error < 0.98 * best[0]:
                best = error, factors
        if best is None:
            best = 0.0, np.array([0.0, float(np.median(history.sampling_S / tokens_S))])
        a, b = best[1]
        ratio_S = history.sampling_S / (a * steps_S + b * tokens_S)
        middle = float(np.median(ratio_S))
        return cls(float(a) * middle, float(b) * middle, ratio_S / middle)

    def calibrated(self, history: History, own: Phases) -> Pace:
        """With the run's median as the median of its own simulated phases."""
        factor = float(np.median(history.sampling_S) / np.median(self.seconds(own)))
        return replace(self, per_step=factor * self.per_step, per_token=factor * self.per_token)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a step.

    Attributes:
        phases: the phases of a step by name.
        step: the whole step.
        evaluation: a validation, between steps.
        save: a checkpoint, between steps.
        low: lower end of the median step's range.
        high: upper end of the median step's range.
        ahead: whether the next steps are sampled while this one is trained on.
        uncovered: what of the configuration no published step time covers; empty where all is covered.
    """

    phases: dict[str, Time]
    step: Time
    evaluation: Time
    save: Time
    low: float
    high: float
    ahead: bool = False
    uncovered: tuple[str, ...] = ()

    @property
    def slow(self) -> float:
        """Seconds on the slowest machine of the range, over the median's."""
        return self.high / self.step.p50 if self.step.p50 else 1.0

    @property
    def sampling(self) -> Time:
        """The first phase, which the caps bound."""
        return self.phases["sampling"]

    def with_sampling(self, seconds: float, trained: float = 1.0) -> float:
        """Median seconds of a step of another preset.

        Args:
            seconds: of its sampling phase.
            trained: tokens that its update computes, relative to those of this forecast.
        """
        phases = {name: time.p50 * (trained if name in LEARNING else 1.0) for name, time in self.phases.items()}
        return float(whole_step(phases | {"sampling": seconds}, self.ahead))


def whole_step(seconds: Mapping[str, Any], ahead: bool) -> Any:
    """Of a step, from those of its phases. In asynchronous training engine and learner have GPUs of their own and work
    at the same time; both stop for the refit. Whoever takes longer sets the pace."""
    if not ahead:
        return sum(seconds.values())
    learner = sum(value for name, value in seconds.items() if name not in ("sampling", "refit"))
    return np.maximum(seconds["sampling"], learner) + seconds["refit"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no step passes: engine steps, tokens and responses; seconds after which no response starts
    (budget.max_seconds), and tokens that the longest response in flight may still take."""

    engine_steps: float
    tokens: float
    responses: float
    max_seconds: float | None
    longest: int


def forecast(
    pace: Pace,
    work: Phases,
    bounds: Bounds,
    others: Mapping[str, tuple[FloatArray, float]],
    *,
    evaluation: Time,
    save: Time,
    source: str,
    error: tuple[float, float] = (1.0, 1.0),
    ahead: bool = False,
    seed: int = 0,
) -> Forecast:
    """A step's phases. work: simulated. others: phase -> (seconds of the steps that pace.noise_S is of, worst). error:
    true seconds over forecast seconds, smallest and largest; p95 and worst take the largest."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(pace.noise_S), size=DRAWS)  # phases of a step together: a slow machine slows all
    sampling = rng.choice(pace.seconds(work), DRAWS) * pace.noise_S[drawn]
    slow = error[1]
    worst = slow * max(pace.bound(bounds.engine_steps, bounds.tokens, bounds.responses), float(sampling.max()))
    if bounds.max_seconds is not None:  # a clock ends sampling, so a slow machine only lengthens what is in flight
        drain = slow * drain_seconds(pace, work, bounds.longest)
        worst = min(worst, max(bounds.max_seconds, float(np.quantile(sampling, 0.95))) + drain)
    draws = {"sampling": (sampling, worst)}
    draws |= {name: (seconds_S[drawn], slow * most) for name, (seconds_S, most) in others.items()}
    phases = {
        name: Time(float(np.median(seconds)), min(slow * float(np.quantile(seconds, 0.95)), most), most, source)
        for name, (seconds, most) in draws.items()
    }
    total = whole_step({name: seconds for name, (seconds, _) in draws.items()}, ahead)
    median = float(np.median(total))
    worst_step = float(whole_step({name: phase.worst for name, phase in phases.items()}, ahead))
    step = Time(median, min(slow * float(np.quantile(total, 0.95)), worst_step), worst_step, source)
    return Forecast(phases, step, evaluation, save, error[0] * median, slow * median, ahead)


def drain_seconds(pace: Pace, work: Phases, longest: int) -> float:
    """Seconds that the longest response takes beside as many as run on average."""
    running = float((work.tokens_S / np.maximum(work.engine_steps_S, 1)).mean())
    return pace.bound(longest, longest * running)


def of_roofline(
    roofline: Roofline,
    pace: Pace,
    work: Phases,
    bounds: Bounds,
    *,
    rows: int,
    val_samples: int,
    save: Time,
    live: float = 1.0,
    ahead: bool = False,
) -> Forecast:
    """Without a run.

    Args:
        rows: rows of a step.
        val_samples: responses of a validation.
        live: share of rows that the learner computes whole; a placeholder row has one token of response.
        ahead: asynchronous training.
    """
    mean = trained_tokens(work, live)
    others = {
        "log-probs": roofline.logprobs(rows, mean),
        "update": roofline.update(rows, mean),
        "refit": roofline.refit,
        "rest": roofline.efficiencies.rest,
    }
    longest = roofline.logprobs(rows, bounds.longest), roofline.update(rows, bounds.longest)
    worst = others | {"log-probs": longest[0], "update": longest[1]}
    seconds = pace.per_step * bounds.longest + pace.per_token * val_samples * work.mean_tokens + roofline.refit
    c = roofline.config
    missing = {"asynchronous training": ahead, "FP8": c.fp8_train or c.fp8_rollout}
    uncovered = tuple(name for name, absent in missing.items() if absent)
    error = next((UNCOVERED[name] for name in uncovered), RANGE)  # the widest comes first
    evaluation = Time(seconds, error[1] * seconds, 2 * error[1] * seconds, "roofline")
    made = forecast(
        pace, work, bounds, {name: (np.array([value]), worst[name]) for name, value in others.items()},
        evaluation=evaluation, save=save, source="roofline, H100-80GB", error=error, ahead=ahead,
    )  # fmt: skip
    return replace(made, uncovered=uncovered)


def trained_tokens(work: Phases, live: float) -> float:
    """Mean tokens of a row's response that the learner computes. live: share of rows that are no placeholders."""
    return live * work.mean_tokens + (1.0 - live)


def of_history(
    history: History, pace: Pace, work: Phases, bounds: Bounds, *, rows: int, save: Time, carried: float | None
) -> Forecast:
    """From a run. rows: of a step. carried: where the plan is not the run's own, its rows with an advantage over the
    run's, which is what the update costs."""
    label = "measured here" + ("" if carried is None else ", carried to this plan by simulation")
    every_row = max(rows / max(float(np.median(history.rows_S)), 1.0), 1.0)
    others = {
        "update": (history.update_S * (carried or 1.0), float(history.update_S.max()) * every_row),
        "refit": (history.refit_S, float(history.refit_S.max())),
    }
    seen = history.evaluation
    evaluation = Time(seen, 1.5 * seen, 2 * seen, "measured here") if seen else Time(0.0, 0.0, 0.0, "not measured")
    return forecast(pace, work, bounds, others, evaluation=evaluation, save=save, source=label)
