"""The table of metrics (algorithm.md section 7). A metric that is not in it cannot be emitted.

Names are logged with the prefix `ada/`; in NeMo-RL they appear as `train/ada/...`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.errors import InvariantError

PREFIX = "ada/"
BOUNDS = ("none", "max_samples", "max_tokens", "max_seconds", "idle", "stopped")

TABLE: Mapping[str, str] = {
    "samples_drawn": "responses issued, including dropped and failed ones",
    "samples_in_pools": "responses that belong to a pool",
    "samples_dropped": "responses issued but left out of the pools by the stopping rule",
    "samples_failed": "responses without a label (engine or verifier failure)",
    "tokens_drawn": "tokens generated, including those of dropped and failed responses",
    "tokens_in_pools": "tokens of the responses in pools",
    "waves_mean": "waves per prompt, mean",
    "waves_max": "waves per prompt, maximum",
    "prompts_drawn": "prompts that responses were drawn for (more than the batch when groups are replaced)",
    "prompts_resolved": "prompts whose pool meets the exit condition",
    "prompts_unresolved": "prompts whose pool does not",
    "missing_positive": "unresolved prompts that lack correct responses",
    "missing_negative": "unresolved prompts that lack incorrect responses",
    "resolved_in_first_wave": "prompts that met the exit condition with their first wave",
    "prompts_cut": "prompts that the budget refused another response",
    "zero_signal_groups": "share of kept groups whose labels are all equal",
    "zero_signal_groups_if_grpo": "the same share of the batch if the first n responses had been the group",
    "expected_signal_groups": "with candidate_prompts: share of the chosen prompts' groups of n that the estimator "
    "expects to have both labels; what came of it is 1 - zero_signal_groups_if_grpo",
    "pool_size_mean": "responses per pool, mean",
    "pool_size_p95": "responses per pool, 95th percentile",
    "pool_size_max": "responses per pool, maximum",
    "pass_rate": "mean over prompts of the first wave's pass rate, or by path counts for prefixes: the i.i.d. reward, "
    "comparable with GRPO's (the pool's own share overstates it). Unbiased, but for prefixes that tokens, seconds or "
    "greedy cut",
    "pool_reward": "mean over prompts of the pool's real-valued mean reward",
    "batch_reward": "mean reward of the kept rows",
    "response_length_pools": "tokens per response, mean over pools' responses",
    "response_length_kept": "tokens per response, mean over kept rows",
    "weight_mean": "gradient weight w_x per prompt, mean",
    "weight_max": "gradient weight w_x per prompt, maximum",
    "live_rows": "kept rows with a non-zero advantage",
    "placeholder_rows": "rows that only keep the batch shape (zero loss weight)",
    "groups_replaced": "groups without signal that were replaced by other prompts",
    "budget_used_samples": "samples_drawn / max_samples",
    "budget_used_tokens": "tokens_drawn / max_tokens",
    "budget_used_seconds": "sampling_seconds / max_seconds",
    "budget_bound": "what refused most prompts: " + ", ".join(f"{i} {name}" for i, name in enumerate(BOUNDS)),
    "tokens_overshoot": "tokens beyond max_tokens (what was in flight)",
    "seconds_overshoot": "seconds beyond max_seconds (what was in flight)",
    "sampling_seconds": "duration of the sampling phase in the source's clock",
    "engine_utilisation": "mean responses in flight / their peak",
    "idle_label_bias": "idle mode: estimated excess pass rate of extra responses because long waves are dropped",
}

EIGHTHS = 8
RATE_BINS = ("0", *(f"{i}/{EIGHTHS}" for i in range(1, EIGHTHS)), "1")
"""Bins of pass rates: exactly 0, the nearest of seven eighths for what lies between, exactly 1. Eighths because waves
are powers of two: a first wave of 8 fills every bin, one of 4 every other one."""

LISTS: Mapping[str, str] = {
    "pass_rate_histogram": "prompts per bin of the rates whose mean is pass_rate: " + ", ".join(RATE_BINS),
}
"""Metrics with several values per step. They go into step records, not to loggers of scalars."""

ROUNDING = 1e-9


def rate_histogram(rate_P: FloatArray) -> list[int]:
    """Prompts in each of RATE_BINS."""
    inner_P = np.clip(np.floor(rate_P * EIGHTHS + 0.5), 1, EIGHTHS - 1)
    bin_P = np.where(rate_P <= ROUNDING, 0, np.where(rate_P >= 1.0 - ROUNDING, EIGHTHS, inner_P)).astype(np.int64)
    return [int(count) for count in np.bincount(bin_P, minlength=len(RATE_BINS))]


def named(values: Mapping[str, float]) -> dict[str, float]:
    """Prefix the metrics of a step; raises InvariantError for a name that the table does not know."""
    _check(values, TABLE)
    return {PREFIX + name: float(value) for name, value in values.items()}


def listed(values: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """As `named`, for the metrics of LISTS."""
    _check(values, LISTS)
    return {PREFIX + name: list(value) for name, value in values.items()}


def _check(values: Mapping[str, object], table: Mapping[str, str]) -> None:
    unknown = sorted(set(values) - set(table))
    if unknown:
        raise InvariantError(f"metrics that are not in the table: {', '.join(unknown)}")
