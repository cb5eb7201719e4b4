"""The sampler of a run. It keeps the estimator and the latency model from step to step.

    sampled = sampler.run_step(step, prompt_ids, source)    # SampledStep: pools, rows, metrics

Asynchronous training draws every group by itself and ahead of its step. The group may be in another process:

    ledger = sampler.step_ledger(groups)                    # one per step, for all of its groups
    session = sampler.group_session(step, ledger.start())   # one per group
    selection = sampler.select(step, session.result())      # the group's rows, as soon as its last response has ended
    sampled = sampler.finish_step(pools)                    # pools: GroupPool of each group

Both back ends and the simulation call it, so equal responses give equal pools, rows and advantages everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.doctor import Doctor
from nemo_ada.core.learning.rows import Selection, StepRows, select, weigh
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.metrics import (
    PREFIX,
    add_prefix,
    add_prefix_to_lists,
    compute_explained_variance,
    count_by_prediction,
    count_rates,
)
from nemo_ada.core.prompts.allocation import Allocation
from nemo_ada.core.prompts.estimators import PassRateEstimator
from nemo_ada.core.sampling.budget import GroupLedger, StepLedger
from nemo_ada.core.sampling.groups import GroupPool, compute_group_metrics
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult, join_results
from nemo_ada.core.sampling.schedulers import StopCheck, run_sampling
from nemo_ada.core.sampling.session import SamplingSession, check_failures
from nemo_ada.core.sampling.source import ResponseSource
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import mean, summarise
from nemo_ada.errors import InvariantError, UserError


@dataclass(frozen=True, slots=True)
class SampledStep:
    """Pools and rows of one step.

    Attributes:
        result: the pools, with the rewards of the update.
        rows: the training rows.
        raw_reward_N: rewards of the pooled responses as the source gave them.
        sampling_metrics: metrics of the sampling phase, without prefix, on the source's rewards.
        predicted_P: pass rate that the estimator predicted for each prompt, in [0, 1]. None without an estimator, and
            where it predicts mean rewards that are no pass rates.
        warnings: what the doctor says about the step.
    """

    result: SamplingResult
    rows: StepRows
    raw_reward_N: FloatArray
    sampling_metrics: dict[str, float]
    predicted_P: FloatArray | None = None
    warnings: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """The step's scalar metrics, with prefixes. `ada/failed/CAUSE` counts responses without a label."""
        failed: Counter[str] = Counter()
        for cause, count in self.result.failures.items():  # details follow the cause
            failed[f"{PREFIX}failed/{cause.partition(' ')[0]}"] += count
        metrics = self.sampling_metrics | self.rows.metrics
        if self.rows.equal_labels_teach:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("zero_signal_groups")}
        if self.predicted_P is not None:
            result = self.result
            share = compute_explained_variance(self.predicted_P, result.first_pos_P, result.first_size_P)
            metrics |= {} if share is None else {"explained_variance": share}
        return add_prefix(metrics) | {name: float(count) for name, count in failed.items()}

    @property
    def lists(self) -> dict[str, list[int]]:
        """The step's metrics with several values (metrics.LISTS)."""
        result, predicted_P = self.result, self.predicted_P
        lists = {"pass_rate_histogram": count_rates(result.rate_F)}
        if predicted_P is not None:
            lists |= count_by_prediction(predicted_P, result.first_pos_P, result.first_size_P)
        return add_prefix_to_lists(lists)


class AdaSampler:
    """Runs Reinforce-Ada over the steps of a run. With a fixed exit it is GRPO."""

    def __init__(
        self,
        plan: SamplingPlan,
        rows: RowSettings,
        *,
        run_seed: int,
        estimator: PassRateEstimator | None = None,
        allocation: Allocation | None = None,
        stop_after: int | None = None,
    ) -> None:
        """Make a sampler.

        Args:
            plan: how responses are drawn.
            rows: how pools become rows.
            run_seed: seed of the run.
            estimator: it predicts pass rates before a step.
            allocation: the rule of the estimation variant, which also needs an estimator. None for the other variants.
            stop_after: dead steps in a row that end the run. See doctor.py.
        """
        if estimator is None and (allocation is not None or rows.shrunk_baseline):
            raise InvariantError("allocation and a shrunk baseline need an estimator, and there is none")
        self.plan, self.rows, self.run_seed = plan, rows, run_seed
        self.estimator, self.allocation = estimator, allocation
        self.latency = LatencyModel()
        self.doctor = Doctor(plan, stop_after)

    def run_step(
        self,
        step: int,
        prompt_ids: Sequence[str],
        source: ResponseSource,
        *,
        reserve: int = 0,
        features_PF: FloatArray | None = None,
        stop_check: StopCheck | None = None,
        final_rewards: Callable[[SamplingResult], FloatArray] | None = None,
        seen: Callable[[], Mapping[str, float]] = dict,
    ) -> SampledStep | None:
        """Sample one step from `source`, compute its rows, and let the estimator learn from the pools.

        Args:
            step: number of the step, for all seeds.
            prompt_ids: stable ids, equal for equal prompts. The last `reserve` are reserve prompts.
            source: draws and labels responses.
            reserve: number of reserve prompts.
            features_PF: prompt features for the value estimator.
            stop_check: see `run_sampling`.
            final_rewards: maps the pools to the rewards [N] of the update (NeMo-RL's scaling and shaping). The sampling
                itself uses the source's rewards.
            seen: gives metrics that only the back end knows. It is asked when sampling has ended.

        Returns:
            The step, or None when `stop_check` dropped it. A dropped step changes nothing in the sampler.
        """
        prior_P = None if self.estimator is None else self.estimator.predict_beta(prompt_ids, features_PF)
        uid_P = np.arange(len(prompt_ids), dtype=np.int64)
        state = StepState(self.plan, uid_P, first_wave_P=self._allocate_first_waves(step, prior_P), reserve=reserve)
        session = SamplingSession(state, run_seed=self.run_seed, step=step, latency=self.latency, names_P=prompt_ids)
        result = run_sampling(session, source, stop_check=stop_check)
        if session.dropped:
            return None
        raw_reward_N, metrics = result.reward_N, self._summarise(result) | dict(seen())
        if final_rewards is not None:
            result = replace(result, reward_N=final_rewards(result))
        selection = self.select(step, result, len(prompt_ids) - reserve)
        rows = weigh(result, selection, self.rows, prior_P=prior_P)
        self._learn(prompt_ids, result, features_PF)
        return self._examine(
            step, SampledStep(result, rows, raw_reward_N, metrics, self._compute_predicted(prior_P, result))
        )

    def _summarise(self, result: SamplingResult) -> dict[str, float]:
        return summarise(result, self.plan.budget) | {"truncated": mean(result.tokens_N >= self.plan.max_new_tokens)}

    def _examine(self, step: int, sampled: SampledStep) -> SampledStep:
        """Add what the doctor says. Raises UserError where the settings end the run after so many dead steps."""
        return replace(sampled, warnings=self.doctor.examine(step, sampled.result, sampled.metrics))

    def select(self, step: int, result: SamplingResult, batch: int = 1) -> Selection:
        """Choose the rows of a result with `batch` groups. A group chooses the same rows alone and within a step."""
        return select(result, self.rows, batch, run_seed=self.run_seed, step=step)

    def _compute_predicted(
        self, prior_P: tuple[FloatArray, FloatArray] | None, result: SamplingResult
    ) -> FloatArray | None:
        """Compute the pass rate that the estimator predicted for each prompt, if it predicts pass rates."""
        if prior_P is None or (self.rows.shrunk_baseline and not self._rewards_are_labels(result)):
            return None
        return prior_P[0] / (prior_P[0] + prior_P[1])

    def _rewards_are_labels(self, result: SamplingResult) -> bool:
        share_N = self.rows.share_of_range(result.reward_N)
        return bool(((share_N == 0.0) | (share_N == 1.0)).all())

    def _learn(self, prompt_ids: Sequence[str], result: SamplingResult, features_PF: FloatArray | None) -> None:
        if self.estimator is not None:
            learned_P: IntArray | FloatArray = result.pos_P
            if self.rows.shrunk_baseline:  # the baseline predicts rewards, as shares of their range
                share_N = self.rows.share_of_range(result.reward_N)
                learned_P = np.asarray(np.bincount(result.prompt_N, share_N, len(prompt_ids)), np.float64)
            self.estimator.update(prompt_ids, learned_P, result.size_P, features_PF)

    # groups that are drawn independently ------------------------------------------------------------------------------

    def step_ledger(self, groups: int) -> StepLedger:
        """Make the ledger that the groups of one training step share."""
        plan = self.plan
        return StepLedger(plan.budget, groups=groups, first=plan.stop.first_wave, most=plan.stop.cap)

    def group_session(self, step: int, ledger: GroupLedger, uid: int | None = None) -> SamplingSession:
        """Make a session for one prompt. The step and the prompt's number within it are a part of every seed.

        All sessions share the latency model, so they must not run at the same moment in two threads.

        Args:
            step: number of the step.
            ledger: ledger of the group.
            uid: number of the prompt in the seeds. None takes the group's number in the ledger.
        """
        if self.allocation is not None:
            raise InvariantError("a group by itself is drawn in waves; allocation needs the whole step")
        state = StepState(self.plan, np.array([ledger.number if uid is None else uid], np.int64))
        return SamplingSession(state, run_seed=self.run_seed, step=step, latency=self.latency, ledger=ledger)

    def finish_step(self, pools: Sequence[GroupPool], selection: Selection | None = None) -> SampledStep:
        """Compute the advantages of a step from its groups. The estimator learns from the pools.

        Args:
            pools: the groups, in the order of the step.
            selection: the rows that the groups have selected. None selects them here.

        Raises:
            FailedResponsesError: too many responses of the step have no label.
        """
        step, prompt_ids = pools[0].step, [pool.prompt_id for pool in pools]
        if any(pool.step != step for pool in pools):
            raise InvariantError(f"groups of steps {sorted({pool.step for pool in pools})} in one batch")
        result = join_results([pool.result for pool in pools])
        issued = int(result.issued_P.sum())
        failed = [pool.prompt_id for pool in pools if pool.result.failures]
        check_failures(Counter(result.failures), issued, 0, self.plan.max_failed_share, f"of step {step}", failed)
        features = [pool.features_F for pool in pools if pool.features_F is not None]
        features_PF = np.stack(features) if features else None
        prior_P = None if self.estimator is None else self.estimator.predict_beta(prompt_ids, features_PF)
        selection = self.select(step, result, len(pools)) if selection is None else selection
        rows = weigh(result, selection, self.rows, prior_P=prior_P)
        self._learn(prompt_ids, result, features_PF)
        metrics = self._summarise(result) | compute_group_metrics(pools)
        return self._examine(
            step, SampledStep(result, rows, result.reward_N, metrics, self._compute_predicted(prior_P, result))
        )

    def _allocate_first_waves(self, step: int, prior_P: tuple[FloatArray, FloatArray] | None) -> IntArray | None:
        """Compute the responses per prompt of the estimation variant. None for the other variants."""
        if self.allocation is None or prior_P is None:
            return None
        a_P, b_P = prior_P
        tie_P = seeds.draw_uniform(
            self.run_seed, step, np.arange(len(a_P), dtype=np.int64), 0, stream=seeds.SeedStream.ALLOCATION
        )
        return self.allocation.compute_responses(a_P / (a_P + b_P), self.plan.group_size, tie_P)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: numbers, lists and arrays."""
        return {
            "latency": self.latency.state_dict(),
            "estimator": None if self.estimator is None else self.estimator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, between two steps.

        Raises:
            UserError: the state is that of another estimator.
        """
        self.latency.load_state_dict(state["latency"])
        if self.estimator is None or state["estimator"] is None:
            return
        if state["estimator"].keys() != self.estimator.state_dict().keys():
            raise UserError(
                "the checkpoint's pass rates come from another reinforce_ada.estimator.kind; resume with the kind that "
                "the run was started with"
            )
        self.estimator.load_state_dict(state["estimator"])
