"""Estimates of a prompt's pass rate p from its pool. P prompts.

| estimate | | unbiased for |
|---|---|---|
| pool | n_pos / N | pools whose size does not depend on their labels: fixed(n), Est, GRPO |
| haldane | paths from (1, 0) / paths from (0, 0) to the pool's counts | every exit, wave plan and cap; see below |

`haldane` is the mean of the first response's label, given the pool's counts. All label orders with the same counts are
equally probable. So it is a ratio of path counts without p in it, and its mean is E[r_1] = p. Special cases (N
responses, stop at the exact response):
  positive(K), ended by the K-th success: C(N-2, K-2) / C(N-1, K-1) = (K-1)/(N-1) (Haldane, 1945).
  balanced(K+, K-), ended by the K+-th success: (K+-1)/(N-1). Ended by the K--th failure: 1 - (K--1)/(N-1). With exactly
  (K+, K-) either label may have come last and every order survives: K+/(K+ + K-).
  ended by the cap without the exit, or fixed(n): every order survives: n_pos / N.
A pool that another cap ended before its exit is treated as if its size were N_max. This is right when that cap did not
look at the prompt's labels. A cap that cuts at random does not look. A cap on seconds does, when wrong answers are
longer. The metric `pass_rate` of `issue_order` uses it.

`without_own` is for a response instead of a prompt: the posterior mean from the prompt's other responses. It is
independent of the response's own label where the size of the pool is. So a baseline that uses it does not bend the
expected update. N responses of all pools.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.paths import StopRule, path_counts


def pool(pos_P: IntArray | FloatArray, total_P: IntArray) -> FloatArray:
    """Compute n_pos / N. It is 0 for an empty pool."""
    return np.asarray(pos_P / np.maximum(total_P, 1))


def haldane(pos_P: IntArray, total_P: IntArray, rule: StopRule) -> FloatArray:
    """Compute the path-count estimate of p for pools that `rule` ended.

    If no path of the rule leads to a pool, failures have shortened one of its waves. It gets the `pool` estimate.

    Args:
        pos_P: correct responses in each pool.
        total_P: responses in each pool.
        rule: the rule that ended the pools.
    """
    all_NK, from_pos_NK = path_counts(rule)
    total_P = np.asarray(total_P)
    all_P = all_NK[total_P, pos_P]
    reached_P = np.isfinite(all_P) & (total_P > 0)
    ratio_P = np.exp(from_pos_NK[total_P, pos_P] - np.where(reached_P, all_P, 0.0))
    return np.where(reached_P, ratio_P, pool(pos_P, total_P))


def without_own(
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
