"""The functions that stand in for NeMo-RL's while a run lasts. One `Hooks` object per run.

A step's life: grpo_train wakes the engine -> `rollout` draws waves until the sampler has enough and returns n rows per
prompt -> the engine sleeps -> scale_rewards and apply_reward_shaping, which did their work inside `rollout`, return
the batch as it is -> `baseline_and_std` gives the pools' moments to the log -> the estimator hands out advantages.

In asynchronous training groups are drawn elsewhere (async_actors.py), and the estimator puts the step together.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from nemo_ada.core.metrics import PREFIX, named
from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.schedulers import StopCheck
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.nemo import metrics as own_metrics
from nemo_ada.nemo.access import get
from nemo_ada.nemo.advantage import AdaAdvantageEstimator
from nemo_ada.nemo.async_rollout import AsyncSource
from nemo_ada.nemo.async_step import GroupAdvantageEstimator
from nemo_ada.nemo.call import Prompts, RolloutCall
from nemo_ada.nemo.candidates import CandidateLoader
from nemo_ada.nemo.engine_abort import EngineAbort
from nemo_ada.nemo.features import prompt_features
from nemo_ada.nemo.rollout import BatchSource
from nemo_ada.nemo.settings import NemoSettings, chosen
from nemo_ada.nemo.step import build_batch, pool_moments

log = logging.getLogger(__name__)

PERFORMANCE = "print_performance_metrics"
GENERATION_PACE = ("generation_tokens_per_sec", "generation_tokens_per_sec_per_gpu")
TOKENS_DRAWN = PREFIX + "tokens_drawn"
Rollout = Callable[..., tuple[Any, dict[str, Any]]]


class StepDroppedError(Exception):
    """The end of the job came while responses were drawn: this step was given up before it changed anything."""


class Hooks:
    """Reinforce-Ada's side of one run of grpo_train."""

    def __init__(
        self,
        master_config: Any,
        settings: NemoSettings,
        originals: Mapping[str, Callable[..., Any]],
        stop_check: StopCheck | None = None,
    ) -> None:
        """originals: NeMo-RL's functions by name (targets.py), SAMPLE_ROLLOUT's among them."""
        self._config, self.settings, self._originals, self._stop_check = master_config, settings, originals, stop_check
        self.sampler: AdaSampler = settings.sampler()
        self.draws = 0  # rollout calls so far: the step number of every seed
        self._tokens_drawn = 0.0  # since the last step's performance was logged
        self.sampling_seconds = 0.0  # of the last rollout call
        self.lists: dict[str, list[int]] = {}  # its metrics that are no scalars, which NeMo-RL's loggers do not take
        self._estimator = AdaAdvantageEstimator(settings)
        self._active = False  # the loop asked for our estimator; until then every name does what it did
        self._validating = False
        self._without_label = 0  # answers of the validation under way that count as wrong without a verdict
        self._current: Any = None  # the batch that the last rollout returned
        self._expected: dict[int, float] = {}  # draw -> probability that its chosen groups have both labels

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"draws": self.draws, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, before the first step."""
        self.draws = int(state["draws"])
        if state["sampler"] is not None:
            self.sampler.load_state_dict(state["sampler"])

    @property
    def unlogged(self) -> dict[str, Any]:
        """Metrics of the last step that NeMo-RL's loggers do not get."""
        return {**self.lists, **self._estimator.counted}

    # -- candidates --------------------------------------------------------------------------------------------------

    def loader(self, loader: Any) -> Any:
        """The data loader to give to grpo_train: `loader`, or with candidate_prompts one that hands out the chosen.

        Raises UserError when an epoch has fewer prompts, or when the choice would be random.
        """
        settings = self.settings
        if not settings.ada.candidate_prompts:
            return loader
        settings.ada.check_candidates(len(loader) * settings.prompts, settings.max_steps)
        return CandidateLoader(loader, settings.ada.candidate_prompts // settings.prompts, self._choose)

    def _choose(self, batches: Sequence[Any]) -> Any:
        """One batch out of several for the next draw. Prompts that are too long for the data's limit come last."""
        merged = type(batches[0]).from_batches(batches)
        candidates, draw, count = Prompts(merged, 1, whole=False), self.draws + 1, batches[0].size
        positions, self._expected[draw] = list(candidates.masked), 0.0
        if candidates.ids:
            best, self._expected[draw] = self.sampler.choose(draw, candidates.ids, count, self._features(candidates))
            positions = [candidates.position_P[place] for place in best.tolist()] + positions
        return merged.select_indices(positions[:count])

    # -- replacements ------------------------------------------------------------------------------------------------

    def replacements(self) -> dict[str, Callable[..., Any]]:
        """Name in the loop's module -> what stands in for it."""
        own: dict[str, Callable[..., Any]] = {
            "run_multi_turn_rollout": self._rollout_hook("run_multi_turn_rollout"),
            "run_async_multi_turn_rollout": self._rollout_hook("run_async_multi_turn_rollout"),
            "validate": self._validate,
            "_create_advantage_estimator": self._create_estimator,
            "calculate_baseline_and_std_per_prompt": self._baseline_and_std,
            "scale_rewards": self._done_already("scale_rewards"),
            "apply_reward_shaping": self._done_already("apply_reward_shaping"),
        }
        return own | {PERFORMANCE: self._performance} if PERFORMANCE in self._originals else own

    def _performance(self, train_results: Any, metrics: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's throughputs. It divides the tokens of the training rows by the engine's time; the engine made more,
        and the training rows hold prompts, too."""
        numbers = self._originals[PERFORMANCE](train_results, metrics, *args, **kwargs)
        drawn, self._tokens_drawn = self._tokens_drawn or metrics.get(TOKENS_DRAWN, 0.0), 0.0
        kept = float(metrics.get("total_num_tokens", 0.0))
        if self._active and kept > 0:
            numbers |= {name: value * drawn / kept for name, value in numbers.items() if name in GENERATION_PACE}
        return numbers

    def _create_estimator(self, master_config: Any) -> Any:
        """The loop's first call: its configuration decides whether the hooks act at all."""
        self._active = chosen(master_config)
        if not self._active:
            return self._originals["_create_advantage_estimator"](master_config)
        if self.settings.ahead:
            return GroupAdvantageEstimator(self.settings, self.sampler, self._finished)
        return self._estimator

    def _finished(self, sampled: SampledStep) -> None:
        """A step of asynchronous training was put together."""
        self.draws += 1
        self.lists = sampled.lists

    def _done_already(self, name: str) -> Callable[..., Any]:
        """Rewards were scaled and shaped inside the rollout, for whole pools."""

        def rewards(batch: Any, *args: Any, **kwargs: Any) -> Any:
            return batch if self._active else self._originals[name](batch, *args, **kwargs)

        return rewards

    def _validate(self, *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's validation, which draws with the same two rollout functions and must get NeMo-RL's own."""
        self._validating, self._without_label = True, 0
        try:
            scores, timings = self._originals["validate"](*args, **kwargs)
        finally:
            self._validating = False
        if self._active and scores:
            scores[own_metrics.WITHOUT_LABEL] = float(self._without_label)
        return scores, timings

    def _rollout_hook(self, name: str) -> Rollout:
        original = self._originals[name]
        one_by_one = name == "run_async_multi_turn_rollout"
        signature = inspect.signature(original)

        def rollout(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            given = dict(signature.bind(*args, **kwargs).arguments)
            if not self._active or self._validating:
                final, numbers = original(*args, **kwargs)
                if self._active:
                    unanswered = count_as_wrong(final)
                    if unanswered:
                        EngineAbort(given["policy_generation"]).check()
                    self._without_label += unanswered
                return final, numbers
            batch = given.pop("input_batch")
            call = RolloutCall(
                original,
                **{
                    field.name: given.pop(field.name)
                    for field in dataclasses.fields(RolloutCall)
                    if field.name in given
                },
                rest=given,
            )
            return self.step(batch, call, one_by_one=one_by_one)

        return rollout

    def _baseline_and_std(
        self, prompts: Any, rewards: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the pools (not of the kept rows), by our own groups."""
        if not self._active:
            return self._originals["calculate_baseline_and_std_per_prompt"](prompts, rewards, *args, **kwargs)
        batch = self._current
        if len(rewards) != batch["ada_reward"].shape[0] or not torch.equal(rewards.cpu().float(), batch["ada_reward"]):
            raise InvariantError("baselines were asked for other rows than the rollout returned")
        return batch["ada_baseline"].to(rewards), batch["ada_std"].to(rewards)

    # -- a step ------------------------------------------------------------------------------------------------------

    def step(self, repeated_batch: Any, call: RolloutCall, *, one_by_one: bool) -> tuple[Any, dict[str, Any]]:
        """Draw, select and weigh; the batch of rows and the metrics of NeMo-RL's rollout result."""
        prompts = Prompts(repeated_batch, self.settings.group)
        draw = self.draws + 1
        if self.settings.ada.candidate_prompts and draw not in self._expected:
            raise UserError(
                "reinforce_ada.candidate_prompts is set, and grpo_train got a data loader that chooses nothing; give "
                "it `hooks.loader(dataloader)`, where hooks is what `with reinforce_ada(...) as hooks` yields"
            )
        source = self._source(call, prompts, one_by_one)
        try:
            sampled = self.sampler.run_step(
                draw,
                prompts.ids,
                source,
                features_PF=self._features(prompts),
                stop_check=self._stop_check,
                final_rewards=lambda result: self._rewards(result, source),
            )
        finally:
            source.close()
        if sampled is None:
            raise StepDroppedError(f"draw {draw} was given up: the end of the job is near")
        result, rows = sampled.result, sampled.rows
        moments = pool_moments(result, sampled.raw_reward_N)
        batch, skipped = build_batch(prompts, source, result.reward_N, rows, moments, self.settings, draw)
        self.draws, self._current = draw, batch
        self.sampling_seconds = result.stats["sampling_seconds"]
        responses = [source.response(row) for row in result.response_id_N.tolist()]
        tokens_N = np.array([response.tokens for response in responses] or [0])
        metrics: dict[str, Any] = source.reported | {
            "mean_gen_tokens_per_sample": float(tokens_N.mean()),
            "max_gen_tokens_per_sample": float(tokens_N.max()),
            "truncation_rate": float(np.mean([response.truncated for response in responses] or [False])),
            "mean_prompt_length": float(
                repeated_batch["length"].float().mean()
            ),  # placeholder rows would lower NeMo-RL's own
        }
        metrics |= sampled.metrics
        self.lists = sampled.lists
        steps = own_metrics.engine_steps_at_least(
            result, barrier=not one_by_one, windowed=self.sampler.plan.window is not None
        )
        metrics |= own_metrics.named(skipped | source.metrics | {"engine_steps_at_least": steps})
        if draw in self._expected:
            metrics |= named({"expected_signal_groups": self._expected.pop(draw)})
        self._tokens_drawn += metrics[TOKENS_DRAWN]
        self._estimator.logged = metrics
        return batch, metrics

    def _features(self, prompts: Prompts) -> np.ndarray | None:
        return prompt_features(prompts.logs) if self.settings.ada.estimator.kind == "value" else None

    def _source(self, call: RolloutCall, prompts: Prompts, one_by_one: bool) -> BatchSource | AsyncSource:
        if not one_by_one:
            return BatchSource(call, prompts)
        return AsyncSource(call, prompts, self._originals["run_sample_multi_turn_rollout"], self.settings.longest)

    def _rewards(self, result: SamplingResult, source: BatchSource | AsyncSource) -> np.ndarray:
        """Rewards of the pools after NeMo-RL's own scaling and shaping, so that a pool's mean is on their scale.

        `positive_threshold` and the exit rules look at the environment's raw reward, as it was before.
        """
        scaling, shaping = get(self._config, "grpo.reward_scaling"), get(self._config, "grpo.reward_shaping")
        if not (get(scaling, "enabled", False) or get(shaping, "enabled", False)) or len(result.response_id_N) == 0:
            return result.reward_N
        responses = [source.response(row) for row in result.response_id_N.tolist()]
        pool: dict[str, Any] = {
            "message_log": [response.message_log for response in responses],
            "total_reward": torch.tensor(result.reward_N, dtype=torch.float32),
            "truncated": torch.tensor([response.truncated for response in responses]),
        }
        if get(scaling, "enabled", False):
            pool = self._originals["scale_rewards"](pool, scaling)
        if get(shaping, "enabled", False):
            pool = self._originals["apply_reward_shaping"](pool, shaping)
        return pool["total_reward"].numpy().astype(np.float64)


def count_as_wrong(final: Any) -> int:
    """Give 0 to the answers of a validation batch that have no label, and return how many they are.

    NeMo-RL averages the rewards, so one NaN would hide all others. A failed answer is no correct one for the model
    that is compared; that it is no wrong one either is said by the count, which is logged beside the accuracy.
    """
    unjudged = ~torch.isfinite(final["total_reward"])
    unanswered = torch.tensor([not any("generation_logprobs" in turn for turn in log) for log in final["message_log"]])
    failed = unjudged | unanswered
    if failed.any():
        log.warning("%d of %d validation answers have no label and count as wrong", int(failed.sum()), len(failed))
        final["total_reward"] = torch.where(failed, torch.zeros_like(final["total_reward"]), final["total_reward"])
    return int(failed.sum())
