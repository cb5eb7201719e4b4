"""Who is served first when the budget cannot serve all (algorithm.md section 6, `policy: uniform | greedy`)."""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray


def exit_probability(
    alpha_P: FloatArray, beta_P: FloatArray, short_pos_P: IntArray, short_neg_P: IntArray, size_P: IntArray
) -> FloatArray:
    """Posterior probability [P] that one more wave meets the exit condition.

    The pass rate is Beta(alpha, beta), so the wave's number of correct responses is beta-binomial; the exit is met when
    it lies in [short_pos, size - short_neg]. The terms follow by the ratio of neighbours, without special functions.
    """
    total_P = np.zeros(len(alpha_P))
    if len(alpha_P) == 0:
        return total_P
    largest = int(size_P.max())
    i = np.arange(largest)[:, None]
    within = i < size_P[None, :]
    term_P = np.where(within, (beta_P + i) / (alpha_P + beta_P + i), 1.0).prod(axis=0)
    for k in range(largest + 1):
        wanted = (k >= short_pos_P) & (k <= size_P - short_neg_P)
        total_P += np.where(wanted, term_P, 0.0)
        more = k < size_P
        left_P = np.where(more, size_P - k, 1)
        ratio_P = left_P * (alpha_P + k) / ((k + 1) * (beta_P + left_P - 1))
        term_P = np.where(more, term_P * ratio_P, 0.0)
    return np.minimum(total_P, 1.0)
