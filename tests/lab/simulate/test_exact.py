"""The dynamic programme against closed forms (algorithm.md section 8). An independent walk: core/test_bandit.py."""

import numpy as np
import pytest

from nemo_ada.core.learning.factor import compute_factors
from nemo_ada.core.learning.objectives import Log
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.lab.simulate.exact import summarise_rule
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


@pytest.mark.parametrize("p", [0.01, 0.1, 0.6])
@pytest.mark.parametrize(("cap", "wave", "k"), [(32, 4, 1), (64, 8, 2), (128, 16, 8), (32, 1, 4), (30, 8, 3)])
def test_capped_waves_of_positive_cost_what_the_binomial_tail_says(cap, wave, k, p):
    """E[N] = sum over waves of their size times P(fewer than k successes before them): the curves of Fig. 10."""
    starts = np.arange(0, cap, wave)
    sizes = np.minimum(wave, cap - starts)
    expected = float(sizes @ stats.binom.cdf(k - 1, starts, p))
    result = summarise_rule(StopRule(PositiveExit(k), (wave,), cap), p)
    assert result.expected_samples == pytest.approx(expected, rel=1e-9)
    assert result.expected_waves == pytest.approx(float(stats.binom.cdf(k - 1, starts, p).sum()), rel=1e-9)
    assert result.p_resolved == pytest.approx(1 - stats.binom.cdf(k - 1, cap, p), rel=1e-9)


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("sizes", [(8,), (4, 2, 6), (1,)])
def test_balanced_costs_what_inclusion_and_exclusion_says(sizes, p):
    k_pos, k_neg, cap = 2, 3, 30
    starts, total = [], 0
    while total < cap:
        starts.append(total)
        total = min(cap, total + sizes[min(len(starts) - 1, len(sizes) - 1)])
    expected = 0.0
    for start, end in zip(starts, [*starts[1:], cap], strict=True):
        few_pos, few_neg = stats.binom.cdf(k_pos - 1, start, p), stats.binom.cdf(k_neg - 1, start, 1 - p)
        both = sum(stats.binom.pmf(i, start, p) for i in range(k_pos) if start - i < k_neg)
        expected += (end - start) * float(few_pos + few_neg - both)
    rule = StopRule(BalancedExit(k_pos, k_neg), sizes, cap)
    assert summarise_rule(rule, p).expected_samples == pytest.approx(expected, rel=1e-9)


def test_the_size_distribution_is_a_distribution_with_the_reported_mean():
    result = summarise_rule(StopRule(BalancedExit(2, 2), (8, 4), 32), 0.2)
    assert sum(result.size_distribution.values()) == pytest.approx(1.0)
    assert sum(size * share for size, share in result.size_distribution.items()) == pytest.approx(
        result.expected_samples
    )
    assert set(result.size_distribution) <= {8, 12, 16, 20, 24, 28, 32}


def test_waste_of_waves_against_the_exact_response_is_as_published():
    """Section 5: 14 % (balanced, p = 0.1) to 86 % (positive, p = 0.95)."""

    def waste(rule, p):
        exact = summarise_rule(StopRule(rule, (1,), 32), p).expected_samples
        return 1 - exact / summarise_rule(StopRule(rule, (8,), 32), p).expected_samples

    assert waste(BalancedExit(2, 2), 0.1) == pytest.approx(0.14, abs=0.015)
    assert waste(PositiveExit(1), 0.95) == pytest.approx(0.86, abs=0.015)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.8])
def test_reference_groups_carry_the_weight_of_section_4(p):
    """A large pool that always mixes, kept half and half: [(1-p)^2 + p^2] / (2 p (1-p)), with 1/p counted twice."""
    rule = StopRule(FixedExit(160), (160,), 160)
    closed = ((1 - p) ** 2 + p**2) / (2 * p * (1 - p))
    assert compute_factors(RowSettings(4, rule), np.array([p]))[0] == pytest.approx(closed, rel=0.015)
    log = AdvantageSettings(objective=Log(), min_pass_rate=1e-3, max_weight=1e6)
    assert compute_factors(RowSettings(4, rule, log), np.array([p]))[0] == pytest.approx(closed / p, rel=0.08)


def test_grpo_loses_one_response_to_its_own_baseline():
    settings = RowSettings(4, StopRule(FixedExit(4), (4,), 4))
    np.testing.assert_allclose(compute_factors(settings, np.array([0.1, 0.7])), 0.75)
