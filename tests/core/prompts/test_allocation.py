"""Allocation of Est: sums exactly, respects bounds, follows the weights, and equals Fig. 7's optimum.

The oracle of Fig. 7 is a greedy integer optimiser: minimising sum_x c_x / N_x (the variance of the gradient) one
response at a time is exactly optimal for such separable convex costs, and shares nothing with water-filling.
"""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.prompts.allocation import Allocation, PowerRule, allocate
from nemo_ada.errors import UserError


def greedy(cost_P, total, low, high):
    count_P = np.full(len(cost_P), low)
    heap = [(-cost / (low * (low + 1)), x) for x, cost in enumerate(cost_P) if low < high]
    heapq.heapify(heap)
    for _ in range(total - low * len(cost_P)):
        _, x = heapq.heappop(heap)
        count_P[x] += 1
        if count_P[x] < high:
            heapq.heappush(heap, (-cost_P[x] / (count_P[x] * (count_P[x] + 1)), x))
    return count_P


@pytest.mark.parametrize("cost", [lambda p: 1 / p, lambda p: (1 - p) / p], ids=["no baseline", "baseline"])
@pytest.mark.parametrize(("low", "high"), [(1, 4096), (4, 32)])
def test_the_allocation_is_the_optimum_of_figure_7(cost, low, high):
    p = np.random.default_rng(0).uniform(0.01, 0.99, 512)
    ours = allocate(np.sqrt(cost(p)), 4096, low, high, np.zeros(512))
    best = greedy(cost(p), 4096, low, high)
    assert ours.sum() == best.sum() == 4096
    assert np.abs(ours - best).max() <= 1
    assert (cost(p) / ours).sum() <= (cost(p) / best).sum() * 1.001


@settings(max_examples=300)
@given(
    prompts=st.integers(1, 40),
    low=st.integers(0, 8),
    room=st.integers(0, 56),
    share=st.floats(0, 1),
    spread=st.floats(0, 6),
    zeros=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_sums_are_exact_and_bounds_hold(prompts, low, room, share, spread, zeros, seed):
    high, rng = low + room, np.random.default_rng(seed)
    total = low * prompts + round(share * room * prompts)
    weight = np.where(rng.random(prompts) < zeros / 2, 0.0, np.exp(spread * rng.normal(size=prompts)))
    counts = allocate(weight, total, low, high, np.arange(prompts, dtype=float))
    assert counts.sum() == total
    assert (counts >= low).all()
    assert (counts <= high).all()
    order = np.argsort(weight)
    assert (np.diff(counts[order])[np.diff(weight[order]) > 1e-3] >= -1).all()
    free = (counts > low + 1) & (counts < high - 1) & (weight > 0)
    if free.any():  # one level explains all counts between the bounds, up to less than one response each
        assert ((counts[free] - 1) / weight[free]).max() <= ((counts[free] + 1) / weight[free]).min() * (1 + 1e-9)


def test_exponent_zero_is_grpo():
    rate_P = np.random.default_rng(0).uniform(0, 1, 100)
    assert (Allocation(PowerRule(exponent=0.0), 4, 32, 1e-3).compute_responses(rate_P, 8, np.zeros(100)) == 8).all()


def test_ties_are_decided_by_the_seeded_key_and_not_by_position():
    weight, key = np.ones(10), np.random.default_rng(1).random(10)
    counts = allocate(weight, 73, 4, 32, key)
    assert set(np.flatnonzero(counts == 8)) == set(np.argsort(key)[:3])
    order = np.random.default_rng(2).permutation(10)
    np.testing.assert_array_equal(allocate(weight, 73, 4, 32, key[order]), counts[order])


@pytest.mark.parametrize(
    ("prompts", "total", "possible", "low", "high"),
    [(10, 3, "40 to 320", 0, 1), (10, 401, "40 to 320", 40, 41), (1, 50, "4 to 32", 50, 50), (0, 5, "0 to 0", 5, 5)],
)
def test_an_impossible_total_says_what_would_work(prompts, total, possible, low, high):
    with pytest.raises(UserError) as error:
        allocate(np.ones(prompts), total, 4, 32, np.zeros(prompts))
    assert str(error.value) == (
        f"reinforce_ada.sampling: {total} responses cannot be split over {prompts} prompts with min_responses=4 and "
        f"max_responses=32; a total from {possible} would work, or min_responses at most {low} and max_responses at "
        f"least {high}"
    )
    if prompts and low:
        assert allocate(np.ones(prompts), total, low, high, np.zeros(prompts)).sum() == total


def test_a_rate_above_one_does_not_reverse_the_order_of_the_allocation():
    counts = Allocation(PowerRule(exponent=1.0), 1, 40, 0.5).compute_responses(
        np.array([0.6, 1.0, 0.1]), 8, np.arange(3.0)
    )
    assert abs(counts[0] - counts[1]) <= 1 < counts[2] - counts[1]
