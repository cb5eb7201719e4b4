"""Prompt groups that were drawn independently of each other, and the step that trains on them.

Asynchronous training draws each group in a session of its own, ahead of the step. `merge` makes of their pools what one
session over all prompts would have returned, so rows and metrics come from the same code in both modes. P groups of a
step, N responses of a pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.result import SamplingResult

Rule = Callable[[FloatArray], float]


@dataclass(frozen=True, slots=True)
class GroupPool:
    """The pool of one prompt: numbers only, so that it can travel between processes.

    step: the optimisation step that trains on it. result: of a session with one prompt. version_N: version of the
    weights under which each response was started. redrawn: a stopped run had begun this group. given_up: it took too
    long. features_F: of the prompt, for the value estimator.
    """

    step: int
    prompt_id: str
    result: SamplingResult
    version_N: IntArray
    redrawn: bool = False
    given_up: bool = False
    features_F: FloatArray | None = None

    def as_dict(self) -> dict[str, Any]:
        """Numbers, strings, arrays and dictionaries of these."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return own | {"result": {field.name: getattr(self.result, field.name) for field in fields(self.result)}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GroupPool:
        """What `as_dict` gave."""
        return cls(**{**values, "result": SamplingResult(**values["result"])})


def merge(pools: Sequence[GroupPool], caps: Caps) -> SamplingResult:
    """The pools of a step's P groups as one result; prompt i is pools[i].

    response_id_N are those of each group's own session: they are unique only together with prompt_N.
    """
    results = [pool.result for pool in pools]
    prompts = np.arange(len(results), dtype=np.int64)
    joined = {name: np.concatenate([getattr(result, name) for result in results]) for name in _JOINED}
    merged = SamplingResult(
        **joined,
        prompt_N=np.repeat(prompts, [len(result.response_id_N) for result in results]),
        group_G=prompts,
        used=len(results),
        stats={},
        failures=dict(sum((Counter(result.failures) for result in results), Counter())),
    )
    merged.stats.update(_stats(pools, merged, caps))
    return merged


_JOINED = (
    "response_id_N", "index_N", "wave_N", "reward_N", "positive_N", "tokens_N", "uid_P", "pos_P", "neg_P",
    "first_pos_P", "first_size_P", "drawn_P", "resolved_P", "cut_P", "rate_F",
)  # fmt: skip


def _sum(value_P: FloatArray) -> float:
    return float(value_P.sum())


def _mean(value_P: FloatArray) -> float:
    return float(value_P.mean()) if len(value_P) else 0.0


def _most_frequent(code_P: FloatArray) -> float:
    bound_P = code_P[code_P > 0].astype(np.int64)
    return float(np.bincount(bound_P).argmax()) if len(bound_P) else 0.0


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "samples_drawn", "samples_in_pools", "samples_dropped", "samples_failed", "tokens_drawn", "tokens_in_pools",
            "prompts_drawn", "prompts_resolved", "prompts_unresolved", "missing_positive", "missing_negative",
            "resolved_in_first_wave", "prompts_cut", "groups_replaced", "budget_used_samples", "budget_used_tokens",
        ),
        _sum,
    ),
    **dict.fromkeys(("waves_max", "pool_size_max", "sampling_seconds", "seconds_overshoot"), np.max),
    **dict.fromkeys(("waves_mean", "zero_signal_groups", "zero_signal_groups_if_grpo", "pool_size_mean"), _mean),
    "budget_bound": _most_frequent,
}  # fmt: skip
"""How a metric of the groups becomes one of the step. The others are computed anew from the merged pools."""


def _stats(pools: Sequence[GroupPool], merged: SamplingResult, caps: Caps) -> dict[str, float]:
    table = [pool.result.stats for pool in pools]
    stats = {
        name: float(rule(np.array([stats[name] for stats in table])))
        for name, rule in RULES.items()
        if name in table[0]
    }
    size_P = merged.size_P
    reward_P = np.bincount(merged.prompt_N, weights=merged.reward_N, minlength=len(size_P))
    filled_P = size_P > 0
    version_N = np.concatenate([pool.version_N for pool in pools])
    step_N = np.repeat([pool.step for pool in pools], size_P)
    mixed_P = np.array([len(set(pool.version_N.tolist())) > 1 for pool in pools])
    overshoot = 0.0 if caps.max_tokens is None else max(0.0, stats["tokens_drawn"] - caps.max_tokens)
    return stats | {
        "pool_size_p95": float(np.percentile(size_P, 95)),
        "pass_rate": _mean(merged.rate_F),
        "pool_reward": _mean(reward_P[filled_P] / size_P[filled_P]),
        "response_length_pools": _mean(merged.tokens_N.astype(np.float64)),
        "tokens_overshoot": overshoot,
        "groups_given_up": float(sum(pool.given_up for pool in pools)),
        "groups_redrawn": float(sum(pool.redrawn for pool in pools)),
        "pools_mixed_versions": _mean(mixed_P.astype(np.float64)),
        "response_age": _mean((step_N - version_N).astype(np.float64)),
    }
