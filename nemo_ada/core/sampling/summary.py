"""The scalar metrics of a sampling result. There is one implementation for a step and for joined groups."""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.budget import CAPS, Budget
from nemo_ada.core.sampling.result import SamplingResult, find_differing

NO_BUDGET = Budget()


def summarise(result: SamplingResult, budget: Budget = NO_BUDGET) -> dict[str, float]:
    """Compute the metrics of a sampling phase under this budget.

    Returns:
        Values by name; core/metrics.py explains every name.
    """
    return _summarise_prompts(result) | _summarise_responses(result) | _summarise_budget(result, budget)


def mean(value_N: IntArray | FloatArray | BoolArray) -> float:
    """Compute the mean. It is 0.0 without values, as in a step that was stopped before its first response."""
    return float(value_N.mean()) if len(value_N) else 0.0


def _summarise_prompts(result: SamplingResult) -> dict[str, float]:
    size_P, drawn_P = result.size_P, result.drawn_P
    unresolved_P, filled_P = drawn_P & ~result.resolved_P, drawn_P & (size_P > 0)
    reward_P = np.bincount(result.prompt_N, weights=result.reward_N, minlength=len(size_P))
    kept_mixed_G = find_differing(result.prompt_N, result.reward_N, len(size_P))[result.kept_P]
    return {
        "waves_mean": mean(result.waves_P[drawn_P]),
        "waves_max": int(result.waves_P[drawn_P].max(initial=0)),
        "prompts_drawn": int(drawn_P.sum()),
        "prompts_resolved": int(result.resolved_P.sum()),
        "prompts_unresolved": int(unresolved_P.sum()),
        "missing_positive": int(result.lacks_pos_P[unresolved_P].sum()),
        "missing_negative": int(result.lacks_neg_P[unresolved_P].sum()),
        "resolved_in_first_wave": int(result.resolved_first_P.sum()),
        "prompts_cut": int(result.cut_P[unresolved_P].sum()),
        "zero_signal_groups": mean(~kept_mixed_G),
        "zero_signal_groups_if_grpo": mean(~result.mixed_if_grpo_P[drawn_P & ~result.reserve_P]),
        "pool_size_mean": mean(size_P[drawn_P]),
        "pool_size_p95": float(np.percentile(size_P[drawn_P], 95)) if drawn_P.any() else 0.0,
        "pool_size_max": int(size_P[drawn_P].max(initial=0)),
        "pass_rate": mean(result.rate_F),
        "pool_reward": mean(reward_P[filled_P] / size_P[filled_P]),
        "groups_replaced": int((drawn_P & result.reserve_P).sum()),
    }


def _summarise_responses(result: SamplingResult) -> dict[str, float]:
    issued, pooled, failed = int(result.issued_P.sum()), len(result.response_id_N), int(result.failed_P.sum())
    metrics: dict[str, float] = {
        "samples_drawn": issued,
        "samples_in_pools": pooled,
        "samples_failed": failed,
        "samples_dropped": issued - pooled - failed,
        "tokens_drawn": int(result.generated_P.sum()),
        "tokens_in_pools": int(result.tokens_N.sum()),
        "response_length_pools": mean(result.tokens_N),
        "sampling_seconds": result.seconds,
    }
    if result.utilisation is not None:
        metrics["engine_utilisation"] = result.utilisation
    return metrics


def _summarise_budget(result: SamplingResult, budget: Budget) -> dict[str, float]:
    use, bounds, caps = result.use, result.bound_P[result.bound_P > 0], budget.caps()
    metrics: dict[str, float] = {"budget_bound": int(np.bincount(bounds).argmax()) if len(bounds) else 0}
    for cap in CAPS:
        if cap.drains:
            metrics[f"{cap.unit}_overshoot"] = max(0, cap.used(use) - caps.get(cap, np.inf))
    for cap, most in caps.items():
        metrics[f"budget_used_{cap.unit}"] = cap.used(use) / most
    return metrics
