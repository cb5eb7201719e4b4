"""Advantages of a step's training rows (algorithm.md section 4). N pool responses, P prompts, R training rows,
S = 2 P sides (the incorrect and the correct responses of each prompt).

What a group of rows does to the policy. Labels decide when a pool ends and, with chance, which rows are kept; so given
the labels, a kept correct row is a fresh draw from the correct responses, E[grad log pi | correct] = grad p / p, and an
incorrect one has the mean -grad p / (1-p). If the correct rows of a prompt carry the advantage mass c+ in sum and the
incorrect ones -c-, the expected update is

    grad p * ( E[c+] / p + E[c-] / (1-p) ).                                                                     (*)

`weighting: reference` (the authors'): A = (r - b) w on the rows as they are, b = pool mean. A kept group of h correct
and n-h incorrect rows has c+ = h (1-b) w, c- = (n-h) b w; with h = n/2 and b = p, (*) is n grad p w times
[(1-p)^2 + p^2] / (2 p (1-p)), the weight of section 4 that nobody declared. On all rows of a pool of fixed size N
(GRPO, Est), (*) is (N-1) grad p w: the row's own reward in b costs one response; `leave_one_out` gives N grad p w.

`baseline: shrunk` (ours, with reference weighting): b_i = (S - r_i + a) / (N - 1 + a + b), the posterior mean of p from
the prompt's other responses and its Beta(a, b) prior. It does not depend on r_i, so on all rows of a pool of fixed size
(*) is N grad p w, exactly, and its error is the posterior variance, below the p (1-p) / (N-1) of the others' mean. A
group with equal labels keeps a gradient: its labels against the prior. The prior is one of labels, so rewards must be
0 or 1.

`weighting: objective`: rows carry the inverse of the design. With q an estimate of p and v one of p (1-p), correct rows
share the mass n' q and incorrect rows n' (1-q), with n' = R/P rows per prompt (of those that have rows). With the
baseline b = q (0/1 rewards) both sides have c = n' q (1-q) w; with `leave_one_out` c = n' v w. Then (*) is n' grad p w
times E[v] / (p (1-p)):
  leave_one_out, q and v unbiased (`pool` where sizes are fixed, `haldane`, `first_wave`): exactly n' grad p for the
      linear objective, for every exit, plan and cap;
  without it, v = q (1-q): a factor 1 - Var(q) / (p (1-p)), which is 1 - 1/N for pools of fixed size;
  other objectives: times w = f'(q), which varies with the same pool; `exact.gradient_factor` computes the mean.
In Est the mass n' for every prompt undoes the allocation exactly (n'/N_x per row), bounds included, so w is all of f'.
Real rewards: with m+ and m- the pool's mean rewards of the two sides, a correct row gets
  n'/h (q (r - m+) + v (m+ - m-)),   an incorrect one   n'/(n-h) ((1-q) (r - m-) - v (m+ - m-)).
Without leave_one_out that is n' q/h (r - (q m+ + (1-q) m-)) and its mirror image: the inverse-design row weight times
the reward less the corrected mean. With leave_one_out the row's own reward is left out of its side's mean, so its
baseline does not depend on its text, and by linearity the mean is the gradient of E[r] (a side with one response
keeps its own).
A pool with one label has no row for the other side's share: its mass goes to the rows there are, so 0/1 rewards give
A = 0 (no contrast, as in GRPO; the E[v] above already counts it as 0) and real rewards their contrast within the side.

Not combined (the configuration refuses): objective weighting with `normalize: std`, which would multiply by the weight
1/sqrt(p (1-p)) that no objective declared; and objective weighting with groups of one row, which hold one side only.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.pass_rate import PassRateEstimates
from nemo_ada.errors import InvariantError, UserError

Weighting = Literal["reference", "objective"]
Normalize = Literal["none", "std"]
STD_EPSILON = 1e-6
ROUNDING = 1e-9  # relative to the rewards: below it a difference is the mean's rounding, and the row is dead


def advantages(
    reward_N: FloatArray,
    positive_N: BoolArray,
    prompt_N: IntArray,
    row: IntArray,
    row_weight: FloatArray,
    *,
    weight_P: FloatArray,
    rates: PassRateEstimates | None = None,
    weighting: Weighting = "reference",
    normalize: Normalize = "none",
    leave_one_out: bool = False,
    prior_P: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:
    """Advantage of every training row, in the shape of `row`.

    reward_N, positive_N, prompt_N: the pools, flat (prompt 0..P-1). row: positions in them, [P, n] from
    `selection.select_step` or [R] (Est: all of them); row_weight: 0.0 marks a placeholder row, which gets advantage 0.
    weight_P: w_grad of each prompt (`objectives.gradient_weight`). rates: needed for objective weighting. prior_P:
    (a, b) of each prompt's Beta prior, for `baseline: shrunk`; then raises UserError for rewards other than 0 and 1.
    """
    active_R = (row_weight > 0.0).ravel()
    response_id_R = np.where(active_R, row.ravel(), 0)
    if not active_R.any():
        return np.zeros(row.shape)
    if prior_P is not None:
        if weighting != "reference" or normalize != "none":
            raise InvariantError("a shrunk baseline goes with reference weighting and without std normalisation")
        advantage_R = _against_posterior(reward_N, prompt_N, response_id_R, prior_P)
    elif weighting == "reference":
        advantage_R = _reference(reward_N, prompt_N, response_id_R, len(weight_P), normalize, leave_one_out)
    elif rates is None or normalize != "none":
        raise InvariantError("objective weighting needs pass rates and goes without std normalisation")
    else:
        advantage_R = _objective(reward_N, positive_N, prompt_N, response_id_R, active_R, rates, leave_one_out)
    live_R = active_R & (np.abs(advantage_R) > ROUNDING * max(1.0, float(np.abs(reward_N).max())))
    return np.asarray(np.where(live_R, advantage_R * weight_P[prompt_N[response_id_R]], 0.0).reshape(row.shape))


def _reference(
    reward_N: FloatArray,
    prompt_N: IntArray,
    response_id_R: IntArray,
    prompts: int,
    normalize: Normalize,
    leave_one_out: bool,
) -> FloatArray:
    prompt_R = prompt_N[response_id_R]
    total_P = np.maximum(np.bincount(prompt_N, minlength=prompts), 1)
    mean_P = np.bincount(prompt_N, reward_N, prompts) / total_P
    advantage_R = reward_N[response_id_R] - mean_P[prompt_R]
    if leave_one_out:  # r - (S - r) / (N-1) = (r - S/N) N / (N-1)
        advantage_R = advantage_R * (total_P / np.maximum(total_P - 1, 1))[prompt_R]
    if normalize == "std":
        variance_P = np.bincount(prompt_N, (reward_N - mean_P[prompt_N]) ** 2, prompts) / total_P
        advantage_R = advantage_R / (np.sqrt(variance_P)[prompt_R] + STD_EPSILON)
    return np.asarray(advantage_R)


def _against_posterior(
    reward_N: FloatArray, prompt_N: IntArray, response_id_R: IntArray, prior_P: tuple[FloatArray, FloatArray]
) -> FloatArray:
    a_P, b_P = prior_P
    if not ((reward_N == 0.0) | (reward_N == 1.0)).all():
        raise UserError(
            "reinforce_ada.advantage.baseline=shrunk compares rewards with a prior of pass rates, so they must be 0 or "
            "1; with other rewards use baseline: pool"
        )
    prompt_R, reward_R = prompt_N[response_id_R], reward_N[response_id_R]
    sum_P = np.bincount(prompt_N, reward_N, len(a_P))
    total_P = np.bincount(prompt_N, minlength=len(a_P))
    others_R = sum_P[prompt_R] - reward_R
    mass_R = total_P[prompt_R] - 1 + a_P[prompt_R] + b_P[prompt_R]
    return np.asarray(reward_R - (others_R + a_P[prompt_R]) / mass_R)


def _objective(
    reward_N: FloatArray,
    positive_N: BoolArray,
    prompt_N: IntArray,
    response_id_R: IntArray,
    active_R: BoolArray,
    rates: PassRateEstimates,
    leave_one_out: bool,
) -> FloatArray:
    prompts = len(rates.rate_P)
    side_N = prompt_N * 2 + positive_N  # even: incorrect, odd: correct
    side_R = side_N[response_id_R]
    pool_S = np.bincount(side_N, minlength=2 * prompts)
    sum_S = np.bincount(side_N, reward_N, 2 * prompts)
    mean_S = sum_S / np.maximum(pool_S, 1)
    kept_S = np.bincount(side_R[active_R], minlength=2 * prompts)
    both_R = (kept_S[side_R] > 0) & (kept_S[side_R ^ 1] > 0)

    rate_P = rates.rate_P
    contrast_P = rates.contrast_P if leave_one_out else rate_P * (1.0 - rate_P)
    prompt_R, positive_R, reward_R = side_R // 2, positive_N[response_id_R], reward_N[response_id_R]
    side_mean_R = mean_S[side_R]
    if leave_one_out:
        others_R = pool_S[side_R] - 1
        without_R = (sum_S[side_R] - reward_R) / np.maximum(others_R, 1)
        side_mean_R = np.where(others_R > 0, without_R, side_mean_R)

    share_R = np.where(both_R, np.where(positive_R, rate_P[prompt_R], 1.0 - rate_P[prompt_R]), 1.0)
    between_R = np.where(both_R, contrast_P[prompt_R] * (side_mean_R - mean_S[side_R ^ 1]), 0.0)
    with_rows = int((kept_S.reshape(prompts, 2).sum(axis=1) > 0).sum())
    mass_R = (len(response_id_R) / with_rows) / np.maximum(kept_S[side_R], 1)
    return np.asarray(mass_R * (share_R * (reward_R - side_mean_R) + between_R))
