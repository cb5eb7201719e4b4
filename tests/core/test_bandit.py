"""A softmax bandit: does the mean of the estimator equal the gradient that it claims?

Six arms (two correct), p from 0.1 to 0.7, grad p known in closed form. 20 000 prompts each draw a pool (arms, not just
labels), stopped by loops written here; the code under test selects rows, estimates q and computes advantages; the
update is sum_r A_r grad log pi(arm_r) / rows. The claim comes from `claimed`, a walk over (n_pos, n_neg) in plain
Python dictionaries with section 4's formulas, and for `objective` weighting with an unbiased rate and leave-one-out
also from the objective itself: exactly grad p. Each of the six components must lie within 4.5 standard errors of its
claim (a false alarm once in some 10^5 components); the mutations at the end show that a dropped weight lies far out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Any

import numpy as np
import pytest

from nemo_ada.core.learning.advantage import advantages
from nemo_ada.core.learning.objectives import (
    Linear,
    Log,
    Objective,
    Power,
    PowerShare,
    SamplingShare,
    VarianceShare,
    gradient_weight,
)
from nemo_ada.core.learning.selection import select_step
from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.sampling.exits import BalancedExit, ExitRule, FixedExit, PositiveExit
from nemo_ada.core.sampling.pass_rate import PassRateEstimates, estimate, haldane, pool
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.simulate.exact import gradient_factor

POOLS, ARMS, CORRECT, KEPT, SIGMAS = 20_000, 6, 2, 4, 4.5
MIN_RATE, MAX_WEIGHT, PRIOR, STRENGTH = 0.02, 30.0, 0.3, 4.0


@dataclass(frozen=True)
class Variant:
    """kind, K's, wave sizes and cap; the exit is written here again, next to the rule handed to the code under test."""

    exit: ExitRule
    waves: tuple[int, ...]
    cap: int

    @property
    def rule(self) -> StopRule:
        return StopRule(self.exit, self.waves, self.cap)

    def met(self, pos, neg):  # type: ignore[no-untyped-def]
        if isinstance(self.exit, PositiveExit):
            return pos >= self.exit.k_pos
        if isinstance(self.exit, BalancedExit):
            return (pos >= self.exit.k_pos) & (neg >= self.exit.k_neg)
        return pos + neg >= self.cap

    def judged_sizes(self) -> list[int]:
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
    "balanced(2,2), issue_order": Variant(BalancedExit(2, 2), (1,), 20),
    "positive(2), issue_order": Variant(PositiveExit(2), (1,), 16),
}
OBJECTIVES: dict[str, Objective] = {"linear": Linear(), "log": Log(), "power": Power(0.5)}
CORRECTIONS = [
    ("reference", "pool", False),
    ("reference", "pool", True),
    ("reference", "haldane", False),
    ("objective", "pool", False),
    ("objective", "pool", True),
    ("objective", "haldane", False),
    ("objective", "haldane", True),
    ("objective", "shrunk", False),
    ("objective", "shrunk", True),
    ("objective", "first_wave", False),
    ("objective", "first_wave", True),
]
REAL = np.array([1.0, 0.8, 0.3, 0.0, -0.2, 0.6])


def policy(p: float) -> np.ndarray:
    share = np.array([0.7, 0.3, 0.4, 0.3, 0.2, 0.1])
    return np.where(np.arange(ARMS) < CORRECT, share * p, share * (1 - p))


def gradient_of_p(pi: np.ndarray) -> np.ndarray:
    correct = np.arange(ARMS) < CORRECT
    return pi * (correct - pi[correct].sum())


@dataclass(frozen=True)
class Pools:
    arm_N: np.ndarray
    prompt_N: np.ndarray
    index_N: np.ndarray
    positive_N: np.ndarray
    pos_P: np.ndarray
    total_P: np.ndarray
    first_pos_P: np.ndarray
    row_PR: np.ndarray
    weight_PR: np.ndarray


@cache
def pools_of(name: str, p: float) -> Pools:
    variant = VARIANTS[name]
    rng = np.random.default_rng([list(VARIANTS).index(name), int(100 * p)])
    arm_PC = rng.choice(ARMS, size=(POOLS, variant.cap), p=policy(p))
    seen_PC = np.cumsum(arm_PC < CORRECT, axis=1)
    total_P = np.full(POOLS, variant.cap)
    for size in reversed(variant.judged_sizes()):
        pos_P = seen_PC[:, size - 1]
        total_P = np.where(variant.met(pos_P, size - pos_P), size, total_P)
    kept = np.arange(variant.cap) < total_P[:, None]
    prompt_N, index_N = np.nonzero(kept)
    positive_N = arm_PC[kept] < CORRECT
    rows = select_step(prompt_N, index_N, positive_N, np.arange(POOLS), KEPT, run_seed=5, step=1)
    first = variant.waves[0]
    return Pools(
        arm_PC[kept],
        prompt_N,
        index_N,
        positive_N,
        seen_PC[np.arange(POOLS), total_P - 1],
        total_P,
        seen_PC[:, first - 1],
        rows.row_PR,
        rows.weight_PR,
    )


def rates_of(name: str, kind: str, pools: Pools) -> PassRateEstimates:
    return estimate(
        kind,  # type: ignore[arg-type]
        pools.pos_P,
        pools.total_P,
        first_pos_P=pools.first_pos_P,
        first_total_P=np.full(POOLS, VARIANTS[name].waves[0]),
        rule=VARIANTS[name].rule,
        prior_mean_P=np.full(POOLS, PRIOR),
        strength=STRENGTH,
    )


def advantage_of(pools: Pools, *, reward_N: np.ndarray | None = None, **options: Any) -> np.ndarray:
    """Advantages of the pools' kept rows; their labels are the rewards unless others are given."""
    rewards = pools.positive_N.astype(float) if reward_N is None else reward_N
    return advantages(rewards, pools.positive_N, pools.prompt_N, pools.row_PR, pools.weight_PR, **options)


def weight_of(objective: Objective, rates: PassRateEstimates, share: SamplingShare | None = None) -> np.ndarray:
    return gradient_weight(objective, rates.rate_P, share=share, min_pass_rate=MIN_RATE, max_weight=MAX_WEIGHT)


def update(pools: Pools, advantage_PR: np.ndarray, p: float, rows_per_prompt: float) -> np.ndarray:
    """sum_r A_r grad log pi(arm_r) / rows of every prompt: [P, arms]."""
    active = pools.weight_PR.ravel() > 0
    response_id_R, advantage_R = pools.row_PR.ravel()[active], advantage_PR.ravel()[active]
    cell_R = pools.prompt_N[response_id_R] * ARMS + pools.arm_N[response_id_R]
    per_arm = np.bincount(cell_R, advantage_R, POOLS * ARMS).reshape(POOLS, ARMS)
    return (per_arm - per_arm.sum(axis=1, keepdims=True) * policy(p)) / rows_per_prompt


def deviation(update_PA: np.ndarray, claim_A: np.ndarray) -> float:
    """Largest distance of a component's mean from its claim, in standard errors."""
    error_A = update_PA.std(axis=0) / np.sqrt(len(update_PA))
    return float((np.abs(update_PA.mean(axis=0) - claim_A) / error_A).max())


@cache
def walk(name: str) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """Ends (n_pos, n_neg, correct in the first wave) -> label sequences: all, first is +, first two are + and -.

    The last column is over starts at (1, 1) instead, which is the same thing wherever two responses are always drawn.
    """
    variant = VARIANTS[name]
    judged, first = set(variant.judged_sizes()), variant.waves[0]
    ends: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for column, start in enumerate([(0, 0, 0), (1, 0, 1), (1, 1, 1 if first > 1 else 0)]):
        layer = {start: 1}
        while layer:
            following: dict[tuple[int, int, int], int] = defaultdict(int)
            for (pos, neg, early), ways in layer.items():
                total = pos + neg
                if total and total in judged and (variant.met(pos, neg) or total == variant.cap):
                    ends[pos, neg, early][column] += ways
                    continue
                following[pos + 1, neg, early + (total < first)] += ways
                following[pos, neg + 1, early] += ways
            layer = following
    return {end: (ways[0], ways[1], ways[2]) for end, ways in ends.items()}


def claimed(name: str, p: float, objective: str, weighting: str, kind: str, loo: bool) -> float:
    """The expected update in units of grad p: c+ / p + c- / (1-p), averaged over all ends of a pool."""
    first = VARIANTS[name].waves[0]
    by_counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (pos, neg, _), ways in walk(name).items():
        by_counts[pos, neg] = [a + b for a, b in zip(by_counts[pos, neg], ways, strict=True)]
    factor = 0.0
    for (pos, neg, early), (ways, _, _) in walk(name).items():
        total = pos + neg
        probability = ways * p**pos * (1 - p) ** neg
        q, v = pos / total, pos * neg / (total * max(total - 1, 1))
        if kind == "haldane":
            paths, success_first, mixed_first = by_counts[pos, neg]
            q, v = success_first / paths, mixed_first / paths
        elif kind == "shrunk":
            q = (pos + STRENGTH * PRIOR) / (total + STRENGTH)
            v = q * (1 - (pos - 1 + STRENGTH * PRIOR) / (total - 1 + STRENGTH))
        elif kind == "first_wave":
            q, v = early / first, early * (first - early) / (first * max(first - 1, 1))
        floored = max(q, MIN_RATE)
        weight = min({"linear": 1.0, "log": 1 / floored, "power": 0.5 * floored**-0.5}[objective], MAX_WEIGHT)
        kept_pos = min(pos, KEPT // 2 + max(KEPT - KEPT // 2 - neg, 0))
        kept_neg = min(neg, KEPT - KEPT // 2 + max(KEPT // 2 - pos, 0))
        if weighting == "reference":
            b = pos / total
            own = total / max(total - 1, 1) if loo else 1.0
            pull, push = kept_pos / KEPT * (1 - b) * own, kept_neg / KEPT * b * own
        else:
            pull = push = (v if loo else q * (1 - q)) if kept_pos and kept_neg else 0.0
        factor += probability * weight * (pull / p + push / (1 - p))
    return factor


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_mean_update_is_the_claimed_gradient(name: str, p: float) -> None:
    pools, slope = pools_of(name, p), gradient_of_p(policy(p))
    failures = []
    for weighting, kind, loo in CORRECTIONS:
        if kind == "first_wave" and VARIANTS[name].waves[0] == 1:
            continue  # not offered: the first wave of issue_order is one response
        rates = rates_of(name, kind, pools)
        for label, objective in OBJECTIVES.items():
            advantage = advantage_of(
                pools,
                weight_P=weight_of(objective, rates),
                rates=rates,
                weighting=weighting,
                leave_one_out=loo,
            )
            factor = claimed(name, p, label, weighting, kind, loo)
            if weighting == "objective" and label == "linear" and loo and kind in ("haldane", "first_wave"):
                assert factor == pytest.approx(1.0, rel=1e-9)
            package = gradient_factor(
                VARIANTS[name].rule,
                p,
                n=KEPT,
                weighting=weighting,  # type: ignore[arg-type]
                kind=kind,
                leave_one_out=loo,
                objective=objective,
                min_pass_rate=MIN_RATE,
                max_weight=MAX_WEIGHT,
                prior_mean=PRIOR,
                strength=STRENGTH,
            )
            assert package == pytest.approx(factor, rel=1e-9)
            z = deviation(update(pools, advantage, p, KEPT), factor * slope)
            if z > SIGMAS:
                failures.append((weighting, kind, loo, label, z))
    assert not failures


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("name", ["grpo", "positive(1), waves of 8", "balanced(2,2), waves of 8"])
def test_division_by_the_standard_deviation_multiplies_by_it(name: str, p: float) -> None:
    """normalize: std makes a pool's (1-b) and -b into sqrt((1-b)/b) and -sqrt(b/(1-b)), its share b of correct ones."""
    pools, factor = pools_of(name, p), 0.0
    advantage = advantage_of(
        pools,
        weight_P=np.ones(POOLS),
        normalize="std",
    )
    for (pos, neg, _), (ways, _, _) in walk(name).items():
        if pos and neg:
            kept_pos, b = min(pos, max(KEPT // 2, KEPT - neg)), pos / (pos + neg)
            up, down = ((1 - b) / b) ** 0.5, (b / (1 - b)) ** 0.5
            moved = kept_pos * up / p + (KEPT - kept_pos) * down / (1 - p)
            factor += ways * p**pos * (1 - p) ** neg * moved / KEPT
    found = update(pools, advantage, p, KEPT)
    assert deviation(found, factor * gradient_of_p(policy(p))) < SIGMAS
    undivided = claimed(name, p, "linear", "reference", "pool", False)
    assert deviation(found, undivided * gradient_of_p(policy(p))) > 2 * SIGMAS


def est_pools(p: float) -> tuple[Pools, np.ndarray]:
    """One prompt type, allocations that follow an earlier, noisy prediction: all rows are trained on."""
    rng = np.random.default_rng(11)
    predicted = rng.beta(2, 4, POOLS)
    total_P = allocate(PowerShare(0.5).weight(predicted + 0.01), 8 * POOLS, 4, 32, rng.random(POOLS))
    prompt_N = np.repeat(np.arange(POOLS), total_P)
    index_N = np.arange(len(prompt_N)) - np.repeat(np.cumsum(total_P) - total_P, total_P)
    arm_N = rng.choice(ARMS, len(prompt_N), p=policy(p))
    positive_N = arm_N < CORRECT
    pos_P = np.bincount(prompt_N, positive_N, POOLS).astype(np.int64)
    rows = np.arange(len(prompt_N))
    pools = Pools(arm_N, prompt_N, index_N, positive_N, pos_P, total_P, pos_P, rows, np.ones(len(rows)))
    return pools, total_P


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("loo", [False, True])
def test_estimation_undoes_its_allocation_in_objective_mode_and_shows_it_in_reference_mode(p: float, loo: bool) -> None:
    pools, total_P = est_pools(p)
    own = 1.0 if loo else float((1 - 1 / total_P).mean())
    implicit = 1.0 if loo else float(((total_P - 1) / total_P.mean()).mean())
    slope = gradient_of_p(policy(p))
    for weighting, factor in (("objective", own), ("reference", implicit)):
        advantage = advantage_of(
            pools,
            weight_P=np.ones(POOLS),
            rates=pool(pools.pos_P, total_P),
            weighting=weighting,
            leave_one_out=loo,
        )
        assert deviation(update(pools, advantage, p, 8.0), factor * slope) < SIGMAS
        often = total_P > np.median(total_P)
        drawn_more = update(pools, advantage, p, 8.0)[often]
        share = 1.0 if weighting == "objective" else float(total_P[often].mean() / 8)
        correction = 1.0 if loo else 1 - float((1 / total_P[often]).mean())
        if loo or weighting == "objective":
            assert deviation(drawn_more, share * correction * slope) < SIGMAS


def est_declared(total: int, p: float, objective: str, kind: str, loo: bool) -> float:
    """The expected update of a prompt with `total` responses in units of grad p (objective mode): f'(q) times the
    contrast of its two sides, 0 where one side is empty."""
    factor = 0.0
    for pos in range(1, total):
        q, others = pos / total, (pos - 1) / (total - 1)
        if kind == "shrunk":
            q = (pos + STRENGTH * PRIOR) / (total + STRENGTH)
            others = (pos - 1 + STRENGTH * PRIOR) / (total - 1 + STRENGTH)
        floored = max(q, MIN_RATE)
        weight = min({"linear": 1.0, "log": 1 / floored, "power": 0.5 * floored**-0.5}[objective], MAX_WEIGHT)
        contrast = q * (1 - (others if loo else q))
        factor += comb(total, pos) * p**pos * (1 - p) ** (total - pos) * weight * contrast / (p * (1 - p))
    return factor


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("kind", ["pool", "shrunk"])
def test_estimation_follows_the_declared_objective_whatever_it_allocates(kind: str, p: float) -> None:
    pools, total_P = est_pools(p)
    slope, failures = gradient_of_p(policy(p)), []
    sizes, counts = np.unique(total_P, return_counts=True)
    rates = estimate(
        kind,  # type: ignore[arg-type]
        pools.pos_P,
        total_P,
        first_pos_P=pools.pos_P,
        first_total_P=total_P,
        rule=StopRule(FixedExit(1), (32,), 32),
        prior_mean_P=np.full(POOLS, PRIOR),
        strength=STRENGTH,
    )
    for label, objective in OBJECTIVES.items():
        weight_P = weight_of(objective, rates)
        for loo in (False, True):
            advantage = advantage_of(
                pools,
                weight_P=weight_P,
                rates=rates,
                weighting="objective",
                leave_one_out=loo,
            )
            claim = np.average([est_declared(int(size), p, label, kind, loo) for size in sizes], weights=counts)
            z = deviation(update(pools, advantage, p, 8.0), float(claim) * slope)
            if z > SIGMAS:
                failures.append((label, loo, z))
    assert not failures


SHARES = {"p^-1/2": PowerShare(0.5), "1/p": PowerShare(1.0), "sqrt((1-p)/p)": VarianceShare(), "none": None}


def est_claimed(total: int, p: float, objective: str, share: str, loo: bool) -> float:
    """The expected update of a prompt with `total` responses in units of grad p, summed over its rows (reference mode):
    the gradient's part f'(q) / w_sample(q) of the weight, with q the pool's share, over all counts of correct ones."""
    factor = 0.0
    for pos in range(total + 1):
        probability = comb(total, pos) * p**pos * (1 - p) ** (total - pos)
        b = pos / total
        q = max(b, MIN_RATE) if share == "none" else min(max(b, MIN_RATE), 1 - MIN_RATE)
        whole = {"linear": 1.0, "log": 1 / q, "power": 0.5 * q**-0.5}[objective]
        sampled = {"p^-1/2": q**-0.5, "1/p": 1 / q, "sqrt((1-p)/p)": ((1 - q) / q) ** 0.5, "none": 1.0}[share]
        own = total / (total - 1) if loo else 1.0
        push = pos * (1 - b) * own / p + (total - pos) * b * own / (1 - p)
        factor += probability * min(whole / sampled, MAX_WEIGHT) * push
    return factor


def est_update(pools: Pools, p: float, objective: Objective, share: SamplingShare | None, loo: bool) -> np.ndarray:
    rates = pool(pools.pos_P, pools.total_P)
    advantage = advantage_of(
        pools,
        weight_P=weight_of(objective, rates, share),
        rates=rates,
        leave_one_out=loo,
    )
    return update(pools, advantage, p, 8.0)


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("share", SHARES)
def test_estimation_leaves_to_the_gradient_what_sampling_has_not_realised(share: str, p: float) -> None:
    pools, total_P = est_pools(p)
    slope, failures = gradient_of_p(policy(p)), []
    sizes, counts = np.unique(total_P, return_counts=True)
    for label, objective in OBJECTIVES.items():
        for loo in (False, True):
            factors = [est_claimed(size, p, label, share, loo) for size in sizes.tolist()]
            claim = float(np.average(factors, weights=counts)) / 8 * slope
            z = deviation(est_update(pools, p, objective, SHARES[share], loo), claim)
            if z > SIGMAS:
                failures.append((label, loo, z))
    assert not failures


@pytest.mark.parametrize("share", ["p^-1/2", "1/p", "sqrt((1-p)/p)"])
def test_a_dropped_share_is_noticed(share: str) -> None:
    """With the whole weight on the gradient, on top of the responses drawn for it, the update lies far off."""
    pools, total_P = est_pools(0.1)
    factor = np.mean([est_claimed(int(size), 0.1, "log", share, True) for size in total_P[:4000]]) / 8
    slope = gradient_of_p(policy(0.1))
    assert deviation(est_update(pools, 0.1, Log(), None, True), factor * slope) > 3 * SIGMAS


def test_real_rewards_follow_the_gradient_of_the_mean_reward() -> None:
    """Objective weighting, haldane, leave-one-out, adaptive stopping: the mean update is grad E[r]."""
    name, p = "balanced(2,2), waves of 8", 0.4
    pools, pi = pools_of(name, p), policy(p)
    reward_N = REAL[pools.arm_N]
    advantage = advantage_of(
        pools,
        reward_N=reward_N,
        weight_P=np.ones(POOLS),
        rates=haldane(pools.pos_P, pools.total_P, VARIANTS[name].rule),
        weighting="objective",
        leave_one_out=True,
    )
    slope = pi * (REAL - pi @ REAL)
    assert deviation(update(pools, advantage, p, KEPT), slope) < SIGMAS
    assert deviation(update(pools, advantage, p, KEPT), gradient_of_p(pi)) > 2 * SIGMAS


def mutated(which: str, pools: Pools, rates: PassRateEstimates, objective: Objective) -> np.ndarray:
    weight_P = weight_of(objective, rates)
    return advantage_of(
        pools,
        weight_P=np.ones(POOLS) if which == "objective weight" else weight_P,
        rates=PassRateEstimates(rates.rate_P, rates.rate_P * (1 - rates.rate_P)) if which == "contrast" else rates,
        weighting="reference" if which == "row weights" else "objective",
        leave_one_out=which != "leave one out",
    )


@pytest.mark.parametrize("which", ["objective weight", "row weights", "contrast", "leave one out"])
def test_a_dropped_weight_is_noticed(which: str) -> None:
    """The same comparison as above with one factor left out lies more than three times the bound away."""
    name, p = "balanced(2,2), waves of 8", 0.1
    pools, slope = pools_of(name, p), gradient_of_p(policy(p))
    rates = haldane(pools.pos_P, pools.total_P, VARIANTS[name].rule)
    objective = Log() if which == "objective weight" else Linear()
    claim = claimed(name, p, "log" if which == "objective weight" else "linear", "objective", "haldane", True) * slope
    assert deviation(update(pools, mutated("nothing", pools, rates, objective), p, KEPT), claim) < SIGMAS
    assert deviation(update(pools, mutated(which, pools, rates, objective), p, KEPT), claim) > 3 * SIGMAS
