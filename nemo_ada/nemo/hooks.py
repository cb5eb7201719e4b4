"""The functions that replace NeMo-RL's while a run lasts. A run has one `Hooks` object.

A step of grpo_train goes as follows.

1. grpo_train wakes the engine.
2. `rollout` draws waves until the sampler has enough, and returns n rows per prompt.
3. The engine sleeps.
4. scale_rewards and apply_reward_shaping return the batch as it is, because `rollout` has called the originals.
5. `baseline_and_std` returns the mean and standard deviation of the pools, for the log.
6. The advantage estimator returns the advantages.

In asynchronous training the groups are drawn elsewhere (asynchronous/), and the estimator puts the step together.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nemo_ada.config.values import Values
from nemo_ada.core.metrics import PREFIX
from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.schedulers import StopCheck
from nemo_ada.errors import InvariantError
from nemo_ada.nemo import metrics as nemo_metrics
from nemo_ada.nemo import trivial_groups
from nemo_ada.nemo.advantage import AdaAdvantageEstimator
from nemo_ada.nemo.features import compute_prompt_features, compute_request_features
from nemo_ada.nemo.rollouts.batches import BatchSource
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.engine_abort import EngineAbort
from nemo_ada.nemo.rollouts.requests import AsyncSource
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import (
    build_batch,
    pool_metrics,
    pool_rewards,
    read_shaped_rewards,
)
from nemo_ada.rules.facts.upstream import (
    ASYNC_ROLLOUT,
    BASELINES,
    GYM_ROLLOUT,
    GYM_SYNC,
    REWARD_SECTIONS,
    ROLLOUT,
    SCALE,
    SHAPE,
)

log = logging.getLogger(__name__)

PERFORMANCE = "print_performance_metrics"
GENERATION_PACE = ("generation_tokens_per_sec", "generation_tokens_per_sec_per_gpu")
TOKENS_DRAWN = PREFIX + "tokens_drawn"
Rollout = Callable[..., tuple[Any, dict[str, Any]]]
Source = BatchSource | AsyncSource  # GymSource is an AsyncSource


class StepDroppedError(Exception):
    """The job neared its end while responses were drawn. The step stopped before it changed anything."""


class Hooks:
    """Reinforce-Ada in one run of grpo_train.

    Attributes:
        settings: Settings of the run.
        sampler: Decides what is drawn and which responses become rows.
        rollout_calls: Rollout calls so far. This is the step number of every seed.
        current: The batch that the last rollout returned.
        on_wait: Called at least once a minute while a validation over NeMo-Gym waits for responses.
        sampling_seconds: Duration of the last rollout call.
        lists: Metrics of the last rollout call that are lists, which NeMo-RL's loggers do not take.
    """

    def __init__(
        self,
        master_config: Any,
        settings: NemoSettings,
        originals: Mapping[str, Callable[..., Any]],
        stop_check: StopCheck | None = None,
        *,
        marks_trivial_groups: bool = False,
    ) -> None:
        """Make the hooks. They do nothing before `replacements` stand in the loop's module.

        Args:
            master_config: NeMo-RL's configuration.
            settings: Settings of the run.
            originals: NeMo-RL's functions by name: all of PATCH_POINTS, SAMPLE_ROLLOUT, and NeMo-Gym's where the run
                uses it.
            stop_check: Whether the job nears its end.
            marks_trivial_groups: Whether the baselines have a third value (trivial_groups.py).
        """
        self._marks_trivial_groups = marks_trivial_groups
        self._config, self.settings, self._originals, self._stop_check = master_config, settings, originals, stop_check
        self.sampler: AdaSampler = settings.sampler()
        self.rollout_calls = 0
        self.on_wait: Callable[[], None] = lambda: None
        self._tokens_drawn = 0.0  # since the last step's performance was logged
        self.sampling_seconds = 0.0
        self.lists: dict[str, list[int]] = {}
        self._estimator = AdaAdvantageEstimator(settings)
        self._validating = False
        self._without_label = 0  # answers of the current validation that count as wrong without a verdict
        self.current: Any = None

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"draws": self.rollout_calls, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, before the first step."""
        self.rollout_calls = int(state["draws"])
        if state["sampler"] is not None:
            self.sampler.load_state_dict(state["sampler"])

    @property
    def unlogged(self) -> dict[str, Any]:
        """Metrics of the last step that NeMo-RL's loggers do not get."""
        return {**self.lists, **self._estimator.counted}

    # -- another process ---------------------------------------------------------------------------------------------

    @contextmanager
    def validation(self, validates: bool) -> Iterator[None]:
        """Within the block a rollout is one of a validation, or none."""
        self._validating, self._without_label = validates, 0
        try:
            yield
        finally:
            self._validating = False

    def report(self) -> dict[str, Any]:
        """Return what the hooks of the driver want to know after a rollout call."""
        drawn, self._tokens_drawn = self._tokens_drawn, 0.0
        return {
            "rollout_calls": self.rollout_calls, "sampling_seconds": self.sampling_seconds, "lists": self.lists,
            "tokens_drawn": drawn, "without_label": self._without_label,
        }  # fmt: skip

    def take(self, report: Mapping[str, Any]) -> None:
        """Take over what the hooks of the rollouts report."""
        self.rollout_calls, self.sampling_seconds = report["rollout_calls"], report["sampling_seconds"]
        self.lists = report["lists"]
        self._tokens_drawn += report["tokens_drawn"]
        self._without_label += report["without_label"]

    # -- replacements ------------------------------------------------------------------------------------------------

    def replacements(self) -> dict[str, Callable[..., Any]]:
        """Name in the loop's module -> the function that replaces it."""
        hooks: dict[str, Callable[..., Any]] = {
            ROLLOUT.name: self._make_rollout_hook(ROLLOUT.name),
            ASYNC_ROLLOUT.name: self._make_rollout_hook(ASYNC_ROLLOUT.name),
            "validate": self._validate,
            "_create_advantage_estimator": self._create_estimator,
            BASELINES: self._get_baseline_and_std,
            SCALE: leave_rewards,
            SHAPE: leave_rewards,
        }
        optional = {PERFORMANCE: self._correct_performance, trivial_groups.NAME: self._find_trivial}
        if self.settings.gym:
            name = GYM_SYNC.name if GYM_SYNC.name in self._originals else GYM_ROLLOUT.name
            hooks[name] = self._make_gym_hook(name)
        return hooks | {name: hook for name, hook in optional.items() if name in self._originals}

    def _correct_performance(self, train_results: Any, metrics: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's throughputs, with the engine's corrected.

        NeMo-RL divides the tokens of the training rows by the engine's time. But the engine generates more responses
        than are trained on, and the training rows also contain prompts.
        """
        numbers = self._originals[PERFORMANCE](train_results, metrics, *args, **kwargs)
        drawn, self._tokens_drawn = self._tokens_drawn or metrics.get(TOKENS_DRAWN, 0.0), 0.0
        trained = float(metrics.get("total_num_tokens", 0.0))
        if trained > 0:
            numbers |= {name: value * drawn / trained for name, value in numbers.items() if name in GENERATION_PACE}
        return numbers

    def _create_estimator(self, master_config: Any) -> AdaAdvantageEstimator:
        """Return the advantage estimator. The loop calls this first."""
        if self.settings.loop.draws_ahead:
            from nemo_ada.nemo.groups.step import GroupAdvantageEstimator

            return GroupAdvantageEstimator(self.settings, self.sampler, self._count_step)
        return self._estimator

    def _count_step(self, sampled: SampledStep) -> None:
        """Count a step of asynchronous training that was put together."""
        self.rollout_calls += 1
        self.lists = sampled.lists
        self._say(sampled)

    def _say(self, sampled: SampledStep) -> None:
        for text in sampled.warnings:
            log.warning("%s", text)

    def _validate(self, *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's validation. It calls the same two rollout functions, and their originals must run."""
        self._validating, self._without_label = True, 0
        try:
            scores, timings = self._originals["validate"](*args, **kwargs)
        finally:
            self._validating = False
        if scores:
            scores[nemo_metrics.WITHOUT_LABEL] = float(self._without_label)
        return scores, timings

    def _make_rollout_hook(self, name: str) -> Rollout:
        """Return the function that replaces one of NeMo-RL's two rollout functions."""
        original = self._originals[name]
        one_by_one = name == ASYNC_ROLLOUT.name
        signature = inspect.signature(original)

        def rollout(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            given = dict(signature.bind(*args, **kwargs).arguments)
            if self._validating:
                final, numbers = original(*args, **kwargs)
                unanswered = count_as_wrong(final)
                if unanswered:
                    EngineAbort(given["policy_generation"]).check()
                self._without_label += unanswered
                return final, numbers
            batch = given.pop("input_batch")
            return self.step(batch, RolloutCall.of(original, given), one_by_one=one_by_one)

        return rollout

    def _make_gym_hook(self, name: str) -> Callable[..., Any]:
        """Return the function that replaces NeMo-RL's rollout over NeMo-Gym."""
        from nemo_ada.nemo.gym.step import make_result, validate

        original, single = self._originals[name], self._originals[GYM_ROLLOUT.name]
        signature = inspect.signature(original)

        def rollout(*args: Any, **kwargs: Any) -> Any:
            given = dict(signature.bind(*args, **kwargs).arguments)
            batch = given.pop("input_batch")
            call = RolloutCall.of(original, given)
            if self._validating:
                result, unlabelled = validate(call, batch, single, self.settings.longest, self.on_wait)
                self._without_label += unlabelled
                return result
            return make_result(*self.step(batch, call, one_by_one=True), call.tokenizer)

        return rollout

    def _get_baseline_and_std(self, prompts: Any, rewards: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Mean and standard deviation of each row's pool, and not of the selected rows.

        NeMo-RL v0.8.0 also wants to know which pools have one reward value.
        """
        batch = self._get_batch(rewards)
        moments = batch["ada_baseline"].to(rewards), batch["ada_std"].to(rewards)
        return (*moments, trivial_groups.find_trivial(moments[1])) if self._marks_trivial_groups else moments

    def _find_trivial(self, prompts: Any, rewards: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return which rows dynamic sampling leaves out: those whose pool has one reward value."""
        return trivial_groups.find_trivial(self._get_batch(rewards)["ada_std"]).to(rewards.device)

    def _get_batch(self, rewards: torch.Tensor) -> Any:
        """Return the batch of the last rollout. Raises InvariantError when the loop asks about other rows."""
        batch = self.current
        if len(rewards) != batch["ada_reward"].shape[0] or not torch.equal(rewards.cpu().float(), batch["ada_reward"]):
            raise InvariantError("the loop wants baselines for other rows than the rollout returned")
        return batch

    # -- a step ------------------------------------------------------------------------------------------------------

    def step(self, repeated_batch: Any, call: RolloutCall, *, one_by_one: bool) -> tuple[Any, dict[str, Any]]:
        """Draw responses, select rows and weigh them.

        Args:
            repeated_batch: NeMo-RL's batch, with each prompt n times.
            call: Arguments of the rollout.
            one_by_one: Whether the rollout function takes single responses (the asynchronous engine).

        Returns:
            The batch of rows and the metrics, as NeMo-RL's rollout functions return them.

        Raises:
            StepDroppedError: The job nears its end.
        """
        prompts = Prompts(repeated_batch, self.settings.group, gym=self.settings.gym)
        number = self.rollout_calls + 1
        source = self._make_source(call, prompts, one_by_one)
        try:
            sampled = self.sampler.run_step(
                number,
                prompts.ids,
                source,
                features_PF=self._compute_features(prompts),
                stop_check=self._stop_check,
                final_rewards=lambda result: self._compute_rewards(result, source),
            )
        finally:
            source.close()
        if sampled is None:
            raise StepDroppedError(f"rollout call {number} was given up: the end of the job is near")
        result, rows = sampled.result, sampled.rows
        rewards = pool_rewards(result, sampled.raw_reward_N)
        batch, skipped = build_batch(prompts, source, rows, rewards, self.settings, number)
        self.rollout_calls, self.current = number, batch
        self.sampling_seconds = result.seconds
        measured = pool_metrics(prompts, source, result, repeated_batch["length"])
        metrics: dict[str, Any] = source.reported | measured | sampled.metrics
        self.lists = sampled.lists
        self._say(sampled)
        steps = nemo_metrics.bound_engine_steps(result, barrier=not one_by_one)
        metrics |= nemo_metrics.add_prefix(skipped | source.metrics | {"engine_steps_at_least": steps})
        self._tokens_drawn += metrics[TOKENS_DRAWN]
        self._estimator.logged = metrics
        return batch, metrics

    def _compute_features(self, prompts: Prompts) -> np.ndarray | None:
        """Features [P, F] for an estimator that needs them, else None."""
        if not self.settings.ada.estimator.needs_features:
            return None
        return compute_request_features(prompts.requests) if prompts.requests else compute_prompt_features(prompts.logs)

    def _make_source(self, call: RolloutCall, prompts: Prompts, one_by_one: bool) -> Source:
        if prompts.requests:
            from nemo_ada.nemo.gym.source import GymSource

            return GymSource(call, prompts, self._originals[GYM_ROLLOUT.name], self.settings.longest)
        if not one_by_one:
            return BatchSource(call, prompts)
        return AsyncSource(call, prompts, self._originals["run_sample_multi_turn_rollout"], self.settings.longest)

    def _compute_rewards(self, result: SamplingResult, source: Source) -> np.ndarray:
        """Rewards of the pools [N] after NeMo-RL's scaling and shaping, so that a pool's mean has the same scale.

        `positive_threshold` and the exit rules use the environment's reward before that.
        """
        values = Values(self._config)
        changes = {
            name: values.get(section)
            for name, section in REWARD_SECTIONS.items()
            if values.get(f"{section}.enabled", False)
        }
        if not (changes or self.settings.gym) or len(result.response_id_N) == 0:
            return result.reward_N
        reward_N = read_shaped_rewards(result, source)
        if not changes:
            return reward_N
        responses = [source.response(row) for row in result.response_id_N.tolist()]
        pool: dict[str, Any] = {
            "message_log": [response.message_log for response in responses],
            "total_reward": torch.tensor(reward_N, dtype=torch.float32),
            "truncated": torch.tensor([response.truncated for response in responses]),
        }
        for name, section in changes.items():
            pool = self._originals[name](pool, section)
        return pool["total_reward"].numpy().astype(np.float64)


def leave_rewards(batch: Any, *_: Any, **__: Any) -> Any:
    """Leave the rewards alone, because the rollout has scaled and shaped those of whole pools."""
    return batch


def count_as_wrong(final: Any) -> int:
    """Give 0 to the answers of a validation batch that have no label, and return how many there are.

    NeMo-RL averages the rewards, so one NaN would hide all others. Answers without a label count as wrong, and
    `ada/without_label` logs how many there were beside the accuracy.
    """
    unjudged = ~torch.isfinite(final["total_reward"])
    unanswered = torch.tensor([not any("generation_logprobs" in turn for turn in log) for log in final["message_log"]])
    failed = unjudged | unanswered
    if failed.any():
        log.warning("%d of %d validation answers have no label and count as wrong", int(failed.sum()), len(failed))
        final["total_reward"] = torch.where(failed, torch.zeros_like(final["total_reward"]), final["total_reward"])
    return int(failed.sum())
