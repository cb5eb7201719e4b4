"""Caps for a batch: those under which the worst step fits the job, and the one that makes steps even."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nemo_ada.planning.forecast import Forecast
from nemo_ada.planning.sampling import Phases

EVEN = 1.15  # p95 / p50 of the sampling phase
MIN_GAIN = 0.05  # in p95 / p50
SHARES = (1.2, 1.05, 0.9, 0.75, 0.6, 0.5, 0.4)  # of the uncapped median that are tried, widest first


@dataclass(frozen=True, slots=True)
class EvenCap:
    """p95 / p50 of the simulated sampling phase without a cap on seconds; the widest budget.max_seconds under which no
    simulated phase takes EVEN times the median, else the one under which the slowest takes least (None where none is
    needed or none gains MIN_GAIN); p95 / p50 with it, and the share of prompts that it refuses another response.

    The slowest phase decides, not the 95th percentile: how many prompts need many waves is what a few steps of a run
    tell least about. First waves are never cut: where they alone vary by more than EVEN, no cap can reach it."""

    uncapped: float
    max_seconds: float | None
    capped: float
    cut: float
    source: str = "simulated"


def even_cap(phases: Callable[[float | None], Phases]) -> EvenCap:
    """Try caps on seconds from wide to narrow. phases: simulates the sampling phase under one."""
    free = phases(None)
    uncapped = ratio(free)
    if uncapped <= EVEN:
        return EvenCap(uncapped, None, uncapped, free.cut)
    best, slowest = EvenCap(uncapped, None, uncapped, free.cut), np.inf
    for share in SHARES:
        cap = _rounded(share * float(np.median(free.seconds_S)))
        tried = phases(cap)
        if ratio(tried, 1.0) < slowest and ratio(tried) <= uncapped - MIN_GAIN:
            best, slowest = EvenCap(uncapped, cap, ratio(tried), tried.cut), ratio(tried, 1.0)
        if slowest <= EVEN:
            break
    return best


def ratio(work: Phases, quantile: float = 0.95) -> float:
    """A quantile of the duration of the sampling phase over its median."""
    middle, high = np.quantile(work.seconds_S, (0.5, quantile))
    return float(high / middle)


@dataclass(frozen=True, slots=True)
class SuggestedCaps:
    """Values for reinforce_ada.budget, and the worst step with them; max_seconds None where no cap can help."""

    max_samples: int
    max_tokens: int
    max_seconds: float | None
    worst_step: float
    fits: bool
    source: str = "simulated"


def suggest_caps(
    forecast: Forecast, *, samples_p95: float, tokens_p95: float, first_wave: int, drain: float, available: float
) -> SuggestedCaps:
    """Caps at the simulated 95th percentile, tightened until one worst step fits into `available` seconds.

    drain: seconds that the longest response in flight at the cap may still take; first waves are never cut.
    """
    sampling = forecast.sampling
    others = sum(time.worst for time in forecast.phases.values()) - sampling.worst
    limit = min(sampling.p95, available - others - drain)
    possible = limit > 0.25 * sampling.p50
    limit = _rounded(limit)
    worst = others + min(sampling.worst, max(limit, sampling.p50) + drain)
    samples = max(first_wave, int(samples_p95))
    return SuggestedCaps(samples, int(tokens_p95), limit if possible else None, worst, possible and worst <= available)


@dataclass(frozen=True, slots=True)
class StepCap:
    """The cap on sampling under which the worst step fits into the wanted seconds.

    Attributes:
        wanted: seconds of a step.
        max_seconds: value for reinforce_ada.budget; None where no cap is small enough.
        others: worst seconds of the phases beside sampling.
        drain: seconds that the longest response in flight at the cap may still take.
        first_waves: seconds of the first waves in the worst simulated step. They are never cut.
    """

    wanted: float
    max_seconds: float | None
    others: float
    drain: float
    first_waves: float


def step_cap(forecast: Forecast, wanted: float, drain: float, first_waves: float) -> StepCap:
    """The widest budget.max_seconds under which the worst step takes at most `wanted` seconds."""
    others = sum(time.worst for time in forecast.phases.values()) - forecast.sampling.worst
    left = wanted - others - drain
    return StepCap(wanted, _rounded(left) if left > 0 and _rounded(left) > 0 else None, others, drain, first_waves)


def _rounded(seconds: float) -> float:
    """Down to whole seconds from 10 s on, to two digits below."""
    return float(math.floor(seconds)) if seconds >= 10 else math.floor(100 * seconds) / 100
