"""Which responses of a pool become training rows (algorithm.md section 2, "Downsample to exactly n rows").

n // 2 rows come from the correct responses, n - n // 2 from the incorrect ones. When one side is too short, the other
side fills the group. Each side is drawn uniformly without replacement. (The authors take the first of the list,
which is in the order of issue: they prefer responses of the first waves.) A pool smaller than n repeats rows with
weight 0, so the batch shape never changes. P prompts, N responses of all pools, R = n rows per prompt.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.seeds import SeedStream, bits64


def kept_counts(pos_P: IntArray, neg_P: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """How many (correct, incorrect) responses of each pool are kept: min(n, pool) in all."""
    want_pos, want_neg = n // 2, n - n // 2
    keep_pos_P = np.minimum(pos_P, want_pos + np.maximum(want_neg - neg_P, 0))
    keep_neg_P = np.minimum(neg_P, want_neg + np.maximum(want_pos - pos_P, 0))
    return keep_pos_P, keep_neg_P


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
    """(row_PR, weight_PR) of all prompts of a step, from flat arrays in any order.

    prompt_N: position of the response's prompt in the step (0..P-1). index_N: issue order within the prompt. uid_P: one
    int64 per prompt occurrence. The sort key of a response is a hash of (run seed, step, uid, index), and the smallest
    keys of each side are kept. So the order of the arrays and of the prompts does not decide which are selected.

    row_PR: positions in the flat arrays, in issue order within a prompt, repeats last; -1 where all responses of a
    prompt failed. weight_PR: 1.0 for a row, 0.0 for a repeat or a -1.
    """
    num_prompts = len(uid_P)
    group_N = prompt_N * 2 + ~positive_N
    group_bits = (2 * num_prompts).bit_length()
    key_N = bits64(run_seed, step, uid_P[prompt_N], index_N, SeedStream.SELECTION) >> np.uint64(group_bits)
    key_N |= group_N.astype(np.uint64) << np.uint64(64 - group_bits)
    order_N = np.argsort(key_N, kind="stable")

    count_P2 = np.bincount(group_N, minlength=2 * num_prompts).reshape(num_prompts, 2)
    start_P2 = (np.cumsum(count_P2.ravel()) - count_P2.ravel()).reshape(num_prompts, 2)
    keep_pos_P, keep_neg_P = kept_counts(count_P2[:, 0], count_P2[:, 1], n)
    kept_P1 = (keep_pos_P + keep_neg_P)[:, None]

    column_1R = np.arange(n)[None, :]
    slot_PR = column_1R % np.maximum(kept_P1, 1)
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
