"""The simulated sampling phase of a job's steps: the sampler that trains, on the discrete-event engine.

P prompts, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from math import ceil

import numpy as np

from nemo_ada.config.ada import AdaSettings
from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.exits import FixedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.planning.job import Job
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel
from nemo_ada.simulate.steps import RateDistribution, Variant, simulated_steps

WARM_UP = 2  # steps in which the latency model learns
MAX_PROMPTS = 64  # of the simulated step; engine and prompts are scaled down together


@dataclass(frozen=True, slots=True)
class Phases:
    """Simulated steps S: engine steps, tokens, responses, seconds by the source's clock. Means over steps: groups
    without signal, occupancy of the engine, prompts that a cap refused another response (shares); batches per step, and
    the share of steps that dynamic sampling could not fill."""

    engine_steps_S: FloatArray
    tokens_S: FloatArray
    responses_S: FloatArray
    seconds_S: FloatArray
    zero_signal: float
    utilisation: float
    cut: float
    batches: float = 1.0
    unfilled: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Tokens per response."""
        return float(self.tokens_S.sum() / self.responses_S.sum())


@lru_cache(maxsize=128)
def simulate(
    variant: Variant,
    rates: RateDistribution,
    lengths: LengthModel,
    *,
    prompts: int,
    steps: int,
    slots: int | None = None,
    step_seconds: float = 1.0,
    row_seconds: float = 0.0,
    seed: int = 0,
) -> Phases:
    """`steps` steps after warm-up, each with its own prompts. step_seconds, row_seconds: see DiscreteEventSource."""
    engine = partial(DiscreteEventSource, slots=slots, step_seconds=step_seconds, row_seconds=row_seconds)
    run = simulated_steps(
        variant, lambda step: rates.draw(prompts, seed * 100_003 + step), lengths,
        steps=WARM_UP + steps, seed=seed, engine=engine,
    )  # fmt: skip
    measured = [
        (
            engine_steps, stats["tokens_drawn"], stats["samples_drawn"], stats["sampling_seconds"],
            stats["zero_signal_groups"], stats["engine_utilisation"], stats["prompts_cut"] / prompts,
        )
        for engine_steps, stats in islice(run, WARM_UP, None)
    ]  # fmt: skip
    steps_S, tokens_S, responses_S, seconds_S, *shares = np.array(measured, np.float64).T
    zero, busy, cut = (float(share_S.mean()) for share_S in shares)
    return Phases(steps_S, tokens_S, responses_S, seconds_S, zero, busy, cut)


def drawn_again(batch: Phases, wanted: int, prompts: int, max_batches: int, seed: int = 0) -> Phases:
    """Steps of NeMo-RL's dynamic sampling, which draws batches of `prompts` prompts until `wanted` groups have signal,
    at most `max_batches`. batch: simulated batches, which are drawn with replacement."""
    rng = np.random.default_rng(seed)
    count = len(batch.engine_steps_S)
    parts: list[IntArray] = []
    unfilled = 0
    for _ in range(count):
        live_B = np.cumsum(rng.binomial(prompts, 1.0 - batch.zero_signal, max_batches))
        enough = int(np.searchsorted(live_B, wanted)) + 1
        unfilled += enough > max_batches
        parts.append(rng.integers(count, size=min(enough, max_batches)))
    steps_S, tokens_S, responses_S, seconds_S = (
        np.array([column[part].sum() for part in parts])
        for column in (batch.engine_steps_S, batch.tokens_S, batch.responses_S, batch.seconds_S)
    )
    return replace(
        batch, engine_steps_S=steps_S, tokens_S=tokens_S, responses_S=responses_S, seconds_S=seconds_S,
        zero_signal=0.0, batches=float(np.mean([len(part) for part in parts])), unfilled=unfilled / count,
    )  # fmt: skip


def worst_work(plan: SamplingPlan, prompts: int, slots: int | None, longest: int) -> tuple[float, float]:
    """Engine steps and tokens that no step passes: Graham's bound for work over `slots` behind the longest chain."""
    responses = prompts * plan.max_responses
    if plan.caps.max_samples is not None:
        responses = min(responses, plan.caps.max_samples)
    tokens = float(responses * longest)
    if plan.caps.max_tokens is not None and plan.token_reservation == "worst_case":
        tokens = min(tokens, float(plan.caps.max_tokens))
    chain = 1 if plan.idle else _max_waves(plan)
    return (0.0 if slots is None else tokens / slots) + chain * longest, tokens


def _max_waves(plan: SamplingPlan) -> int:
    """Waves of a prompt one after another, at most."""
    if plan.window is not None:
        return -(-plan.max_responses // plan.window) + 1
    if isinstance(plan.exit, FixedExit):
        return 1
    return int(StopRule(plan.exit, plan.wave_sizes, plan.max_responses).judged().sum())


def variant(ada: AdaSettings, group: int, longest: int) -> Variant:
    """What is simulated for some settings, for groups of `group` and responses of at most `longest` tokens."""
    return Variant("", ada.plan(group, longest), ada.sampler(group, longest, run_seed=0, features=1).allocation)


def capped(asked: Variant, max_seconds: float | None) -> Variant:
    """The variant with another cap on seconds."""
    return replace(asked, plan=replace(asked.plan, caps=replace(asked.plan.caps, max_seconds=max_seconds)))


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job's sampling phases. Where a step has many prompts, MAX_PROMPTS of them are simulated, with slots and caps on
    samples and tokens in proportion, so that a phase takes as many engine steps."""

    job: Job
    rates: RateDistribution
    lengths: LengthModel
    steps: int

    def phases(self, asked: Variant, clock: tuple[float, float] = (1.0, 0.0), steps: int | None = None) -> Phases:
        """Whole steps, of as many batches as dynamic sampling draws. clock: seconds of an engine step, and more of it
        per running response."""
        prompts = min(self.job.drawn, MAX_PROMPTS)
        scale = self.job.drawn / prompts
        caps = asked.plan.caps
        samples, tokens = (
            None if cap is None else ceil(cap / scale - 1e-9) for cap in (caps.max_samples, caps.max_tokens)
        )
        plan = replace(asked.plan, caps=replace(caps, max_samples=samples, max_tokens=tokens))
        batch = simulate(
            replace(asked, plan=plan), self.rates, self.lengths, prompts=prompts, steps=steps or self.steps,
            slots=max(1, self.job.slots * prompts // self.job.drawn),
            step_seconds=clock[0], row_seconds=clock[1] * scale,
        )  # fmt: skip
        batch = replace(batch, tokens_S=batch.tokens_S * scale, responses_S=batch.responses_S * scale)
        if self.job.max_batches == 1:
            return batch
        return drawn_again(batch, self.job.prompts, self.job.drawn, self.job.max_batches)

    def worst(self, plan: SamplingPlan) -> tuple[float, float]:
        """Engine steps and tokens that no step passes."""
        steps, tokens = worst_work(plan, self.job.drawn, self.job.slots, self.job.longest)
        return self.job.max_batches * steps, self.job.max_batches * tokens
