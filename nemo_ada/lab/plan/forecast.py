"""Step times from the simulated work of the sampling phase, and the speed of an earlier run or of the roofline.

Seconds of a sampling phase = (a * engine steps + b * tokens) * noise. The noise of a run is fitted and resampled, so
that p95 has the noise of the machine in it. The roofline has no noise. Its p95 and worst case take the slow end of its
range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.lab.plan.history import History
from nemo_ada.lab.plan.roofline import RANGE, Roofline
from nemo_ada.lab.plan.sampling import SimulatedSteps
from nemo_ada.rules.facts.cards import H100

DRAWS = 4000
LEARNING = ("log-probs", "update")  # phases whose time grows with the tokens that are trained on
UNCOVERED = {"asynchronous training": (0.32, 1.49), "FP8": RANGE, "LoRA": RANGE}
"""What no fitted point covers -> published / forecast seconds of rows that were not fitted, smallest and largest.

Compared on 24 November 2026 with NeMo-RL's performance page: five asynchronous rows (forecast / published 1.14, 1.04,
.67, 1.79 and 3.13) and one FP8 row (1.05). recipes/results/forecast.md has the fitted points, and three rows of GB200.
No step time of LoRA was found, and none of another card than these two. They keep the range of the fitted points.
"""
DRIVER_SECONDS = 0.0026
"""CPU seconds per response in NeMo-RL's driver, Ray's threads included: the least that a sampling phase takes.

`bench_driver.py --nemo-rl` on two CPU cores, no GPU, 29 November 2026: 2.59 ms where verdicts share calls and tensors
travel as arrays, as `nemo-ada train` runs (recipes/results/host_cost.md). In the same run verdicts alone took 4.21 ms,
which was the figure before, and NeMo-RL's own way 5.32. A busier machine had 3.34, 4.62 and 6.49.
"""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a phase.

    Attributes:
        p50: median.
        p95: 95th percentile.
        worst: worst case.
        origin: how far to trust them: measured here, roofline or assumed.
    """

    p50: float
    p95: float
    worst: float
    origin: str


@dataclass(frozen=True, slots=True)
class SamplingTimeModel:
    """Seconds of a sampling phase = (per_step * engine steps + per_token * tokens) * one of noise_S.

    Attributes:
        per_step: seconds per engine step.
        per_token: seconds per token.
        noise_S: true seconds over these seconds, of the steps of a run.
        per_response: seconds per response that the phase takes at least.
    """

    per_step: float
    per_token: float
    noise_S: FloatArray
    per_response: float = 0.0

    @property
    def clock(self) -> tuple[float, float]:
        """Seconds of a simulated engine step, and more of it per running response."""
        return max(self.per_step, 1e-9), self.per_token

    def seconds(self, work: SimulatedSteps) -> FloatArray:
        """Return the seconds of simulated steps, without noise."""
        engine = self.per_step * work.engine_steps_S + self.per_token * work.tokens_S
        return np.asarray(np.maximum(engine, self.per_response * work.responses_S), np.float64)

    def bound(self, engine_steps: float, tokens: float, responses: float = 0.0) -> float:
        """Return the seconds of the largest possible work, at the slowest speed that was seen."""
        slowest = max(1.0, float(self.noise_S.max()))
        return max(self.per_step * engine_steps + self.per_token * tokens, self.per_response * responses) * slowest

    @classmethod
    def of_roofline(cls, roofline: Roofline, mean_tokens: float) -> SamplingTimeModel:
        """The model without a run. `mean_tokens`: mean tokens of a response."""
        return cls(*roofline.clock(mean_tokens), np.ones(1), DRIVER_SECONDS)

    @classmethod
    def fit(cls, history: History) -> SamplingTimeModel:
        """Fit both coefficients, which are not negative, to the run's steps. One of them where that is as good."""
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

    def calibrate(self, history: History, simulated: SimulatedSteps) -> SamplingTimeModel:
        """Return the model whose median on the simulated steps of the run is the median of the run itself."""
        factor = float(np.median(history.sampling_S) / np.median(self.seconds(simulated)))
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
        draws_ahead: whether the next steps are sampled while this one is trained on.
        uncovered: what of the configuration no published step time covers. Empty where all is covered.
    """

    phases: dict[str, Time]
    step: Time
    evaluation: Time
    save: Time
    low: float
    high: float
    draws_ahead: bool = False
    uncovered: tuple[str, ...] = ()

    @property
    def slow(self) -> float:
        """Seconds on the slowest machine of the range / seconds on the median machine."""
        return self.high / self.step.p50 if self.step.p50 else 1.0

    @property
    def sampling(self) -> Time:
        """The sampling phase, which the caps bound."""
        return self.phases["sampling"]

    def exchange_sampling(self, seconds: float, trained: float = 1.0, refit: float | None = None) -> float:
        """Median seconds of a step of another preset.

        Args:
            seconds: of its sampling phase.
            trained: tokens that its update computes, relative to those of this forecast.
            refit: seconds of its refit. None takes this forecast's.
        """
        phases = {name: time.p50 * (trained if name in LEARNING else 1.0) for name, time in self.phases.items()}
        phases |= {"sampling": seconds} | ({} if refit is None else {"refit": refit})
        return float(add_phases(phases, self.draws_ahead))


def add_phases(seconds: Mapping[str, Any], draws_ahead: bool) -> Any:
    """Return the seconds of a step from those of its phases.

    In asynchronous training engine and learner have separate GPUs and work at the same time. The slower one decides,
    and both stop for the refit.
    """
    if not draws_ahead:
        return sum(seconds.values())
    learner = sum(value for name, value in seconds.items() if name not in ("sampling", "refit"))
    return np.maximum(seconds["sampling"], learner) + seconds["refit"]


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step.

    Attributes:
        sampling: its simulated sampling phases.
        engine_steps: the most engine steps that it can take.
        tokens: the most tokens.
        responses: the most responses.
        longest: tokens of the longest response.
        rows: rows that are trained on.
        deadline: seconds after which no response starts. None without a cap on seconds.
        live: share of rows that the learner computes whole. A placeholder row has one token of response.
        draws_ahead: whether NeMo-RL trains asynchronously.
    """

    sampling: SimulatedSteps
    engine_steps: float
    tokens: float
    responses: float
    longest: int
    rows: int
    deadline: float | None = None
    live: float = 1.0
    draws_ahead: bool = False


def forecast_step(
    model: SamplingTimeModel,
    step: StepWork,
    others: Mapping[str, tuple[FloatArray, float]],
    *,
    evaluation: Time,
    save: Time,
    origin: str,
    error: tuple[float, float] = (1.0, 1.0),
) -> Forecast:
    """Return the seconds of a step, with the spread of its simulated sampling phases and of the noise.

    Args:
        model: seconds of the sampling phase.
        step: the work of a step.
        others: per other phase, its seconds for the same steps as `noise_S`, and its worst case.
        evaluation: seconds of a validation.
        save: seconds of a checkpoint.
        origin: where these figures come from.
        error: true seconds over forecast seconds, smallest and largest. p95 and worst case take the largest.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(model.noise_S), size=DRAWS)  # phases of a step together: a slow machine slows all
    sampling = rng.choice(model.seconds(step.sampling), DRAWS) * model.noise_S[drawn]
    fast, slow = error
    worst = slow * max(model.bound(step.engine_steps, step.tokens, step.responses), float(sampling.max()))
    if step.deadline is not None:  # a clock ends sampling, so a slow machine only lengthens what is in flight
        drain = slow * compute_drain(model, step.sampling, step.longest)
        worst = min(worst, max(step.deadline, float(np.quantile(sampling, 0.95))) + drain)
    draws = {"sampling": (sampling, worst)}
    draws |= {name: (seconds_S[drawn], slow * most) for name, (seconds_S, most) in others.items()}
    phases = {
        name: Time(float(np.median(seconds)), min(slow * float(np.quantile(seconds, 0.95)), most), most, origin)
        for name, (seconds, most) in draws.items()
    }
    total = add_phases({name: seconds for name, (seconds, _) in draws.items()}, step.draws_ahead)
    median = float(np.median(total))
    worst_step = float(add_phases({name: phase.worst for name, phase in phases.items()}, step.draws_ahead))
    time = Time(median, min(slow * float(np.quantile(total, 0.95)), worst_step), worst_step, origin)
    return Forecast(phases, time, evaluation, save, fast * median, slow * median, step.draws_ahead)


def compute_drain(model: SamplingTimeModel, work: SimulatedSteps, longest: int) -> float:
    """Return the seconds that the longest response takes beside as many responses as run on average."""
    running = float((work.tokens_S / np.maximum(work.engine_steps_S, 1)).mean())
    return model.bound(longest, longest * running)


def forecast_from_roofline(
    roofline: Roofline, model: SamplingTimeModel, step: StepWork, *, val_samples: int, save: Time
) -> Forecast:
    """The forecast without a run.

    Args:
        roofline: seconds of the other phases.
        model: seconds of the sampling phase.
        step: the work of a step.
        val_samples: responses of a validation.
        save: seconds of a checkpoint.
    """
    rows, work = step.rows, step.sampling
    mean = count_trained_tokens(work, step.live)
    others = {
        "log-probs": roofline.logprob_seconds(rows, mean),
        "update": roofline.update_seconds(rows, mean),
        "refit": roofline.refit,
        "rest": roofline.efficiencies.rest,
    }
    longest = roofline.logprob_seconds(rows, step.longest), roofline.update_seconds(rows, step.longest)
    worst = others | {"log-probs": longest[0], "update": longest[1]}
    seconds = model.per_step * step.longest + model.per_token * val_samples * work.mean_tokens + roofline.refit
    config = roofline.config
    missing = {
        "asynchronous training": step.draws_ahead,
        "FP8": config.learner.fp8 or config.engine.fp8,
        "LoRA": config.learner.lora is not None,
        config.card.name: config.card is not H100,
    }
    uncovered = tuple(name for name, absent in missing.items() if absent)
    error = next((UNCOVERED.get(name, RANGE) for name in uncovered), RANGE)  # the widest comes first
    evaluation = Time(seconds, error[1] * seconds, 2 * error[1] * seconds, "roofline")
    phases = {name: (np.array([value]), worst[name]) for name, value in others.items()}
    whole = forecast_step(
        model, step, phases, evaluation=evaluation, save=save, origin=f"roofline, {config.card.name}", error=error
    )
    return replace(whole, uncovered=uncovered)


def count_trained_tokens(work: SimulatedSteps, live: float) -> float:
    """Mean tokens of a row's response that the learner computes. `live`: share of rows that are not placeholders."""
    return live * work.mean_tokens + (1.0 - live)


def forecast_from_history(
    history: History, model: SamplingTimeModel, step: StepWork, *, save: Time, carried: float | None
) -> Forecast:
    """The forecast from a run.

    Args:
        history: the run.
        model: seconds of its sampling phase.
        step: the work of a step.
        save: seconds of a checkpoint.
        carried: rows with an advantage in the plan / in the run, which is what the update costs. None where the plan is
            the run's own.
    """
    label = "measured here" + ("" if carried is None else ", carried to this plan by simulation")
    every_row = max(step.rows / max(float(np.median(history.rows_S)), 1.0), 1.0)
    phases = {
        "update": (history.update_S * (carried or 1.0), float(history.update_S.max()) * every_row),
        "refit": (history.refit_S, float(history.refit_S.max())),
    }
    seen = history.evaluation
    evaluation = Time(seen, 1.5 * seen, 2 * seen, "measured here") if seen else Time(0.0, 0.0, 0.0, "not measured")
    return forecast_step(model, step, phases, evaluation=evaluation, save=save, origin=label)
