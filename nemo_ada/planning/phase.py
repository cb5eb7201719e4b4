"""The sampling phase of many steps on the discrete-event engine, driven by the session that trains.

P prompts, S steps, N responses of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.exits import FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload
from nemo_ada.simulate.steps import RateDistribution

WARM_UP = 2  # steps in which the latency model learns


@dataclass(frozen=True, slots=True)
class MeasuredLengths(LengthModel):
    """Lengths as they were measured, independent of the label; drawn by the quantile of a standard normal number."""

    lengths: tuple[int, ...] = (1,)

    def tokens(self, positive_N: BoolArray, normal_N: FloatArray) -> IntArray:
        """Lengths of responses."""
        sorted_L = np.sort(np.array(self.lengths, np.int64))
        position_N = np.minimum((_normal_share(normal_N) * len(sorted_L)).astype(np.int64), len(sorted_L) - 1)
        return np.asarray(sorted_L[position_N], np.int64)


def _normal_share(z_N: FloatArray) -> FloatArray:
    """P(Z < z) by the logistic approximation of Bowling et al. (2009), within 0.00014."""
    return np.asarray(1.0 / (1.0 + np.exp(-(0.07056 * z_N**3 + 1.5976 * z_N))), np.float64)


@dataclass(frozen=True, slots=True)
class Phases:
    """Simulated steps S: engine steps, tokens, responses, duration in the source's clock; means over steps of the
    zero-signal groups, of the engine's occupancy and of the prompts that a cap refused another response (shares);
    batches per step (mean), and the share of steps that dynamic sampling could not fill."""

    engine_steps_S: FloatArray
    tokens_S: FloatArray
    responses_S: FloatArray
    seconds_S: FloatArray
    zero_signal: float
    utilisation: float
    cut: float
    batches: float = 1.0
    unfilled: float = 0.0


@lru_cache(maxsize=128)
def simulate(
    plan: SamplingPlan,
    rates: RateDistribution,
    lengths: LengthModel,
    *,
    prompts: int,
    steps: int,
    slots: int | None = None,
    step_seconds: float = 1.0,
    row_seconds: float = 0.0,
    allocate: Callable[[FloatArray], IntArray] | None = None,
    seed: int = 0,
) -> Phases:
    """`steps` steps after warm-up, each with its own prompts. step_seconds, row_seconds give max_seconds a meaning.

    allocate: responses per prompt of the estimation variant, from the true pass rates (a perfect estimator's).
    """
    latency = LatencyModel()
    found: list[tuple[float, ...]] = []
    for step in range(WARM_UP + steps):
        rate_P = rates.draw(prompts, seed * 100_003 + step)
        allocation = None if allocate is None else allocate(rate_P)
        workload = Workload(rate_P, lengths, seed=seed, step=step)
        source = DiscreteEventSource(workload.draw, slots=slots, step_seconds=step_seconds, row_seconds=row_seconds)
        session = SamplingSession(
            plan, np.arange(prompts), run_seed=seed, step=step, latency=latency, first_wave_P=allocation
        )
        stats = run_sampling(session, source).stats
        if step >= WARM_UP:
            found.append(
                (
                    source.steps, stats["tokens_drawn"], stats["samples_drawn"], stats["sampling_seconds"],
                    stats["zero_signal_groups"], stats["engine_utilisation"], stats["prompts_cut"] / prompts,
                )
            )  # fmt: skip
    steps_S, tokens_S, responses_S, seconds_S, *shares = np.array(found, np.float64).T
    zero, busy, cut = (float(share_S.mean()) for share_S in shares)
    return Phases(steps_S, tokens_S, responses_S, seconds_S, zero, busy, cut)


def drawn_again(found: Phases, wanted: int, prompts: int, most: int, seed: int = 0) -> Phases:
    """Steps of NeMo-RL's dynamic sampling, which draws batches of `prompts` prompts until `wanted` groups have signal,
    at most `most`. found: simulated batches, which are drawn with replacement."""
    rng = np.random.default_rng(seed)
    count = len(found.engine_steps_S)
    parts: list[IntArray] = []
    unfilled = 0
    for _ in range(count):
        live_B = np.cumsum(rng.binomial(prompts, 1.0 - found.zero_signal, most))
        enough = int(np.searchsorted(live_B, wanted)) + 1
        unfilled += enough > most
        parts.append(rng.integers(count, size=min(enough, most)))
    steps_S, tokens_S, responses_S, seconds_S = (
        np.array([column[part].sum() for part in parts])
        for column in (found.engine_steps_S, found.tokens_S, found.responses_S, found.seconds_S)
    )
    return replace(
        found, engine_steps_S=steps_S, tokens_S=tokens_S, responses_S=responses_S, seconds_S=seconds_S,
        zero_signal=0.0, batches=float(np.mean([len(part) for part in parts])), unfilled=unfilled / count,
    )  # fmt: skip


def most_waves(plan: SamplingPlan) -> int:
    """Waves of a prompt one after another, at most."""
    if plan.window is not None:
        return -(-plan.max_responses // plan.window) + 1
    if isinstance(plan.exit, FixedExit):
        return 1
    return int(StopRule(plan.exit, plan.wave_sizes, plan.max_responses).judged().sum())


def worst_work(plan: SamplingPlan, prompts: int, slots: int | None, longest: int) -> tuple[float, float]:
    """Engine steps and tokens that no step passes: Graham's bound for work over `slots` behind the longest chain."""
    responses = prompts * plan.max_responses
    if plan.caps.max_samples is not None:
        responses = min(responses, plan.caps.max_samples)
    tokens = float(responses * longest)
    if plan.caps.max_tokens is not None and plan.token_reservation == "worst_case":
        tokens = min(tokens, float(plan.caps.max_tokens))
    chain = 1 if plan.idle else most_waves(plan)
    return (0.0 if slots is None else tokens / slots) + chain * longest, tokens
