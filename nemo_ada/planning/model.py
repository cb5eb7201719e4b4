"""The simulated engine of a plan, with the run's pass rates and lengths, scaled down where there are many prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, cast

import numpy as np

from nemo_ada.config.ada import AdaSettings
from nemo_ada.core import seeds
from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.sampler import Allocation
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.planning import phase
from nemo_ada.planning.facts import Facts
from nemo_ada.simulate.engine import LengthModel
from nemo_ada.simulate.steps import RateDistribution, Variant

MAX_PROMPTS = 64  # of the simulated step; engine and prompts are scaled down together


@dataclass(frozen=True, slots=True)
class TrueRateAllocation:
    """Responses per prompt of the estimation variant as a perfect estimator would allocate them, `group` on average.

    Against a uniform allocation the simulated phase is 1 to 2 % longer (tokens too) where wrong answers are 1.3 times
    as long, so that an estimator which knows nothing yet makes no difference to a plan.
    """

    rule: Allocation
    group: int

    def __call__(self, rate_P: FloatArray) -> IntArray:
        tie_P = seeds.uniform(0, 0, np.arange(len(rate_P)), 0, stream=seeds.Stream.ALLOCATION)
        weight_P = self.rule.rule.weight(np.minimum(rate_P + self.rule.epsilon, 1.0))
        return allocate(weight_P, self.group * len(rate_P), self.rule.low, self.rule.high, tie_P)


def variant(ada: AdaSettings, group: int, longest: int) -> Variant:
    """What is simulated for some settings, for groups of `group` and responses of at most `longest` tokens."""
    rule = ada.sampler(group, longest, run_seed=0, features=1).allocation
    allocate_by = None if rule is None else TrueRateAllocation(rule, group)
    return Variant("", ada.plan(group, longest), allocate_by)


def capped(asked: Variant, max_seconds: float | None) -> Variant:
    """The variant with another cap on seconds."""
    return replace(asked, plan=replace(asked.plan, caps=replace(asked.plan.caps, max_seconds=max_seconds)))


@dataclass(frozen=True, slots=True)
class Model:
    """Fewer prompts than the run's where that is large, with slots (responses at once) in proportion, so that a phase
    takes as many engine steps. Other caps than seconds are of the whole step and are scaled down with it."""

    facts: Facts
    rates: RateDistribution
    lengths: LengthModel
    steps: int

    @property
    def prompts(self) -> int:
        """Prompts of the simulated step."""
        return min(self.facts.drawn, MAX_PROMPTS)

    @property
    def scale(self) -> float:
        """Prompts of the run per simulated one."""
        return self.facts.drawn / self.prompts

    @property
    def slots(self) -> int:
        """Responses that the simulated engine runs at once."""
        return max(1, self.facts.slots * self.prompts // self.facts.drawn)

    def phases(
        self, asked: Variant, seconds: tuple[float, float] = (1.0, 0.0), steps: int | None = None
    ) -> phase.Phases:
        """Simulated sampling of whole steps: one batch each, or as many as dynamic sampling draws. seconds: as for
        `batches`."""
        found, dynamic = self.batches(asked, seconds, steps), self.facts.dynamic
        return found if dynamic is None else phase.drawn_again(found, self.facts.prompts, dynamic.prompts, dynamic.most)

    def batches(
        self, asked: Variant, seconds: tuple[float, float] = (1.0, 0.0), steps: int | None = None
    ) -> phase.Phases:
        """Simulated sampling phases of one batch, tokens and responses of all its prompts. seconds: of an engine step,
        and more of it per running response."""
        found = phase.simulate(
            self._scaled(asked.plan), cast(Any, self.rates), self.lengths, prompts=self.prompts,
            steps=steps or self.steps, slots=self.slots,
            step_seconds=seconds[0], row_seconds=seconds[1] * self.scale, allocate=asked.allocate,
        )  # fmt: skip
        return replace(found, tokens_S=found.tokens_S * self.scale, responses_S=found.responses_S * self.scale)

    def worst(self, plan: SamplingPlan) -> tuple[float, float]:
        """Engine steps, and tokens of the whole step, that no step passes."""
        steps, tokens = phase.worst_work(plan, self.facts.drawn, self.facts.slots, self.facts.longest)
        most = 1 if self.facts.dynamic is None else self.facts.dynamic.most
        return most * steps, most * tokens

    def _scaled(self, plan: SamplingPlan) -> SamplingPlan:
        def share(cap: int | None) -> int | None:
            return None if cap is None else ceil(cap / self.scale - 1e-9)

        caps = replace(plan.caps, max_samples=share(plan.caps.max_samples), max_tokens=share(plan.caps.max_tokens))
        return replace(plan, caps=caps)
