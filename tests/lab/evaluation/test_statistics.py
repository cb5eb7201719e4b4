"""Estimators and tests against independent computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import (
    detectable_difference,
    estimate,
    flip_test,
    paired_test,
    pass_at_k,
)
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_response(case):
    n, c, k = case
    rewards = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(rewards, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_many_responses_does_not_overflow():
    expected = 1 - math.exp(
        math.lgamma(9901) + math.lgamma(10001 - 1000) - math.lgamma(9901 - 1000) - math.lgamma(10001)
    )
    assert pass_at_k(np.array([10_000]), np.array([100]), 1000)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(UserError, match="pass@k"):
        pass_at_k(np.array([n]), np.array([c]), k)


def rates(count, seed=0):
    return np.random.default_rng(seed).beta(0.6, 1.2, count)


@pytest.mark.parametrize(("right", "count"), [(0, 30), (1, 30), (15, 30), (500, 500), (3, 4), (1, 1)])
def test_the_interval_of_one_response_per_problem_is_wilsons(right, count):
    found = estimate(np.repeat([1.0, 0.0], [right, count - right]))
    wilsons = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilsons.low - 1e-9 <= found.low and found.high <= wilsons.high + 1e-9
    if count - right in (0, count) or count == 500:
        assert (found.low, found.high) == pytest.approx((wilsons.low, wilsons.high))
    assert found.high > found.low


def test_the_interval_of_many_even_values_is_that_of_t():
    values = np.random.default_rng(0).uniform(0.2, 0.8, 400)
    found, theirs = estimate(values), stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=2e-3)


def share_covered(problems, k, rate, alike, cases=600):
    """Share of the intervals that hold the true rate. alike: a + b of the Beta distribution; None: equal problems."""
    rng, covered = np.random.default_rng([problems, k, round(1000 * rate)]), 0
    for _ in range(cases):
        chance_P = rng.beta(rate * alike, (1 - rate) * alike, problems) if alike else np.full(problems, rate)
        found = estimate(rng.binomial(k, chance_P) / k)
        covered += found.low <= rate <= found.high
    return covered / cases


@pytest.mark.parametrize(
    ("problems", "k", "rate", "alike"),
    [(30, 1, 0.3, None), (100, 1, 0.5, None), (30, 32, 0.5, None), (30, 32, 0.02, 1.0), (30, 32, 0.3, 1.0),
     (100, 32, 0.98, 1.0), (500, 32, 0.1, 4.0)],
)  # fmt: skip
def test_the_intervals_cover_the_true_rate_as_often_as_they_say(problems, k, rate, alike):
    assert 0.93 <= share_covered(problems, k, rate, alike) <= 0.98


def test_strata_keep_their_weights():
    """Two constant benchmarks: nothing varies within them, so the interval is narrower than without strata."""
    values, strata = np.repeat([0.0, 1.0], [30, 70]), np.repeat([0, 1], [30, 70])
    within, without = estimate(values, strata), estimate(values)
    assert within.value == without.value == 0.7
    assert 0.0 < within.high - within.low < 0.7 * (without.high - without.low)
    one = estimate(np.append(values, 1.0), np.append(strata, 2))
    assert one.low < 0.7 < one.high, "a benchmark of one problem has an interval, too"


def test_prompts_without_a_value_are_left_out_of_an_estimate():
    too_few = pass_at_k(np.array([3, 4]), np.array([3, 4]), 4)
    assert math.isnan(too_few[0]) and too_few[1] == 1.0
    found = estimate(np.array([np.nan, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1]))
    assert found.value == pytest.approx(2 / 3)
    assert math.isnan(estimate(np.array([np.nan])).value)


def test_the_paired_test_agrees_with_scipy():
    first = rates(300)
    second = first + np.random.default_rng(2).uniform(-0.09, 0.11, 300)
    found, theirs = paired_test(first, second), stats.ttest_rel(second, first)
    assert found.p_t == pytest.approx(theirs.pvalue, rel=0.02)
    assert (found.low, found.high) == pytest.approx(theirs.confidence_interval(0.95), rel=0.02)
    assert found.p_flips == pytest.approx(found.p_t, abs=0.02)


def test_the_sign_flip_test_of_single_responses_is_the_exact_test_of_mcnemar():
    difference = np.repeat([1.0, -1.0, 0.0], [9, 2, 40])
    exact = stats.binomtest(9, 11).pvalue
    assert flip_test(difference) == pytest.approx(exact, abs=0.01)
    assert flip_test(np.ones(40)) == pytest.approx(1 / 10_001)


def test_the_paired_interval_covers_and_its_test_holds_its_level():
    rng, rejected = np.random.default_rng(0), {"interval": 0, "t": 0, "flips": 0}
    for _ in range(500):
        chance_P = rng.beta(0.5, 0.5, 30)
        found = paired_test(*(rng.binomial(4, chance_P) / 4 for _ in range(2)))
        rejected["interval"] += not found.low <= 0.0 <= found.high
        rejected["t"] += found.p_t <= 0.05
        rejected["flips"] += found.p_flips <= 0.05
    assert all(count <= 0.075 * 500 for count in rejected.values()) and rejected["interval"] >= 5


def test_equal_models_differ_by_nothing_and_the_interval_says_how_sure_that_is():
    first = rates(20)
    same, shifted = paired_test(first, first), paired_test(np.zeros(20), np.ones(20))
    assert same.p_t == same.p_flips == 1.0 and same.low < -0.05 < 0.05 < same.high and same.detectable > 0.1
    assert 0.0 < shifted.p_t < 1e-5 and 0.5 < shifted.low < shifted.high == 1.0
    with pytest.raises(UserError, match="at least two prompts"):
        paired_test(first[:1], first[:1])


def test_a_paired_test_over_strata_compares_within_them():
    strata = np.repeat([0, 1], 50)
    first, second = np.zeros(100), np.where(strata, 0.5, 0.1) + np.tile([0.01, -0.01], 50)
    within, without = paired_test(first, second, strata), paired_test(first, second)
    assert within.high - within.low < 0.1 * (without.high - without.low)
    assert within.difference == pytest.approx(0.3) and within.p_t < without.p_t


def power(difference, spread, prompts):
    """Chance that the paired test at 5 % finds a true difference (normal approximation)."""
    shift, z = abs(difference) * math.sqrt(prompts) / spread, stats.norm.ppf(0.975)
    return stats.norm.cdf(shift - z) + stats.norm.cdf(-shift - z)


def test_the_detectable_difference_has_the_power_it_claims():
    found = detectable_difference(spread=0.2, prompts=500)
    assert power(found, 0.2, 500) == pytest.approx(0.8, abs=1e-6)
