"""From the pools of a step to its training rows (algorithm.md sections 2 to 4).

There are two parts. `select` chooses which responses become rows. It needs the pool of one prompt only, and its choice
depends on the seed alone. So a group can select its rows when its last response has ended. `weigh` computes the
advantages of the selected rows of a whole step.

Selection: n // 2 rows come from the correct responses and n - n // 2 from the incorrect ones. When one side is too
short, the other side fills the group. Each side is drawn uniformly without replacement. (The authors take the first
responses of the list, which is in the order of issue. So they prefer responses of the first waves.) With the exit rule
`spread`, the rows are the n // 2 highest and the n - n // 2 lowest rewards of the pool. A pool smaller than n repeats
rows with weight 0, so the shape of the batch never changes.

P prompts, N responses of all pools, R training rows. R is always n * P: n rows per prompt, or in the estimation variant
all N responses, which the allocation makes n * P. Placeholder rows of weight 0 fill what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.learning.advantage import compute_advantages
from nemo_ada.core.learning.factor import compute_objective_weights, count_kept
from nemo_ada.core.learning.objectives import compute_gradient_weight
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.pass_rate import estimate_from_pool
from nemo_ada.core.sampling.result import SamplingResult, compute_ranks
from nemo_ada.core.seeds import SeedStream, hash_bits
from nemo_ada.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Selection:
    """Which responses are the training rows, grouped by prompt in batch order.

    Attributes:
        prompt_R: position of the row's prompt in the result.
        pool_R: position of the row's response in the result's N arrays, -1 where the prompt has no response.
        weight_R: 1.0, or 0.0 for a placeholder row.
    """

    prompt_R: IntArray
    pool_R: IntArray
    weight_R: FloatArray

    @classmethod
    def of_groups(cls, sizes: Sequence[int], rank_R: IntArray, weight_R: FloatArray) -> Selection:
        """Join the rows of groups that were selected one by one. Each group has as many rows as every other.

        Args:
            sizes: responses in the pool of each group.
            rank_R: place of each row's response in its group's pool, -1 for none.
            weight_R: 1.0, or 0.0 for a placeholder row.

        Raises:
            InvariantError: a row names a response that its pool does not have.
        """
        size_P = np.asarray(sizes, np.int64)
        prompt_R = np.repeat(np.arange(len(size_P)), len(rank_R) // max(len(size_P), 1))
        if len(prompt_R) != len(rank_R) or (rank_R < -1).any() or (rank_R >= size_P[prompt_R]).any():
            raise InvariantError("the rows of the batch name responses that their pools do not have")
        start_P = np.cumsum(size_P) - size_P
        return cls(prompt_R, np.where(rank_R >= 0, start_P[prompt_R] + rank_R, -1), weight_R)


@dataclass(frozen=True, slots=True)
class StepRows:
    """Training rows, grouped by prompt in batch order.

    Attributes:
        prompt_R: position of the row's prompt in the step.
        pool_R: position of the row's response in the result's N arrays, -1 where the prompt has no response.
        response_id_R: id under which the source holds tokens and log-probabilities, -1 where there is no response.
        weight_R: 1.0, or 0.0 for a placeholder row.
        advantage_R: the advantage, 0.0 for placeholder rows.
        weight_P: gradient weight w_x of each prompt.
        metrics: values by name, see core/metrics.py.
        equal_labels_teach: whether a group with equal labels has a gradient. Then the share of such groups means
            nothing.
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
        """Whether each row has a gradient. With a KL or entropy term in the loss, other rows may have one, too."""
        return np.asarray((self.weight_R > 0) & (self.advantage_R != 0.0))


def select(result: SamplingResult, settings: RowSettings, batch: int, *, run_seed: int, step: int) -> Selection:
    """Choose the training rows.

    Args:
        result: the pools.
        settings: how pools become rows.
        batch: number of groups.
        run_seed: seed of the run.
        step: number of the step.
    """
    if settings.keep_all:
        return _take_all(result, settings.group * batch)
    groups, group = result.group_G, settings.group
    pool_S, upper_S = np.arange(len(result.prompt_N)), result.positive_N
    if "rewards" in settings.stop.exit.reads:
        pool_S, upper_S = _find_extremes(result, group, run_seed=run_seed, step=step)
    row_PR, weight_PR = select_step(
        result.prompt_N[pool_S], result.index_N[pool_S], upper_S, result.uid_P, group, run_seed=run_seed, step=step
    )
    row_PR = np.where(row_PR >= 0, np.append(pool_S, -1)[row_PR], -1)
    return Selection(np.repeat(groups, group), row_PR[groups].ravel(), weight_PR[groups].ravel())


def weigh(
    result: SamplingResult,
    selection: Selection,
    settings: RowSettings,
    *,
    prior_P: tuple[FloatArray, FloatArray] | None,
) -> StepRows:
    """Compute the advantages of the selected rows.

    Args:
        result: the pools of the step.
        selection: the rows, from `select`.
        settings: how advantages are computed.
        prior_P: (a, b) of each prompt's Beta prior, for `baseline: shrunk`.
    """
    groups, pool_R, row_weight_R = result.group_G, selection.pool_R, selection.weight_R
    weight_P = _compute_weights(settings, result)
    advantage_R = compute_advantages(
        result, pool_R, row_weight_R, settings, weight_N=weight_P[result.prompt_N], prior_P=prior_P
    )
    real = row_weight_R > 0
    kept = pool_R[real]
    metrics = {
        "batch_reward": float(result.reward_N[kept].mean()) if len(kept) else 0.0,
        "response_length_kept": float(result.tokens_N[kept].mean()) if len(kept) else 0.0,
        "weight_mean": float(weight_P[groups].mean()),
        "weight_max": float(weight_P[groups].max()),
        "live_rows": int((real & (advantage_R != 0.0)).sum()),
        "placeholder_rows": int((~real).sum()),
    }
    response_id_R = np.full(len(pool_R), -1, np.int64)
    response_id_R[pool_R >= 0] = result.response_id_N[pool_R[pool_R >= 0]]
    teach = settings.shrunk_baseline or "rewards" in settings.stop.exit.reads
    return StepRows(selection.prompt_R, pool_R, response_id_R, row_weight_R, advantage_R, weight_P, metrics, teach)


def _compute_weights(settings: RowSettings, result: SamplingResult) -> FloatArray:
    """Compute the weight of each prompt."""
    advantage = settings.advantage
    if advantage.weighting == "objective":
        return compute_objective_weights(settings, result.pos_P, result.size_P)
    return compute_gradient_weight(
        advantage.objective,
        estimate_from_pool(result.pos_P, result.size_P),
        exponent=settings.exponent,
        min_pass_rate=advantage.min_pass_rate,
        max_weight=advantage.max_weight,
    )


def _find_extremes(result: SamplingResult, n: int, *, run_seed: int, step: int) -> tuple[IntArray, BoolArray]:
    """Find the n // 2 highest and the n - n // 2 lowest rewards of each pool. Chance decides between equal rewards.

    With 0/1 rewards these are as many correct and incorrect responses as `count_kept` keeps.

    Returns:
        Positions of these responses in the pools, and whether each is one of the highest. A pool below n keeps all.
    """
    prompt_N, size_P = result.prompt_N, result.size_P
    key_N = hash_bits(run_seed, step, result.uid_P[prompt_N], result.index_N, SeedStream.SELECTION)
    order_N = np.lexsort((key_N, -result.reward_N, prompt_N))
    rank_N = np.empty_like(prompt_N)
    rank_N[order_N] = compute_ranks(prompt_N[order_N], size_P)
    upper_N = rank_N < n // 2
    pool_S = np.flatnonzero(upper_N | (rank_N >= size_P[prompt_N] - (n - n // 2)))
    return pool_S, upper_N[pool_S]


def _take_all(result: SamplingResult, rows: int) -> Selection:
    """Take all responses, filled up to `rows` with placeholders."""
    total = len(result.response_id_N)
    if total == 0:
        return Selection(np.zeros(rows, np.int64), np.full(rows, -1, np.int64), np.zeros(rows))
    pool_R = np.resize(np.arange(total), rows)
    return Selection(result.prompt_N[pool_R], pool_R, (np.arange(rows) < total).astype(np.float64))


def select_step(
    prompt_N: IntArray,
    index_N: IntArray,
    positive_N: BoolArray,
    uid_P: IntArray,
    n: int,
    *,
    run_seed: int,
    step: int,
) -> tuple[IntArray, FloatArray]:
    """Choose n rows for each prompt of a step, from flat arrays in any order.

    The sort key of a response is a hash of (run seed, step, uid, index), and the smallest keys of each side are kept.
    So the order of the arrays and of the prompts does not decide which responses are selected.

    Args:
        prompt_N: position of the response's prompt in the step (0..P-1).
        index_N: issue order within the prompt.
        positive_N: whether the response is correct.
        uid_P: one int64 per prompt occurrence.
        n: rows per prompt.
        run_seed: seed of the run.
        step: number of the step.

    Returns:
        row_PR and weight_PR. row_PR has positions in the flat arrays, in issue order within a prompt, repeats last. It
        is -1 where all responses of a prompt failed. weight_PR is 1.0 for a row, and 0.0 for a repeat or a -1.
    """
    # One sort of one key: its high bits hold the side of the prompt, correct ones first, and the others chance.
    num_prompts = len(uid_P)
    group_N = prompt_N * 2 + ~positive_N
    group_bits = (2 * num_prompts).bit_length()
    key_N = hash_bits(run_seed, step, uid_P[prompt_N], index_N, SeedStream.SELECTION) >> np.uint64(group_bits)
    key_N |= group_N.astype(np.uint64) << np.uint64(64 - group_bits)
    order_N = np.argsort(key_N, kind="stable")

    count_P2 = np.bincount(group_N, minlength=2 * num_prompts).reshape(num_prompts, 2)
    start_P2 = (np.cumsum(count_P2.ravel()) - count_P2.ravel()).reshape(num_prompts, 2)
    keep_pos_P, keep_neg_P = count_kept(count_P2[:, 0], count_P2[:, 1], n)
    kept_P1 = (keep_pos_P + keep_neg_P)[:, None]

    column_1R = np.arange(n)[None, :]
    slot_PR = column_1R % np.maximum(kept_P1, 1)  # a pool that is too small repeats its rows, which get weight 0
    from_pos_PR = slot_PR < keep_pos_P[:, None]
    sorted_PR = np.where(from_pos_PR, start_P2[:, :1] + slot_PR, start_P2[:, 1:] + slot_PR - keep_pos_P[:, None])
    empty_P1 = kept_P1 == 0
    if len(order_N) == 0:
        return np.full((num_prompts, n), -1, np.int64), np.zeros((num_prompts, n))
    row_PR = order_N[np.where(empty_P1, 0, sorted_PR)]
    real_PR = column_1R < kept_P1
    in_issue_order_PR = np.argsort(np.where(real_PR, index_N[row_PR], np.iinfo(np.int64).max), axis=1, kind="stable")
    row_PR = np.take_along_axis(row_PR, in_issue_order_PR, axis=1)
    return np.where(empty_P1, -1, row_PR).astype(np.int64), real_PR.astype(np.float64)
