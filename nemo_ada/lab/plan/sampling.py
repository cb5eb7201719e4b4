"""The simulated sampling phase of a run's steps: the sampler that trains, on the discrete-event engine.

Arrays have the axes P (prompts) and S (steps).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from nemo_ada.config.ada import AdaSettings
from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.budget import SAMPLES, SECONDS, TOKENS
from nemo_ada.core.sampling.exits import FixedExit
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.lab.plan.planned_run import PlannedRun
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import RateDistribution, Setting, Variant, simulate_variant

WARM_UP = 2  # steps in which the latency model learns
MAX_PROMPTS = 64  # prompts of a simulated step; engine and prompts are scaled down together


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """The sampling phases of simulated steps.

    Attributes:
        engine_steps_S: steps of the engine.
        tokens_S: tokens that were generated.
        responses_S: responses that were drawn.
        seconds_S: seconds by the clock of the simulated engine.
        zero_signal: mean share of groups without signal.
        utilisation: mean share of the engine's places that are occupied.
        cut: mean share of prompts that a cap refused another response.
        unfilled: share of steps that dynamic sampling could not fill.
    """

    engine_steps_S: FloatArray
    tokens_S: FloatArray
    responses_S: FloatArray
    seconds_S: FloatArray
    zero_signal: float
    utilisation: float
    cut: float
    unfilled: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Tokens per response."""
        return float(self.tokens_S.sum() / self.responses_S.sum())


@lru_cache(maxsize=128)
def simulate_steps(
    variant: Variant, setting: Setting, clock: tuple[float, float] = (1.0, 0.0), seed: int = 0
) -> SimulatedSteps:
    """Simulated steps after a warm-up, each with its own prompts.

    Args:
        variant: the sampling plan.
        setting: what is simulated. Its number of seeds is not used.
        clock: seconds of an engine step, and more of it per running response.
        seed: seed of the prompts and of the engine.
    """
    prompts = setting.prompts
    run = simulate_variant(
        variant, setting, lambda step: setting.rates.draw(prompts, seed * 100_003 + step), seed=seed, clock=clock
    )
    measured = [
        (
            stats["engine_steps"], stats["tokens_drawn"], stats["samples_drawn"], stats["sampling_seconds"],
            stats["zero_signal_groups"], stats["engine_utilisation"], stats["prompts_cut"] / prompts,
        )
        for stats in run
    ]  # fmt: skip
    steps_S, tokens_S, responses_S, seconds_S, *shares = np.array(measured, np.float64).T
    zero, busy, cut = (float(share_S.mean()) for share_S in shares)
    return SimulatedSteps(steps_S, tokens_S, responses_S, seconds_S, zero, busy, cut)


def draw_batches(batch: SimulatedSteps, wanted: int, prompts: int, max_batches: int, seed: int = 0) -> SimulatedSteps:
    """Return the steps of NeMo-RL's dynamic sampling, which draws batches until enough groups have signal.

    Args:
        batch: simulated batches, which are drawn with replacement.
        wanted: groups with signal that a step needs.
        prompts: prompts of a batch.
        max_batches: batches of a step, at most.
        seed: seed of the draw.
    """
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
        zero_signal=0.0, unfilled=unfilled / count,
    )  # fmt: skip


def bound_work(plan: SamplingPlan, prompts: int, max_concurrent: int | None, longest: int) -> tuple[float, float]:
    """The most engine steps and tokens that a step can take: Graham's bound for work behind the longest chain."""
    responses = prompts * plan.stop.cap
    caps = plan.budget.caps()
    responses = min(responses, caps.get(SAMPLES, responses))
    tokens = float(responses * longest)
    if plan.budget.token_reservation == "worst_case":
        tokens = min(tokens, float(caps.get(TOKENS, tokens)))
    chain = _count_waves(plan)
    return (0.0 if max_concurrent is None else tokens / max_concurrent) + chain * longest, tokens


def _count_waves(plan: SamplingPlan) -> int:
    """Return the most waves of a prompt that follow one another."""
    if isinstance(plan.stop.exit, FixedExit):
        return 1
    return int(plan.stop.mark_judged().sum())


def make_variant(ada: AdaSettings, group: int, longest: int) -> Variant:
    """The sampling plan of some settings, for groups of `group` rows and responses of at most `longest` tokens."""
    return Variant("", ada.plan(group, longest), ada.sampler(group, longest, run_seed=0, features=1).allocation)


def cap_seconds(variant: Variant, seconds: float | None) -> Variant:
    """Return the variant with another cap on seconds."""
    caps = {cap: value for cap, value in variant.plan.budget.caps().items() if cap is not SECONDS}
    caps |= {} if seconds is None else {SECONDS: seconds}
    return replace(variant, plan=replace(variant.plan, budget=variant.plan.budget.replace_caps(caps)))


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The sampling phases of a run.

    Where a step has many prompts, MAX_PROMPTS of them are simulated. The places of the engine and the caps on samples
    and tokens shrink in proportion, so that a phase takes as many engine steps.

    Attributes:
        run: the run.
        rates: pass rates of its prompts.
        lengths: lengths of its responses.
        steps: steps that are simulated.
    """

    run: PlannedRun
    rates: RateDistribution
    lengths: LengthModel
    steps: int

    def steps_of(
        self, variant: Variant, clock: tuple[float, float] = (1.0, 0.0), steps: int | None = None
    ) -> SimulatedSteps:
        """Whole steps, of as many batches as dynamic sampling draws.

        Args:
            variant: the sampling plan.
            clock: seconds of an engine step, and more of it per running response.
            steps: steps; the default is the number of this object.
        """
        rollout = self.run.rollout
        prompts = min(rollout.prompts, MAX_PROMPTS)
        scale = rollout.prompts / prompts
        plan = replace(variant.plan, budget=variant.plan.budget.shrink(scale))
        setting = Setting(
            self.rates, prompts, self.lengths, warm_up=WARM_UP, steps=steps or self.steps,
            slots=max(1, self.run.max_concurrent * prompts // rollout.prompts),
        )  # fmt: skip
        # A simulated response stands for `scale` of the run's, so it lengthens an engine step as much as they all do.
        batch = simulate_steps(replace(variant, plan=plan), setting, (clock[0], clock[1] * scale))
        batch = replace(batch, tokens_S=batch.tokens_S * scale, responses_S=batch.responses_S * scale)
        if rollout.max_calls == 1:
            return batch
        return draw_batches(batch, rollout.prompts_per_step, rollout.prompts, rollout.max_calls)

    def worst(self, plan: SamplingPlan) -> tuple[float, float]:
        """Return the most engine steps and tokens that a step can take."""
        rollout = self.run.rollout
        steps, tokens = bound_work(plan, rollout.prompts, self.run.max_concurrent, rollout.longest)
        return rollout.max_calls * steps, rollout.max_calls * tokens
