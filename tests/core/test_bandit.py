"""A softmax bandit: does the mean of the estimator equal the gradient that it claims?

Six arms (two correct), p from 0.1 to 0.7, grad p known in closed form. 20 000 prompts each draw a pool (arms, not just
labels), stopped by loops written here; the code under test selects rows and computes advantages; the
update is sum_r A_r grad log pi(arm_r) / rows. The claim comes from `claimed`, a walk over (n_pos, n_neg) in plain
Python dictionaries with section 4's formulas. Each of the six components must lie within 4.5 standard errors of its
claim (a false alarm once in some 10^5 components). That a dropped weight lies far out: tests/mutation/named_nemo.json.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from math import comb
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from nemo_ada.core.learning.factor import compute_contrasts, compute_factors, compute_objective_weights
from nemo_ada.core.learning.objectives import Linear, Log, Power, compute_gradient_weight
from nemo_ada.core.learning.rows import select, select_step, weigh
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.sampling.exits import BalancedExit, ExitRule, FixedExit, PositiveExit
from nemo_ada.core.sampling.pass_rate import estimate_from_pool
from nemo_ada.core.sampling.paths import StopRule
from tests.core.scripted import advantages_of, met

POOLS, ARMS, CORRECT, KEPT, SIGMAS = 20_000, 6, 2, 4, 4.5
MIN_RATE, MAX_WEIGHT, PRIOR, STRENGTH = 0.02, 30.0, 0.3, 4.0


class Variant(NamedTuple):
    exit: ExitRule
    waves: tuple
    cap: int

    @property
    def rule(self):
        return StopRule(*self)

    def judged_sizes(self):
        sizes, total = [], 0
        while total < self.cap:
            total = min(self.cap, total + self.waves[min(len(sizes), len(self.waves) - 1)])
            sizes.append(total)
        return sizes


VARIANTS = {
    "grpo": Variant(FixedExit(KEPT), (KEPT,), KEPT),
    "fixed(12), downsampled": Variant(FixedExit(12), (12,), 12),
    "positive(1), waves of 8": Variant(PositiveExit(1), (8,), 24),
    "balanced(2,2), waves of 8": Variant(BalancedExit(2, 2), (8,), 32),
    "balanced(1,1), waves 4 then 2": Variant(BalancedExit(1, 1), (4, 2), 10),
    "balanced(2,2), one by one": Variant(BalancedExit(2, 2), (1,), 20),
    "positive(2), one by one": Variant(PositiveExit(2), (1,), 16),
}
OBJECTIVES = {"linear": Linear(), "log": Log(), "power": Power(a=0.5)}


def policy(p):
    share = np.array([0.7, 0.3, 0.4, 0.3, 0.2, 0.1])
    return np.where(np.arange(ARMS) < CORRECT, share * p, share * (1 - p))


def gradient_of_p(pi):
    correct = np.arange(ARMS) < CORRECT
    return pi * (correct - pi[correct].sum())


class Pools(NamedTuple):
    arm_N: np.ndarray
    prompt_N: np.ndarray
    index_N: np.ndarray
    positive_N: np.ndarray
    pos_P: np.ndarray
    total_P: np.ndarray
    row_PR: np.ndarray
    weight_PR: np.ndarray


@cache
def pools_of(name, p):
    variant = VARIANTS[name]
    rng = np.random.default_rng([list(VARIANTS).index(name), int(100 * p)])
    arm_PC = rng.choice(ARMS, size=(POOLS, variant.cap), p=policy(p))
    seen_PC = np.cumsum(arm_PC < CORRECT, axis=1)
    total_P = np.full(POOLS, variant.cap)
    for size in reversed(variant.judged_sizes()):
        pos_P = seen_PC[:, size - 1]
        total_P = np.where(met(variant.exit, pos_P, size - pos_P), size, total_P)
    kept = np.arange(variant.cap) < total_P[:, None]
    prompt_N, index_N = np.nonzero(kept)
    positive_N = arm_PC[kept] < CORRECT
    row_PR, weight_PR = select_step(prompt_N, index_N, positive_N, np.arange(POOLS), KEPT, run_seed=5, step=1)
    return Pools(
        arm_PC[kept],
        prompt_N,
        index_N,
        positive_N,
        seen_PC[np.arange(POOLS), total_P - 1],
        total_P,
        row_PR,
        weight_PR,
    )


def settings_of(name, objective, weighting):
    advantage = AdvantageSettings(weighting, objective, min_pass_rate=MIN_RATE, max_weight=MAX_WEIGHT)
    return RowSettings(KEPT, VARIANTS[name].rule, advantage)


def advantage_of(pools, **options):
    """Advantages of the pools' kept rows; their labels are the rewards."""
    return advantages_of(
        pools.positive_N.astype(float), pools.positive_N, pools.prompt_N, pools.row_PR, pools.weight_PR, **options
    )


def weight_of(objective, rate_P, exponent=None):
    return compute_gradient_weight(objective, rate_P, exponent=exponent, min_pass_rate=MIN_RATE, max_weight=MAX_WEIGHT)


def update(pools, advantage_PR, p, rows_per_prompt):
    """sum_r A_r grad log pi(arm_r) / rows of every prompt: [P, arms]."""
    active = pools.weight_PR.ravel() > 0
    response_id_R, advantage_R = pools.row_PR.ravel()[active], advantage_PR.ravel()[active]
    cell_R = pools.prompt_N[response_id_R] * ARMS + pools.arm_N[response_id_R]
    per_arm = np.bincount(cell_R, advantage_R, POOLS * ARMS).reshape(POOLS, ARMS)
    return (per_arm - per_arm.sum(axis=1, keepdims=True) * policy(p)) / rows_per_prompt


def deviation(update_PA, claim_A):
    """Largest distance of a component's mean from its claim, in standard errors."""
    error_A = update_PA.std(axis=0) / np.sqrt(len(update_PA))
    return float((np.abs(update_PA.mean(axis=0) - claim_A) / error_A).max())


@cache
def walk(name):
    """Ends (n_pos, n_neg) -> label sequences that lead there."""
    variant = VARIANTS[name]
    judged, ends, layer = set(variant.judged_sizes()), defaultdict(int), {(0, 0): 1}
    while layer:
        following = defaultdict(int)
        for (pos, neg), ways in layer.items():
            total = pos + neg
            if total and total in judged and (met(variant.exit, pos, neg) or total == variant.cap):
                ends[pos, neg] += ways
                continue
            following[pos + 1, neg] += ways
            following[pos, neg + 1] += ways
        layer = following
    return ends


def claimed(name, p, objective, weighting):
    """The expected update in units of grad p: c+ / p + c- / (1-p), averaged over all ends of a pool."""
    factor, contrast_NK = 0.0, compute_contrasts(VARIANTS[name].rule, OBJECTIVES[objective])
    for (pos, neg), ways in walk(name).items():
        total = pos + neg
        probability = ways * p**pos * (1 - p) ** neg
        b = pos / total
        kept_pos = min(pos, KEPT // 2 + max(KEPT - KEPT // 2 - neg, 0))
        kept_neg = min(neg, KEPT - KEPT // 2 + max(KEPT // 2 - pos, 0))
        if weighting == "reference":
            floored = max(b, MIN_RATE)
            weight = min({"linear": 1.0, "log": 1 / floored, "power": 0.5 * floored**-0.5}[objective], MAX_WEIGHT)
            pull, push = weight * kept_pos / KEPT * (1 - b), weight * kept_neg / KEPT * b
        else:
            pull = push = contrast_NK[total, pos] if kept_pos and kept_neg else 0.0
        factor += probability * (pull / p + push / (1 - p))
    return factor


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_mean_update_is_the_claimed_gradient(name, p):
    pools, slope = pools_of(name, p), gradient_of_p(policy(p))
    failures = []
    for weighting in ("reference", "objective"):
        for label, objective in OBJECTIVES.items():
            settings = settings_of(name, objective, weighting)
            weight_P = weight_of(objective, estimate_from_pool(pools.pos_P, pools.total_P))
            if weighting == "objective":
                weight_P = compute_objective_weights(settings, pools.pos_P, pools.total_P)
            advantage = advantage_of(pools, weight_P=weight_P, weighting=weighting)
            factor = claimed(name, p, label, weighting)
            assert compute_factors(settings, np.array([p]))[0] == pytest.approx(factor, rel=1e-9)
            z = deviation(update(pools, advantage, p, KEPT), factor * slope)
            if z > SIGMAS:
                failures.append((weighting, label, z))
    assert not failures


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("name", ["grpo", "positive(1), waves of 8", "balanced(2,2), waves of 8"])
def test_division_by_the_standard_deviation_multiplies_by_it(name, p):
    """normalize: std makes a pool's (1-b) and -b into sqrt((1-b)/b) and -sqrt(b/(1-b)), its share b of correct ones."""
    pools, factor = pools_of(name, p), 0.0
    advantage = advantage_of(pools, weight_P=np.ones(POOLS), normalize="std")
    for (pos, neg), ways in walk(name).items():
        if pos and neg:
            kept_pos, b = min(pos, max(KEPT // 2, KEPT - neg)), pos / (pos + neg)
            up, down = ((1 - b) / b) ** 0.5, (b / (1 - b)) ** 0.5
            moved = kept_pos * up / p + (KEPT - kept_pos) * down / (1 - p)
            factor += ways * p**pos * (1 - p) ** neg * moved / KEPT
    found = update(pools, advantage, p, KEPT)
    assert deviation(found, factor * gradient_of_p(policy(p))) < SIGMAS
    undivided = claimed(name, p, "linear", "reference")
    assert deviation(found, undivided * gradient_of_p(policy(p))) > 2 * SIGMAS


def est_pools(p, low=4):
    """One prompt type, allocations that follow an earlier, noisy prediction: all rows are trained on."""
    rng = np.random.default_rng(11)
    predicted = rng.beta(2, 4, POOLS)
    total_P = allocate((predicted + 0.01) ** -0.5, 8 * POOLS, low, 32, rng.random(POOLS))
    prompt_N = np.repeat(np.arange(POOLS), total_P)
    index_N = np.arange(len(prompt_N)) - np.repeat(np.cumsum(total_P) - total_P, total_P)
    arm_N = rng.choice(ARMS, len(prompt_N), p=policy(p))
    positive_N = arm_N < CORRECT
    pos_P = np.bincount(prompt_N, positive_N, POOLS).astype(np.int64)
    rows = np.arange(len(prompt_N))
    pools = Pools(arm_N, prompt_N, index_N, positive_N, pos_P, total_P, rows, np.ones(len(rows)))
    return pools, total_P


def built(pools, total_P, prior_P, exponent=None, **settings):
    """The advantages of all rows of these pools, as the sampler computes them."""
    result = SimpleNamespace(
        reward_N=pools.positive_N.astype(float), positive_N=pools.positive_N, prompt_N=pools.prompt_N,
        response_id_N=np.arange(len(pools.prompt_N)), tokens_N=np.ones(len(pools.prompt_N)), pos_P=pools.pos_P,
        size_P=total_P, first_pos_P=pools.pos_P, first_size_P=total_P, group_G=np.arange(POOLS), uid_P=np.arange(POOLS),
    )  # fmt: skip
    stop = StopRule(FixedExit(1), (32,), 32)
    settings = RowSettings(
        8, stop, AdvantageSettings(min_pass_rate=MIN_RATE, max_weight=MAX_WEIGHT, **settings), True, exponent
    )
    group = int(total_P.sum()) // POOLS
    settings = replace(settings, group=group)
    selection = select(result, settings, POOLS, run_seed=5, step=1)
    return weigh(result, selection, settings, prior_P=prior_P).advantage_R


def est_claimed(total, p, objective, weighting, exponent):
    """The expected update of a prompt with `total` responses in units of grad p, over all counts of correct ones.

    Objective mode: per row of the batch. Reference mode: summed over the prompt's rows, with the gradient's part
    f'(q) / w_sample(q) of the weight.
    """

    def whole(q):
        floored = max(q, MIN_RATE) if exponent is None else min(max(q, MIN_RATE), 1 - MIN_RATE)
        slope = {"linear": 1.0, "log": 1 / floored, "power": 0.5 * floored**-0.5}[objective]
        return min(slope * floored ** (exponent or 0.0), MAX_WEIGHT)

    contrast_NK, factor = compute_contrasts(StopRule(FixedExit(total), (total,), total), OBJECTIVES[objective]), 0.0
    for pos in range(total + 1):
        b, neg = pos / total, total - pos
        pull, push = whole(b) * pos * (1 - b), whole(b) * neg * b
        if weighting == "objective":
            pull = push = contrast_NK[total, pos]
        factor += comb(total, pos) * p**pos * (1 - p) ** neg * (pull / p + push / (1 - p))
    return factor / (1 if weighting == "objective" else 8)


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize(
    ("weighting", "exponent"), [("objective", None), ("reference", 0.5), ("reference", 1.0), ("reference", None)]
)
def test_estimation_leaves_to_the_gradient_what_sampling_has_not_realised(weighting, exponent, p):
    pools, total_P = est_pools(p)
    slope, failures = gradient_of_p(policy(p)), []
    sizes, counts = np.unique(total_P, return_counts=True)
    prior_P = np.full(POOLS, STRENGTH * PRIOR), np.full(POOLS, STRENGTH * (1 - PRIOR))
    for label, objective in OBJECTIVES.items():
        advantage = built(pools, total_P, prior_P, weighting=weighting, objective=objective, exponent=exponent)
        expected = [est_claimed(size, p, label, weighting, exponent) for size in sizes.tolist()]
        z = deviation(update(pools, advantage, p, 8.0), float(np.average(expected, weights=counts)) * slope)
        if z > SIGMAS:
            failures.append((label, z))
    assert not failures


@pytest.mark.parametrize("low", [2, 4])
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_objective_weights_undo_an_allocation_for_every_size_of_pool(p, low):
    """The linear objective's exact gradient, for the few responses of easy prompts as for the many of hard ones."""
    pools, total_P = est_pools(p, low)
    found_PA = update(pools, built(pools, total_P, None, weighting="objective"), p, 8.0)
    sizes, counts = np.unique(total_P, return_counts=True)
    tried = sizes[counts > 500]
    assert len(tried) > 3 and tried[0] <= 5
    for size in tried:
        assert deviation(found_PA[total_P == size], gradient_of_p(policy(p))) < SIGMAS, size
