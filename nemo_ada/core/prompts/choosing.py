"""Which of a step's candidate prompts get responses (ours; the paper draws for every prompt of the batch).

A zero-signal group teaches nothing. So a prompt is worth the probability that its group has both labels. P prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray


def mixed_probability(a_P: FloatArray, b_P: FloatArray, n: int) -> FloatArray:
    """P(n responses have both labels), for pass rates from Beta(a, b): 1 - E[p^n] - E[(1 - p)^n]."""
    drawn_N = np.arange(n)
    total_PN = (a_P + b_P)[:, None] + drawn_N
    all_positive_P = np.prod((a_P[:, None] + drawn_N) / total_PN, axis=1)
    all_negative_P = np.prod((b_P[:, None] + drawn_N) / total_PN, axis=1)
    return np.asarray(1.0 - all_positive_P - all_negative_P)


def signal_scale(a_P: FloatArray, b_P: FloatArray) -> FloatArray:
    """sqrt(p (1-p)) + 0.05 at the predicted pass rate: SPO's weight of a prompt (arXiv 2509.13232)."""
    rate_P = a_P / (a_P + b_P)
    return np.asarray(np.sqrt(rate_P * (1.0 - rate_P)) + 0.05)


def weighted_keys(weight_P: FloatArray, uniform_P: FloatArray) -> FloatArray:
    """Keys whose `count` largest are a draw without replacement by weight (Efraimidis and Spirakis, 2006)."""
    return np.asarray(np.log1p(-uniform_P) / weight_P)


def best_candidates(prompt_ids: Sequence[str], worth_P: FloatArray, tie_P: FloatArray, count: int) -> IntArray:
    """Positions of the `count` prompts of highest worth, best first; `tie_P` orders equal ones.

    Candidates may span two epochs. A second occurrence of a prompt comes after all other prompts.
    """
    first_P = np.zeros(len(prompt_ids), np.bool_)
    first_P[np.unique(np.asarray(prompt_ids), return_index=True)[1]] = True
    return np.asarray(np.lexsort((tie_P, -worth_P, ~first_P))[:count], np.int64)
