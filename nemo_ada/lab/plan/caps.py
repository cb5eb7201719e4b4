"""Caps for a step: those under which the worst step fits the job, and the one that makes steps take equal time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nemo_ada.lab.plan.forecast import Forecast
from nemo_ada.lab.plan.sampling import SimulatedSteps

STEADY = 1.15  # p95 / p50 of the sampling phase
MIN_GAIN = 0.05  # in p95 / p50
SHARES = (1.2, 1.05, 0.9, 0.75, 0.6, 0.5, 0.4)  # shares of the uncapped median that are tried, widest first


@dataclass(frozen=True, slots=True)
class SteadyCap:
    """The cap on seconds that makes sampling phases take equal time.

    It is the widest budget.max_seconds under which no simulated phase takes STEADY times the median. Where no cap
    reaches that, it is the one under which the slowest phase takes least. The slowest phase decides, and not the 95th
    percentile, because a few steps of a run say little about the prompts that need many waves. First waves are never
    cut. So no cap can help where they alone vary by more than STEADY.

    Attributes:
        uncapped: p95 / p50 of the simulated sampling phase without a cap on seconds.
        max_seconds: value for reinforce_ada.budget. None where no cap is needed, or none gains MIN_GAIN.
        capped: p95 / p50 with this cap.
        cut: share of prompts that the cap refuses another response.
        origin: where these figures come from.
    """

    uncapped: float
    max_seconds: float | None
    capped: float
    cut: float
    origin: str = "simulated"


def find_steady_cap(steps_under: Callable[[float | None], SimulatedSteps]) -> SteadyCap:
    """Try caps on seconds from wide to narrow. `steps_under` simulates steps under one cap."""
    free = steps_under(None)
    uncapped = compute_spread(free)
    best, slowest = SteadyCap(uncapped, None, uncapped, free.cut), np.inf
    for share in SHARES if uncapped > STEADY else ():
        cap = _round_down(share * float(np.median(free.seconds_S)))
        if cap <= 0.0:  # a toy's phase, below what the rounding keeps
            break
        tried = steps_under(cap)
        if compute_spread(tried, 1.0) < slowest and compute_spread(tried) <= uncapped - MIN_GAIN:
            best, slowest = SteadyCap(uncapped, cap, compute_spread(tried), tried.cut), compute_spread(tried, 1.0)
        if slowest <= STEADY:
            break
    return best


def compute_spread(work: SimulatedSteps, quantile: float = 0.95) -> float:
    """Return a quantile of the duration of the sampling phase over its median."""
    middle, high = np.quantile(work.seconds_S, (0.5, quantile))
    return float(high / middle)


@dataclass(frozen=True, slots=True)
class SuggestedCaps:
    """Values for reinforce_ada.budget.

    Attributes:
        max_samples: responses of a step.
        max_tokens: tokens of a step.
        max_seconds: seconds of a sampling phase. None where no cap can help.
        worst_step: seconds of the worst step with these caps.
        fits: whether this step fits into a job slot.
        origin: where these figures come from.
    """

    max_samples: int
    max_tokens: int
    max_seconds: float | None
    worst_step: float
    fits: bool
    origin: str = "simulated"


def suggest_caps(
    forecast: Forecast, *, samples_p95: float, tokens_p95: float, first_wave: int, drain: float, available: float
) -> SuggestedCaps:
    """Caps at the simulated 95th percentile, tightened until one worst step fits.

    Args:
        forecast: the step without the caps.
        samples_p95: responses of a step.
        tokens_p95: tokens of a step.
        first_wave: responses of the first waves, which are never cut.
        drain: seconds that the longest response in flight at the cap may still take.
        available: seconds of a slot that a step may take.
    """
    sampling = forecast.sampling
    others = sum(time.worst for time in forecast.phases.values()) - sampling.worst
    limit = min(sampling.p95, available - others - drain)
    possible = limit > 0.25 * sampling.p50
    limit = _round_down(limit)
    worst = others + min(sampling.worst, max(limit, sampling.p50) + drain)
    samples = max(first_wave, int(samples_p95))
    return SuggestedCaps(samples, int(tokens_p95), limit if possible else None, worst, possible and worst <= available)


@dataclass(frozen=True, slots=True)
class StepCap:
    """The cap on sampling under which the worst step fits into the wanted seconds.

    Attributes:
        wanted: seconds of a step.
        max_seconds: value for reinforce_ada.budget. None where no cap is small enough.
        others: worst seconds of the phases beside sampling.
        drain: seconds that the longest response in flight at the cap may still take.
        first_waves: seconds of the first waves in the worst simulated step. They are never cut.
    """

    wanted: float
    max_seconds: float | None
    others: float
    drain: float
    first_waves: float


def find_step_cap(forecast: Forecast, wanted: float, drain: float, first_waves: float) -> StepCap:
    """Return the widest budget.max_seconds under which the worst step takes at most `wanted` seconds."""
    others = sum(time.worst for time in forecast.phases.values()) - forecast.sampling.worst
    left = wanted - others - drain
    return StepCap(
        wanted, _round_down(left) if left > 0 and _round_down(left) > 0 else None, others, drain, first_waves
    )


def _round_down(seconds: float) -> float:
    """Rounded down: to whole seconds from 10 s on, below that to two digits."""
    return float(math.floor(seconds)) if seconds >= 10 else math.floor(100 * seconds) / 100
