"""The objective compiler: what a setting's mean update is, and the weights with which it follows a declared objective.

Let the advantages of a prompt's correct rows sum to c+ and those of its incorrect rows to -c-. The mean update is then
F(p) grad p with

    F(p) = E[c+] / p + E[c-] / (1-p)                                             (equation (*) of advantage.py)

over all ways in which the pool can end, which `paths.find_endings` lists with their probabilities. So F is a number for
every pass rate p, and no simulation is needed. An objective E[f(p)] wants F(p) = f'(p) per row.

`weighting: objective` gives both sides of a group the same mass, c+ = c- = n' c with n' rows per prompt. Then F / n' is
E[c] / (p (1-p)), so the mean of c must be p (1-p) f'(p). For a pool of N responses, K of them correct, that labels do
not stop,

    c(K, N) = K (N-K) / (N (N-1)) f'(K/N)                                                                  (first guess)

is right for f' = 1, and biased where f' bends or the labels stop the pool. `compute_contrasts` corrects c for every way
in which the pool can end: the smallest change, in the mean square over pass rates, with which E[c] follows p (1-p)
f'(p). For pass@k no correction is needed. The share of the label orders of a pool that begin with one correct and k
incorrect responses, in that order, estimates p (1-p)^k without bias, whatever ends the pool after them. For a pool of
fixed size it is K (N-K)_k / (N)_(k+1), with falling factorials. So c is k times that share.
A group with equal labels has c = 0, so no setting follows f' = 1/p down to p = 0: RANGE is where it is held.

E ways in which a pool can end, P pass rates, N responses of a pool, K of them correct.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.learning.objectives import Objective, PassAtK, compute_gradient_weight
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.exits import FixedExit
from nemo_ada.core.sampling.paths import StopRule, count_paths, find_endings
from nemo_ada.errors import InvariantError

RANGE = (0.05, 0.95)
"""Pass rates for which an objective is held."""
LARGEST_DEVIATION = 0.10
"""A setting that declares an objective and misses it by more than this, within RANGE, is refused."""
SHOWN_P = np.array([0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98])
"""Pass rates of tables."""

_SMALL = 0.05  # of the largest f'. Below it a deviation counts relative to this much of the largest f'
_AIM = 0.03  # the deviation at which the correction is good enough: a smaller one costs variance
_RATE_P = np.concatenate([[0.02, 0.03, 0.04], np.linspace(*RANGE, 37), [0.96, 0.97, 0.98]])
_INSIDE_P = (RANGE[0] - 1e-9 < _RATE_P) & (RANGE[1] + 1e-9 > _RATE_P)
_COUNT_P = np.where(_INSIDE_P, 1.0, 0.05)  # outside RANGE an error counts less
_STRENGTHS = 10.0 ** np.arange(1.0, -8.5, -0.5)  # of the wish to stay at the first guess, strongest first
_BOUNDS = (0.25, 4.0)  # of a correction. So every group with both labels teaches, and none rules a step
_DIGITS = 6  # of a correction. So every machine has the same one, whatever its linear algebra rounds


def measure_deviation(factor_P: FloatArray, declared_P: FloatArray) -> float:
    """Compute how far factors are from the declared ones, up to a common scale, which is a part of the learning rate.

    Args:
        factor_P: F of each pass rate.
        declared_P: f' of each pass rate.

    Returns:
        The largest relative distance under the best scale. It is inf where a factor is not positive. Where f' is
        nearly 0 (pass@k of easy prompts), the distance is relative to _SMALL of the largest f'.
    """
    least = _SMALL * float(declared_P.max())
    large_P = declared_P >= least
    ratio_P = factor_P[large_P] / declared_P[large_P]
    if ratio_P.min() <= 0.0:
        return float("inf")
    scale = np.sqrt(ratio_P.max() * ratio_P.min())
    rest_P = np.abs(factor_P[~large_P] / scale - declared_P[~large_P]) / least
    return float(max(np.sqrt(ratio_P.max() / ratio_P.min()) - 1.0, *rest_P.tolist(), 0.0))


def compute_factors(settings: RowSettings, rate_P: FloatArray) -> FloatArray:
    """Compute F per row of a prompt, for pools that no cap of the batch cuts short.

    With a shrunk baseline it is 1: the baseline does not hold the row's own label.

    Args:
        settings: how pools become rows.
        rate_P: pass rates, between 0 and 1 and neither of them.

    Raises:
        InvariantError: all responses are rows and their number follows an estimate (Est), which `nemo-ada simulate`
            simulates.
    """
    advantage = settings.advantage
    if settings.shrunk_baseline:
        return np.ones(len(rate_P))
    if settings.keep_all:
        raise InvariantError("the responses of the estimation variant follow an estimate; simulate it")
    end = find_endings(settings.stop)
    pos_E, neg_E = end.pos_E, end.total_E - end.pos_E
    if advantage.weighting == "objective":
        pull_E = push_E = compute_contrasts(settings.stop, advantage.objective)[end.total_E, pos_E]
    else:
        keep_pos_E, keep_neg_E = count_kept(pos_E, neg_E, settings.group)
        pool_E = pos_E / end.total_E
        weight_E = compute_gradient_weight(
            advantage.objective,
            pool_E,
            exponent=settings.exponent,
            min_pass_rate=advantage.min_pass_rate,
            max_weight=advantage.max_weight,
        )
        above_E, below_E, spare_E = pool_E, pool_E, np.ones(len(pool_E))  # baselines of correct and of incorrect rows
        if advantage.baseline == "leave_one_out":
            others_E = np.maximum(end.total_E - 1.0, 1.0)
            above_E, below_E = np.maximum(pos_E - 1.0, 0.0) / others_E, np.minimum(pos_E / others_E, 1.0)
            spare_E = others_E / np.maximum(others_E - 1.0, 1.0)  # a sample's variance
        # c+ and c- per row of the group, for each way in which the pool can end.
        pull_E = weight_E * keep_pos_E / settings.group * (1.0 - above_E)
        push_E = weight_E * keep_neg_E / settings.group * below_E
        if advantage.normalize == "std":
            spreads = (np.sqrt(rate_E * (1.0 - rate_E) * spare_E) for rate_E in (above_E, below_E))
            pull_E, push_E = (
                part_E / np.where(spread_E > 0, spread_E, 1.0)
                for part_E, spread_E in zip((pull_E, push_E), spreads, strict=True)
            )
    probability_PE = end.compute_probability(rate_P)
    return np.asarray(probability_PE @ pull_E / rate_P + probability_PE @ push_E / (1.0 - rate_P))


def measure_declared_deviation(settings: RowSettings, smallest: int = 0) -> float:
    """Compute by how much the mean update misses the objective that the settings declare, within RANGE.

    Args:
        settings: how pools become rows, with `weighting: objective`.
        smallest: N_min of the estimation variant, whose smallest pools miss the objective most.
    """
    rule = StopRule(FixedExit(smallest), (smallest,), smallest) if settings.keep_all else settings.stop
    rate_P = _RATE_P[_INSIDE_P]
    end, objective = find_endings(rule), settings.advantage.objective
    contrast_E = compute_contrasts(rule, objective)[end.total_E, end.pos_E]
    return measure_deviation(
        end.compute_probability(rate_P) @ contrast_E / (rate_P * (1.0 - rate_P)), objective.weight(rate_P)
    )


def compute_objective_weights(settings: RowSettings, pos_P: IntArray, total_P: IntArray) -> FloatArray:
    """Compute w of each pool, so that a group's contrast is c = q (1-q) w with q = K/N.

    Pools that a cap of the batch has cut short where the exit would not have have the first guess.

    Args:
        settings: how pools become rows, with `weighting: objective`.
        pos_P: correct responses of each pool.
        total_P: responses of each pool.
    """
    objective = settings.advantage.objective
    if not settings.keep_all:
        return _compute_weights(settings.stop, objective)[total_P, pos_P]
    weight_P = np.ones(len(total_P))
    for size in np.unique(total_P[total_P > 0]).tolist():
        here_P = total_P == size
        weight_P[here_P] = _compute_weights(StopRule(FixedExit(size), (size,), size), objective)[size, pos_P[here_P]]
    return weight_P


@lru_cache(maxsize=64)
def _compute_weights(rule: StopRule, objective: Objective) -> FloatArray:
    if isinstance(objective, PassAtK) and rule.mark_judged()[: objective.k + 1].sum() == 0:
        return _weigh_pass_at_k(rule, objective.k)
    guess_NK, correction_NK = _guess_weights(rule.cap, objective), _fit_corrections(rule, objective)
    return np.asarray(guess_NK * correction_NK)


def compute_contrasts(rule: StopRule, objective: Objective) -> FloatArray:
    """Compute c(K, N) for every pool [N_max + 1, N_max + 1], by N and K. It is 0 where all labels are equal.

    Args:
        rule: when a pool ends.
        objective: the declared objective.
    """
    total_NK, pos_NK = np.indices((rule.cap + 1, rule.cap + 1), dtype=np.int64)
    rate_NK = pos_NK / np.maximum(total_NK, 1)
    inside_NK = (pos_NK > 0) & (pos_NK < total_NK)
    return np.where(inside_NK, rate_NK * (1.0 - rate_NK) * _compute_weights(rule, objective), 0.0)


def _weigh_pass_at_k(rule: StopRule, k: int) -> FloatArray:
    """Compute c / (q (1-q)) by N and K for pass@k, where no pool is judged before its response k + 1."""
    all_NK, begun_NK = count_paths(rule), count_paths(rule, (1, k))
    total_NK, pos_NK = np.indices(all_NK.shape)
    mixed_NK = np.isfinite(all_NK) & (pos_NK > 0) & (pos_NK < total_NK)
    rate_NK = np.where(mixed_NK, pos_NK / np.maximum(total_NK, 1), 0.5)
    share_NK = np.exp(begun_NK - np.where(mixed_NK, all_NK, 0.0))
    return np.where(mixed_NK, k * share_NK / (rate_NK * (1.0 - rate_NK)), 1.0)


def _guess_weights(cap: int, objective: Objective) -> FloatArray:
    """Compute N / (N-1) f'(K/N) by N and K. Half a response takes the place of none where f' may be infinite."""
    total_NK, pos_NK = np.indices((cap + 1, cap + 1), dtype=np.float64)
    size_NK = np.maximum(total_NK, 1.0)
    rate_NK = np.clip(pos_NK, 0.5, size_NK) / size_NK
    slope_NK = np.asarray(objective.weight(rate_NK.ravel())).reshape(rate_NK.shape)
    return np.asarray(slope_NK * size_NK / np.maximum(size_NK - 1.0, 1.0))


@lru_cache(maxsize=64)
def _fit_corrections(rule: StopRule, objective: Objective) -> FloatArray:
    """Compute what the first guess is multiplied by, by N and K: the smallest correction that reaches _AIM.

    It solves a ridge regression per strength. Where no strength reaches the aim, the one with the
    smallest deviation is taken.
    """
    end = find_endings(rule)
    mixed_E = (end.pos_E > 0) & (end.pos_E < end.total_E)
    correction_NK = np.ones((rule.cap + 1, rule.cap + 1))
    if not mixed_E.any():
        return correction_NK
    total_E, pos_E = end.total_E[mixed_E], end.pos_E[mixed_E]
    rate_E = pos_E / total_E
    guess_E = rate_E * (1.0 - rate_E) * _guess_weights(rule.cap, objective)[total_E, pos_E]
    probability_PE = end.compute_probability(_RATE_P)[:, mixed_E]
    target_P = _RATE_P * (1.0 - _RATE_P) * objective.weight(_RATE_P)
    share_PE = probability_PE * guess_E / target_P[:, None]  # of the target, per unit of correction
    # The more a way adds to the variance, the less its correction may move. Where one is hardly ever taken, 1e-12 keeps
    # the regression's matrix regular.
    noise_E = _COUNT_P @ (probability_PE * (guess_E / target_P[:, None]) ** 2) + 1e-12
    best_E, least = np.ones(len(total_E)), np.inf
    for strength in (np.inf, *_STRENGTHS.tolist()):
        found_E = np.ones(len(total_E)) if strength == np.inf else _solve_ridge(share_PE, strength * noise_E)
        missed = measure_deviation((share_PE @ found_E)[_INSIDE_P], np.ones(int(_INSIDE_P.sum())))
        if missed < least:
            best_E, least = found_E, missed
        if least < _AIM:
            break
    correction_NK[total_E, pos_E] = np.round(best_E, _DIGITS)
    return correction_NK


def _solve_ridge(share_PE: FloatArray, pull_E: FloatArray) -> FloatArray:
    """Minimise sum_P count (share x - 1)^2 + sum_E pull (x - 1)^2, and fix at its bound what would leave _BOUNDS."""
    free_E, found_E = np.ones(share_PE.shape[1], np.bool_), np.ones(share_PE.shape[1])
    while free_E.any():
        part_PE, rest_P = share_PE[:, free_E], 1.0 - share_PE[:, ~free_E] @ found_E[~free_E]
        matrix_EE = part_PE.T @ (_COUNT_P[:, None] * part_PE) + np.diag(pull_E[free_E])
        found_E[free_E] = np.linalg.solve(matrix_EE, part_PE.T @ (_COUNT_P * rest_P) + pull_E[free_E])
        outside_E = free_E & (found_E != np.clip(found_E, *_BOUNDS))
        if not outside_E.any():
            break
        found_E[outside_E] = np.clip(found_E[outside_E], *_BOUNDS)
        free_E &= ~outside_E
    return found_E


def count_kept(pos_P: IntArray, neg_P: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Compute how many correct and how many incorrect responses of each pool become rows.

    Args:
        pos_P: correct responses in each pool.
        neg_P: incorrect responses in each pool.
        n: rows per prompt. A smaller pool keeps all its responses.
    """
    want_pos, want_neg = n // 2, n - n // 2
    keep_pos_P = np.minimum(pos_P, want_pos + np.maximum(want_neg - neg_P, 0))
    keep_neg_P = np.minimum(neg_P, want_neg + np.maximum(want_pos - pos_P, 0))
    return keep_pos_P, keep_neg_P
