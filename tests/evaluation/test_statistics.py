"""Estimators and tests against independent computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.errors import UserError
from nemo_ada.evaluation.statistics import (
    bootstrap_means,
    detectable_difference,
    estimate,
    paired_test,
    pass_at_k,
    student_p,
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


def test_the_bootstrap_interval_agrees_with_scipy():
    values = rates(400)
    ours = estimate(values, draws=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.mean == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def test_strata_keep_their_weights():
    """Two constant benchmarks: with strata nothing varies; without, their shares do."""
    values, strata = np.repeat([0.0, 1.0], [30, 70]), np.repeat([0, 1], [30, 70])
    assert np.ptp(bootstrap_means(values, strata, 200)) == 0.0
    assert bootstrap_means(values, None, 200).std() > 0.02


def test_prompts_without_a_value_are_left_out_of_an_estimate():
    too_few = pass_at_k(np.array([3, 4]), np.array([3, 4]), 4)
    assert math.isnan(too_few[0]) and too_few[1] == 1.0
    found = estimate(np.array([np.nan, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1]))
    assert found.prompts == 3 and found.mean == pytest.approx(2 / 3)
    assert math.isnan(estimate(np.array([np.nan])).mean)


@pytest.mark.parametrize("freedom", [1, 2, 9, 100, 2000])
def test_the_p_value_of_t_is_scipys(freedom):
    for t in (0.0, 0.3, -1.0, 2.5, 8.0, 40.0):
        assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)


def test_the_paired_test_agrees_with_scipy():
    first = rates(300)
    second = np.clip(first + np.random.default_rng(2).normal(0.01, 0.1, 300), 0, 1)
    found = paired_test(first, second)
    assert found.p_t == pytest.approx(stats.ttest_rel(second, first).pvalue, abs=1e-12)
    assert found.p_bootstrap == pytest.approx(found.p_t, abs=0.02)
    assert found.low < found.difference < found.high


@pytest.mark.parametrize("draws", [10, 999])
def test_a_bootstrap_p_value_is_never_zero_and_no_smaller_than_the_draws_can_show(draws):
    assert paired_test(np.zeros(20), np.linspace(0.5, 1, 20), draws=draws).p_bootstrap == 2 / (draws + 1)


def test_equal_models_differ_by_nothing_and_a_constant_shift_is_certain():
    first = rates(20)
    assert paired_test(first, first).p_t == 1.0 and paired_test(first, first).p_bootstrap == 1.0
    assert paired_test(np.zeros(20), np.ones(20)).p_t == 0.0
    with pytest.raises(UserError, match="at least two prompts"):
        paired_test(first[:1], first[:1])


def power(difference, spread, prompts):
    """Chance that the paired test at 5 % finds a true difference (normal approximation)."""
    shift, z = abs(difference) * math.sqrt(prompts) / spread, stats.norm.ppf(0.975)
    return stats.norm.cdf(shift - z) + stats.norm.cdf(-shift - z)


def test_the_detectable_difference_has_the_power_it_claims():
    found = detectable_difference(spread=0.2, prompts=500)
    assert power(found, 0.2, 500) == pytest.approx(0.8, abs=1e-6)
