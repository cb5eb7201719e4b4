"""Estimates of a prompt's pass rate p from its pool. P prompts.

`estimate_from_pool` is unbiased for pools whose size does not depend on their labels: first waves, fixed exits, the
estimation variant, GRPO. A pool that labels end overstates p.

`estimate_without_own` is for a response instead of a prompt: the posterior mean from the prompt's other responses. It
is independent of the response's own label where the size of the pool is. So a baseline that uses it does not bend the
expected update. N responses of all pools.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray


def estimate_from_pool(pos_P: IntArray | FloatArray, total_P: IntArray) -> FloatArray:
    """Compute n_pos / N. It is 0 for an empty pool."""
    return np.asarray(pos_P / np.maximum(total_P, 1))


def estimate_without_own(
    label_N: FloatArray, prompt_N: IntArray, prior_P: tuple[FloatArray, FloatArray], chosen: IntArray | None = None
) -> FloatArray:
    """Compute for each response the posterior mean of its prompt's pass rate without its own label.

    Args:
        label_N: 1.0 for a correct response, 0.0 for an incorrect one.
        prompt_N: position of the response's prompt.
        prior_P: (a, b) of each prompt's Beta prior.
        chosen: positions of the responses to compute. None computes all.
    """
    a_P, b_P = prior_P
    sum_P = np.bincount(prompt_N, label_N, len(a_P))
    total_P = np.bincount(prompt_N, minlength=len(a_P))
    prompt_R, label_R = (prompt_N, label_N) if chosen is None else (prompt_N[chosen], label_N[chosen])
    others_R = sum_P[prompt_R] - label_R
    mass_R = total_P[prompt_R] - 1 + a_P[prompt_R] + b_P[prompt_R]
    return np.asarray((others_R + a_P[prompt_R]) / mass_R)
