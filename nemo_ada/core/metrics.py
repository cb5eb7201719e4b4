"""The table of metrics (algorithm.md section 7). `add_prefix` and `add_prefix_to_lists` refuse every other name.

Names are logged with the prefix `ada/`. In NeMo-RL they appear as `train/ada/...`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.budget import BOUNDS, CAPS, SECONDS, TOKENS
from nemo_ada.errors import InvariantError

PREFIX = "ada/"

TABLE: Mapping[str, str] = {
    "samples_drawn": "responses issued, including dropped and failed ones",
    "samples_in_pools": "responses in pools",
    "samples_dropped": "responses issued and then left out of the pools by the stopping rule",
    "samples_failed": "responses without a label (engine or verifier failure, or masked by the environment)",
    "tokens_drawn": "tokens generated, including those of dropped and failed responses",
    "tokens_in_pools": "tokens of the responses in pools",
    "waves_mean": "waves per prompt, mean",
    "waves_max": "waves per prompt, maximum",
    "prompts_drawn": "prompts with responses; more than the batch when groups are replaced",
    "prompts_resolved": "prompts whose pool meets the exit condition",
    "prompts_unresolved": "prompts whose pool does not meet the exit condition",
    "missing_positive": "unresolved prompts that lack correct responses",
    "missing_negative": "unresolved prompts that lack incorrect responses",
    "resolved_in_first_wave": "prompts that met the exit condition with their first wave",
    "prompts_cut": "unresolved prompts to which the budget refused more responses",
    "zero_signal_groups": "share of kept groups with equal rewards; not with `baseline: shrunk`, which such a group "
    "learns from",
    "zero_signal_groups_if_grpo": "the same share if each group were the first n responses of its pool",
    "explained_variance": "with an estimator: 1 - mean squared error of the predicted pass rates against the labels of "
    "first waves / the variance of these labels. 0 is what their mean gives",
    "pool_size_mean": "responses per pool, mean",
    "pool_size_p95": "responses per pool, 95th percentile",
    "pool_size_max": "responses per pool, maximum",
    "pass_rate": "mean pass rate over prompts, comparable with GRPO's reward: the first wave's share of correct "
    "responses. Their number does not depend on labels, so it is unbiased",
    "pool_reward": "mean reward of a pool, averaged over prompts",
    "truncated": "share of the responses in pools that have as many tokens as the longest response may have",
    "no_box": "CPU, with `task.verifier: math`: share of the judged responses without a box",
    "batch_reward": "mean reward of the kept rows",
    "response_length_pools": "tokens per response in pools, mean",
    "response_length_kept": "tokens per response in kept rows, mean",
    "weight_mean": "gradient weight w_x per prompt, mean",
    "weight_max": "gradient weight w_x per prompt, maximum",
    "live_rows": "kept rows with a non-zero advantage",
    "placeholder_rows": "rows without loss weight that keep the batch shape",
    "gradient_cosine": "with logger.gradient_cosine (CPU): cosine between the gradients of two halves of an update's "
    "prompts, mean over the updates. 1 means that they agree, 0 that noise decides",
    "gradient_signal": "with logger.gradient_cosine (CPU): squared norm of the expected gradient per response token, "
    "estimated from the two halves, mean over the updates. One step's value may be negative",
    "gradient_noise": "with logger.gradient_cosine (CPU): variance that one response token adds to the summed "
    "gradient, estimated from the two halves, mean over the updates. Over gradient_signal: the noise scale in tokens",
    "effective_updates": "with logger.gradient_cosine (CPU): (sum of the updates' gradient norms)^2 / sum of their "
    "squares",
    "groups_replaced": "zero-signal groups replaced by reserve prompts",
    **{f"budget_used_{cap.unit}": f"{cap.metric} / {cap.name}" for cap in CAPS},
    "budget_bound": "what stopped most prompts: " + ", ".join(f"{code} {name}" for name, code in BOUNDS.items()),
    "tokens_overshoot": f"tokens beyond {TOKENS.name}, of responses that were in flight",
    "seconds_overshoot": f"seconds beyond {SECONDS.name}, until responses in flight had ended",
    "sampling_seconds": "duration of the sampling phase",
    "engine_utilisation": "mean number of responses in flight / its peak",
    "groups_given_up": "asynchronous: prompts given up after max_group_seconds, with the complete waves that they had",
    "groups_redrawn": "asynchronous: prompts that were drawn again, because a stopped run had not finished them",
    "pools_mixed_versions": "asynchronous: share of pools with responses of more than one version of the weights",
    "response_age": "asynchronous: steps between the weights that a response was started with and its update, mean",
}

EIGHTHS = 8
RATE_BINS = ("0", *(f"{i}/{EIGHTHS}" for i in range(1, EIGHTHS)), "1")
"""Bins of pass rates. Two bins are for exactly 0 and exactly 1. The others are eighths, and a rate between 0 and 1 is
in the nearest one. A first wave of 8 can fill every bin, and a first wave of 4 every other bin."""

TENTHS = 10
LISTS: Mapping[str, str] = {
    "pass_rate_histogram": "prompts per bin of their pass rates: " + ", ".join(RATE_BINS),
    "predicted_responses": "with an estimator: first-wave responses per tenth of the predicted pass rate",
    "predicted_correct": "correct ones among predicted_responses",
}
"""Metrics with several values per step. Step records have them. Loggers of scalars do not."""

ROUNDING = 1e-9


def count_rates(rate_P: FloatArray) -> list[int]:
    """Count the prompts in each of RATE_BINS."""
    inner_P = np.clip(np.floor(rate_P * EIGHTHS + 0.5), 1, EIGHTHS - 1)
    bin_P = np.where(rate_P <= ROUNDING, 0, np.where(rate_P >= 1.0 - ROUNDING, EIGHTHS, inner_P)).astype(np.int64)
    return [int(count) for count in np.bincount(bin_P, minlength=len(RATE_BINS))]


def count_by_prediction(predicted_P: FloatArray, pos_P: IntArray, total_P: IntArray) -> dict[str, list[int]]:
    """Count responses and correct responses by tenths of the predicted pass rate.

    Args:
        predicted_P: predicted pass rate of each prompt.
        pos_P: correct responses of each prompt.
        total_P: responses of each prompt.
    """
    bin_P = np.minimum((predicted_P * TENTHS).astype(np.int64), TENTHS - 1)
    counts = {"predicted_responses": total_P, "predicted_correct": pos_P}
    return {name: np.bincount(bin_P, count_P, TENTHS).astype(np.int64).tolist() for name, count_P in counts.items()}


def compute_explained_variance(predicted_P: FloatArray, pos_P: IntArray, total_P: IntArray) -> float | None:
    """Compute the share of the labels' variance that the predictions explain. None when all labels are equal.

    Args:
        predicted_P: predicted pass rate of each prompt.
        pos_P: correct responses of each prompt.
        total_P: responses of each prompt.
    """
    pos, total = float(pos_P.sum()), float(total_P.sum())
    if not 0.0 < pos < total:
        return None
    error = float((pos_P * (1.0 - predicted_P) ** 2 + (total_P - pos_P) * predicted_P**2).sum())
    return 1.0 - error / (pos * (total - pos) / total)


def add_prefix(values: Mapping[str, float]) -> dict[str, float]:
    """Add the prefix to the metrics of a step. Raises InvariantError for a name that is not in the table."""
    _check_names(values, TABLE)
    return {PREFIX + name: float(value) for name, value in values.items()}


def add_prefix_to_lists(values: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Add the prefix to metrics of LISTS. Raises InvariantError for a name that is not in LISTS."""
    _check_names(values, LISTS)
    return {PREFIX + name: list(value) for name, value in values.items()}


def _check_names(values: Mapping[str, object], table: Mapping[str, str]) -> None:
    unknown = sorted(set(values) - set(table))
    if unknown:
        raise InvariantError(f"metrics that are not in the table: {', '.join(unknown)}")
