"""One run's sampler: what lives across steps (estimator, latency model) and the two ends of a step.

    session = sampler.begin(step, prompt_ids)        # a SamplingSession, driven by schedulers.run_sampling
    rows = sampler.finish(session.result())          # StepRows; the estimator learns from the pools

Both back ends use it as it is, so the same responses give the same pools, rows and advantages in either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core import seeds
from nemo_ada.core.learning.objectives import SamplingShare
from nemo_ada.core.learning.rows import RowSettings, StepRows, build_rows
from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.prompts.choosing import best_candidates, mixed_probability
from nemo_ada.core.prompts.estimators import PassRateEstimator
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.errors import InvariantError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Allocation:
    """How the estimation variant shares out its responses: N_x ∝ rule(p_hat + epsilon) in [low, high]."""

    rule: SamplingShare
    low: int
    high: int
    epsilon: float


class AdaSampler:
    """Reinforce-Ada over the steps of a run. GRPO is a sampler whose plan has a fixed exit."""

    def __init__(
        self,
        plan: SamplingPlan,
        rows: RowSettings,
        *,
        run_seed: int,
        estimator: PassRateEstimator | None = None,
        allocation: Allocation | None = None,
    ) -> None:
        """allocation: only for the estimation variant, which needs an estimator."""
        if allocation is not None and estimator is None:
            raise InvariantError("the estimation variant allocates by an estimator and got none")
        self.plan, self.rows, self.run_seed = plan, rows, run_seed
        self.estimator, self.allocation = estimator, allocation
        self.latency = LatencyModel()
        self._open: _OpenStep | None = None

    def choose(
        self, step: int, prompt_ids: Sequence[str], count: int, features_PF: FloatArray | None = None
    ) -> tuple[IntArray, float]:
        """Positions of the `count` candidates whose groups of n are likeliest to mix, best first, and the mean of that
        probability over them, as the estimator expects it."""
        if self.estimator is None:
            raise InvariantError("candidates are chosen by an estimator and there is none")
        a_P, b_P = self.estimator.beta(prompt_ids, features_PF)
        position_P = np.arange(len(prompt_ids), dtype=np.int64)
        tie_P = seeds.uniform(self.run_seed, step, position_P, 0, stream=seeds.Stream.CANDIDATES)
        mixed_P = mixed_probability(a_P, b_P, self.plan.group_size)
        best = best_candidates(prompt_ids, mixed_P, tie_P, count)
        return best, float(mixed_P[best].mean())

    def begin(
        self, step: int, prompt_ids: Sequence[str], *, reserve: int = 0, features_PF: FloatArray | None = None
    ) -> SamplingSession:
        """The session of a step. prompt_ids: stable ids, equal for equal prompts; the last `reserve` are in reserve.

        features_PF: for the value estimator. A step that was begun and not finished is forgotten.
        """
        prompts = len(prompt_ids)
        uid_P = np.arange(prompts, dtype=np.int64)
        if self.estimator is None:
            prior_P = (np.full(prompts, self.plan.prior[0]), np.full(prompts, self.plan.prior[1]))
        else:
            prior_P = self.estimator.beta(prompt_ids, features_PF)
        first_wave_P = None
        if self.allocation is not None:
            rate_P = np.minimum(prior_P[0] / (prior_P[0] + prior_P[1]) + self.allocation.epsilon, 1.0)
            tie_P = seeds.uniform(self.run_seed, step, uid_P, 0, stream=seeds.Stream.ALLOCATION)
            first_wave_P = allocate(
                self.allocation.rule.weight(rate_P),
                self.plan.group_size * prompts,
                self.allocation.low,
                self.allocation.high,
                tie_P,
            )
        self._open = _OpenStep(step, list(prompt_ids), prompts - reserve, features_PF, prior_P)
        return SamplingSession(
            self.plan,
            uid_P,
            run_seed=self.run_seed,
            step=step,
            latency=self.latency,
            first_wave_P=first_wave_P,
            reserve=reserve,
            names_P=prompt_ids,
            prior_P=prior_P,
        )

    def finish(self, result: SamplingResult) -> StepRows:
        """Rows of the step that `begin` opened; the estimator learns from its pools."""
        opened = self._open
        if opened is None:
            raise InvariantError("finish without begin")
        rows = build_rows(
            result,
            self.rows,
            opened.batch,
            run_seed=self.run_seed,
            step=opened.step,
            prior_P=opened.prior_P,
        )
        if self.estimator is not None:
            self.estimator.update(opened.prompt_ids, result.pos_P, result.size_P, opened.features_PF)
        self._open = None
        return rows

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: numbers, lists and arrays."""
        return {
            "latency": self.latency.state_dict(),
            "estimator": None if self.estimator is None else self.estimator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, between two steps."""
        self.latency.load_state_dict(state["latency"])
        if self.estimator is not None and state["estimator"] is not None:
            self.estimator.load_state_dict(state["estimator"])


@dataclass(frozen=True, slots=True)
class _OpenStep:
    step: int
    prompt_ids: list[str]
    batch: int
    features_PF: FloatArray | None
    prior_P: tuple[FloatArray, FloatArray]
