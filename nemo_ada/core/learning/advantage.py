"""Advantages of a step's training rows (algorithm.md section 4).

There are N pool responses, P prompts, R training rows and S = 2 P sides (the incorrect and the correct responses of
each prompt).

What a group of rows does to the policy. Labels (and chance) decide when a pool ends and which rows are kept. Given the
labels, a kept correct row is a fresh draw from the correct responses: E[grad log pi | correct] = grad p / p. The mean
of an incorrect row is -grad p / (1-p). Let the advantages of a prompt's correct rows sum to c+ and those of its
incorrect rows to -c-. Then the expected update is

    grad p * ( E[c+] / p + E[c-] / (1-p) ).                                                                     (*)

`weighting: reference` (the authors'): A = (r - b) w on the rows as they are, b = pool mean. A kept group of h correct
and n-h incorrect rows has c+ = h (1-b) w and c- = (n-h) b w. With h = n/2 and b = p, (*) is n grad p w times
[(1-p)^2 + p^2] / (2 p (1-p)). No objective declares that weight (section 4). On all rows of a pool of fixed size N
(GRPO, Est), (*) is (N-1) grad p w: the row's own reward in b costs one response. `factor.compute_factors` has (*) per
row.

`baseline: shrunk` (ours, with reference weighting): b_i = (S - r_i + a) / (N - 1 + a + b). This is the posterior mean
of p from the prompt's other responses and its Beta(a, b) prior. It does not depend on r_i. So on all rows of a pool of
fixed size, (*) is exactly N grad p w. Its error is the posterior variance, which is below the error p (1-p) / (N-1) of
the others' mean. A group with equal labels keeps a gradient: its labels against the prior. Other rewards of a known
range are allowed: S, a and b then sum rewards as shares of that range, and b_i still does not hold r_i. No objective
but the linear one goes with it: a weight f'(b_i) has the mean E[f'(b_i)], which for f = log was 2.7 / p at p = .05,
because b_i is uncertain.

`weighting: objective`: both sides of a group get the mass n' c, with n' = R/P rows per prompt (of the prompts with
rows) and c from `factor`, which chooses it so that (*) is n' f'(p) grad p for the objective E[f(p)], whatever ended the
pool. With q = K/N of the pool and w = c / (q (1-q)), correct rows share the mass n' q w and incorrect ones n' (1-q) w,
against the baseline q. In Est every response is a row, and a row then has n'/N_x times its reward less the pool's mean,
times w: for f' = 1, w is N_x/(N_x - 1), and (*) is n' grad p for every N_x >= 2.
Real rewards: with m+ and m- the pool's mean rewards of the two sides, a correct row gets n' q w/h (r - (q m+ +
(1-q) m-)) and an incorrect row n' (1-q) w/(n-h) times the same difference.
A pool with one label has no rows for the other side. The mass of that side goes to the rows there are. So 0/1 rewards
give A = 0 (no contrast, as in GRPO), and real rewards give their contrast within the side.

The configuration refuses two combinations: objective weighting with `normalize: std`, which would multiply by a weight
1/sqrt(p (1-p)) that no objective declares; and objective weighting with groups of one row, which hold one side only.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.learning.settings import Normalize, RowSettings
from nemo_ada.core.sampling.pass_rate import estimate_from_pool, estimate_without_own
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.errors import InvariantError

STD_EPSILON = 1e-6
ROUNDING = 1e-9  # relative to the rewards: a smaller difference is rounding of the mean, and the advantage is 0


def compute_advantages(
    result: SamplingResult,
    row: IntArray,
    row_weight: FloatArray,
    settings: RowSettings,
    *,
    weight_N: FloatArray,
    prior_P: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:
    """Compute the advantage of every training row.

    Args:
        result: the pools.
        row: positions in the pools, from `rows.select`.
        row_weight: 0.0 marks a placeholder row, whose advantage is 0.
        settings: how advantages are computed, and whether the rows are all responses of the pools (Est).
        weight_N: weight of each response's prompt (`objectives.compute_gradient_weight` or
            `factor.compute_objective_weights`).
        prior_P: (a, b) of each prompt's Beta prior, for `baseline: shrunk`. Without a prior the baseline is the pool's.

    Returns:
        The advantages, in the shape of `row`.

    Raises:
        UserError: a reward is outside `settings.reward_range` with `baseline: shrunk`.
    """
    reward_N, positive_N, prompt_N = result.reward_N, result.positive_N, result.prompt_N
    prompts, weighting, normalize = len(result.uid_P), settings.advantage.weighting, settings.advantage.normalize
    active_R = (row_weight > 0.0).ravel()
    pool_R = np.where(active_R, row.ravel(), 0)
    if not active_R.any():
        return np.zeros(row.shape)
    if settings.shrunk_baseline and prior_P is not None:
        if weighting != "reference" or normalize == "std":
            raise InvariantError("a shrunk baseline needs reference weighting without std normalisation")
        share_N, (low, high) = settings.share_of_range(reward_N), settings.reward_range
        advantage_R = (share_N[pool_R] - estimate_without_own(share_N, prompt_N, prior_P, pool_R)) * (high - low)
    elif weighting == "reference":
        against = _compare_with_others if settings.advantage.baseline == "leave_one_out" else _compare_with_pool
        advantage_R = against(reward_N, prompt_N, pool_R, prompts, normalize)
    elif normalize != "none":
        raise InvariantError("objective weighting needs normalize=none")
    else:
        advantage_R = _weigh_sides(reward_N, positive_N, prompt_N, pool_R, active_R, prompts)
    live_R = active_R & (np.abs(advantage_R) > ROUNDING * max(1.0, float(np.abs(reward_N).max())))
    weighted_R = np.where(live_R, advantage_R * weight_N[pool_R], 0.0)
    return np.asarray(weighted_R.reshape(row.shape))


def _compare_with_pool(
    reward_N: FloatArray, prompt_N: IntArray, pool_R: IntArray, prompts: int, normalize: Normalize
) -> FloatArray:
    prompt_R = prompt_N[pool_R]
    total_P = np.maximum(np.bincount(prompt_N, minlength=prompts), 1)
    mean_P = np.bincount(prompt_N, reward_N, prompts) / total_P
    advantage_R = reward_N[pool_R] - mean_P[prompt_R]
    if normalize == "std":
        variance_P = np.bincount(prompt_N, (reward_N - mean_P[prompt_N]) ** 2, prompts) / total_P
        advantage_R = advantage_R / (np.sqrt(variance_P)[prompt_R] + STD_EPSILON)
    return np.asarray(advantage_R)


def _compare_with_others(
    reward_N: FloatArray, prompt_N: IntArray, pool_R: IntArray, prompts: int, normalize: Normalize
) -> FloatArray:
    """Advantages against the mean of the prompt's other responses, whose sample standard deviation may divide them.

    As in NeMo-RL's estimator, a row whose others are all equal is not divided, and a single response has no advantage.
    """
    own_R, prompt_R = reward_N[pool_R], prompt_N[pool_R]
    others_R = np.bincount(prompt_N, minlength=prompts)[prompt_R] - 1.0
    count_R = np.maximum(others_R, 1.0)
    mean_R = (np.bincount(prompt_N, reward_N, prompts)[prompt_R] - own_R) / count_R
    advantage_R = np.where(others_R > 0, own_R - mean_R, 0.0)
    if normalize == "std":
        squares_R = (np.bincount(prompt_N, reward_N**2, prompts)[prompt_R] - own_R**2) / count_R
        spread_R = np.where(others_R > 1, (squares_R - mean_R**2) * count_R / np.maximum(count_R - 1, 1.0), 0.0)
        std_R = np.sqrt(np.where(spread_R > ROUNDING * np.maximum(squares_R, ROUNDING), spread_R, 0.0))
        advantage_R = np.where(std_R > 0, advantage_R / (std_R + STD_EPSILON), advantage_R)
    return np.asarray(advantage_R)


def _weigh_sides(
    reward_N: FloatArray,
    positive_N: BoolArray,
    prompt_N: IntArray,
    pool_R: IntArray,
    active_R: BoolArray,
    prompts: int,
) -> FloatArray:
    """Compute the advantages of `weighting: objective` but for the factor w (see the head of this file).

    A correct row's r - (q m+ + (1-q) m-) is the sum of r - m+, which differs within the side, and of (1-q) (m+ - m-),
    the contrast between the sides. Only the first part is left where the group has rows of one side.
    """
    rate_P = estimate_from_pool(np.bincount(prompt_N, positive_N, prompts), np.bincount(prompt_N, minlength=prompts))
    side_N = prompt_N * 2 + positive_N  # even: incorrect, odd: correct
    side_R = side_N[pool_R]
    mean_S = np.bincount(side_N, reward_N, 2 * prompts) / np.maximum(np.bincount(side_N, minlength=2 * prompts), 1)
    kept_S = np.bincount(side_R[active_R], minlength=2 * prompts)
    # A prompt's two sides have the numbers 2 p and 2 p + 1, so `side ^ 1` is the other one.
    both_R = (kept_S[side_R] > 0) & (kept_S[side_R ^ 1] > 0)
    prompt_R, positive_R = side_R // 2, positive_N[pool_R]
    contrast_P = rate_P * (1.0 - rate_P)
    share_R = np.where(both_R, np.where(positive_R, rate_P[prompt_R], 1.0 - rate_P[prompt_R]), 1.0)
    between_R = np.where(both_R, contrast_P[prompt_R] * (mean_S[side_R] - mean_S[side_R ^ 1]), 0.0)
    with_rows = int((kept_S.reshape(prompts, 2).sum(axis=1) > 0).sum())
    mass_R = (len(pool_R) / with_rows) / np.maximum(kept_S[side_R], 1)
    return np.asarray(mass_R * (share_R * (reward_N[pool_R] - mean_S[side_R]) + between_R))
