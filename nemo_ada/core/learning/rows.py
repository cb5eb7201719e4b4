"""From the pools of a step to its training rows: selection, weights, advantages (algorithm.md sections 2 to 4).

P prompts of the batch, N responses of all pools, R training rows. R is always n * P: n rows per prompt, or in the
estimation variant all N responses, which the allocation makes n * P. Placeholder rows of weight 0 fill what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.learning.advantage import Normalize, Weighting, advantages
from nemo_ada.core.learning.objectives import Linear, Objective, gradient_weight
from nemo_ada.core.learning.selection import select_step
from nemo_ada.core.learning.thinning import thin
from nemo_ada.core.sampling.pass_rate import PassRateKind, estimate, without_own
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.result import SamplingResult


@dataclass(frozen=True)
class RowSettings:
    """How pools become rows.

    group: n. stop: for the `haldane` estimate. keep_all: train on every response (Est). exponent: the part of the
    weight that the allocation realised, p^-exponent (Est with `reference` weighting). keep_share: see thinning.py.
    """

    group: int
    stop: StopRule
    keep_all: bool = False
    weighting: Weighting = "reference"
    objective: Objective = field(default_factory=Linear)
    exponent: float | None = None
    normalize: Normalize = "none"
    shrunk_baseline: bool = False
    keep_share: float = 1.0
    pass_rate: PassRateKind = "pool"
    min_pass_rate: float = 0.01
    max_weight: float = 100.0

    @property
    def own_label_left_out(self) -> bool:
        """Whether a row's weight comes from the other responses of its pool and the prior, without its own label."""
        fixed = self.shrunk_baseline or (self.keep_all and self.weighting == "objective")
        return fixed and self.pass_rate == "shrunk"


@dataclass(frozen=True, slots=True)
class StepRows:
    """Training rows, grouped by prompt in batch order.

    prompt_R: position of the row's prompt in the step. pool_R: position in the result's N arrays. response_id_R: under
    it the source holds tokens and log-probabilities; -1 where the prompt has no response. weight_R: 1.0, or 0.0 for a
    placeholder row. advantage_R: 0.0 for placeholder rows. metrics: values for metrics.py. equal_labels_teach: whether
    a group with equal labels has a gradient, so that its share says nothing.
    """

    prompt_R: IntArray
    pool_R: IntArray
    response_id_R: IntArray
    weight_R: FloatArray
    advantage_R: FloatArray
    weight_P: FloatArray
    metrics: dict[str, float]
    equal_labels_teach: bool = False

    @property
    def live_R(self) -> BoolArray:
        """Rows with a gradient (as long as the loss has no KL or entropy term)."""
        return np.asarray((self.weight_R > 0) & (self.advantage_R != 0.0))


def build_rows(
    result: SamplingResult,
    settings: RowSettings,
    batch: int,
    *,
    run_seed: int,
    step: int,
    prior_P: tuple[FloatArray, FloatArray] | None,
) -> StepRows:
    """Rows of a batch of `batch` prompts. prior_P: (a, b) of each prompt's Beta prior, needed by `shrunk`."""
    groups = result.group_G
    prompt_R, pool_R, row_weight_R = (
        _all_rows(result, settings.group * batch)
        if settings.keep_all
        else _selected_rows(result, settings.group, run_seed, step)
    )
    rate_P = estimate(
        settings.pass_rate,
        result.pos_P,
        result.size_P,
        first_pos_P=result.first_pos_P,
        first_total_P=result.first_size_P,
        rule=settings.stop,
        prior_P=prior_P,
    )
    weight_P, weight_N = _weights(settings, rate_P), None
    if prior_P is not None and settings.own_label_left_out:
        others_N = without_own(result.positive_N.astype(np.float64), result.prompt_N, prior_P)
        weight_N = _weights(settings, others_N)
        mean_P = np.bincount(result.prompt_N, weight_N, len(weight_P)) / np.maximum(result.size_P, 1)
        weight_P = np.where(result.size_P > 0, mean_P, weight_P)
    advantage_R = advantages(
        result.reward_N,
        result.positive_N,
        result.prompt_N,
        pool_R,
        row_weight_R,
        weight_P=weight_P,
        weight_N=weight_N,
        rate_P=rate_P,
        weighting=settings.weighting,
        normalize=settings.normalize,
        prior_P=prior_P if settings.shrunk_baseline else None,
        keep_all=settings.keep_all,
    )
    full_R = advantage_R
    advantage_R = thin(full_R, settings.keep_share, run_seed=run_seed, step=step)
    real = row_weight_R > 0
    kept = pool_R[real]
    metrics = {
        "batch_reward": float(result.reward_N[kept].mean()) if len(kept) else 0.0,
        "response_length_kept": float(result.tokens_N[kept].mean()) if len(kept) else 0.0,
        "weight_mean": float(weight_P[groups].mean()),
        "weight_max": float(weight_P[groups].max()),
        "live_rows": int((real & (advantage_R != 0.0)).sum()),
        "thinned_rows": int(((full_R != 0.0) & (advantage_R == 0.0)).sum()),
        "placeholder_rows": int((~real).sum()),
    }
    response_id_R = np.full(len(pool_R), -1, np.int64)
    response_id_R[pool_R >= 0] = result.response_id_N[pool_R[pool_R >= 0]]
    teach = settings.shrunk_baseline
    return StepRows(prompt_R, pool_R, response_id_R, row_weight_R, advantage_R, weight_P, metrics, teach)


def _weights(settings: RowSettings, rate: FloatArray) -> FloatArray:
    """w_grad at these pass rates, of prompts or of responses."""
    return gradient_weight(
        settings.objective,
        rate,
        exponent=settings.exponent,
        min_pass_rate=settings.min_pass_rate,
        max_weight=settings.max_weight,
    )


def _selected_rows(
    result: SamplingResult, group: int, run_seed: int, step: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """(prompt_R, pool_R, weight_R) of the kept groups, `group` rows each."""
    groups = result.group_G
    row_PR, weight_PR = select_step(
        result.prompt_N, result.index_N, result.positive_N, result.uid_P, group, run_seed=run_seed, step=step
    )
    return np.repeat(groups, group), row_PR[groups].ravel(), weight_PR[groups].ravel()


def _all_rows(result: SamplingResult, rows: int) -> tuple[IntArray, IntArray, FloatArray]:
    """(prompt_R, pool_R, weight_R) of all responses, filled up to `rows` with placeholders."""
    total = len(result.response_id_N)
    if total == 0:
        return np.zeros(rows, np.int64), np.full(rows, -1, np.int64), np.zeros(rows)
    pool_R = np.resize(np.arange(total), rows)
    return result.prompt_N[pool_R], pool_R, (np.arange(rows) < total).astype(np.float64)
