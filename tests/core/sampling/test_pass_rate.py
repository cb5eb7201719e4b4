"""Path counts against an enumeration of every label sequence, and the bias of a pool's own rate."""

from math import lgamma

import numpy as np
import pytest

from nemo_ada.core.sampling import pass_rate
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule, count_paths, find_endings
from tests.core.scripted import met

RULES = [
    StopRule(PositiveExit(1), (8,), 32),
    StopRule(PositiveExit(1), (1,), 9),
    StopRule(PositiveExit(3), (1,), 12),
    StopRule(PositiveExit(2), (4, 2), 11),
    StopRule(BalancedExit(2, 2), (8,), 32),
    StopRule(BalancedExit(2, 3), (1,), 12),
    StopRule(BalancedExit(1, 1), (3, 1, 2), 10),
    StopRule(FixedExit(5), (5,), 5),
    StopRule(FixedExit(7), (3,), 12),
]


def pools_of(rule):
    """(n_pos, N) -> number of label sequences, counted one by one."""
    counted = {}

    def draw(labels, wave):
        size = rule.wave_sizes[min(wave, len(rule.wave_sizes) - 1)]
        size = min(size, rule.cap - len(labels))
        for bits in range(2**size):
            pool = labels + tuple(bits >> i & 1 for i in range(size))
            pos = sum(pool)
            if met(rule.exit, pos, len(pool) - pos) or len(pool) == rule.cap:
                counted[pos, len(pool)] = counted.get((pos, len(pool)), 0) + 1
            else:
                draw(pool, wave + 1)

    draw((), 0)
    return counted


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.cap <= 12], ids=str)
def test_path_counts_are_those_of_an_enumeration(rule):
    for (pos, total), sequences in pools_of(rule).items():
        assert np.exp(count_paths(rule)[total, pos]) == pytest.approx(sequences, rel=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_the_probabilities_of_all_ends_sum_to_one(p):
    for rule in RULES:
        end = find_endings(rule)
        assert end.compute_probability(np.array([p])).sum() == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("exit_rule", "overstated"), [(PositiveExit(1), [0.82, 0.29]), (BalancedExit(2, 2), [0.20, 0.32])]
)
def test_the_pools_own_rate_overstates_as_published(exit_rule, overstated):
    """Section 4's figures were simulated; the exact values are +82.1, +29.7, +20.7 and +32.1 %."""
    end = find_endings(StopRule(exit_rule, (8,), 32))
    for p, published in zip((0.02, 0.1), overstated, strict=True):
        assert end.mean(pass_rate.estimate_from_pool(end.pos_E, end.total_E), p) / p - 1 == pytest.approx(
            published, abs=0.01
        )


def test_path_counts_hold_for_long_pools():
    rule = StopRule(PositiveExit(500), (1,), 3000)  # the numbers of orders differ by a power of e^1500
    counts = count_paths(rule)
    assert counts[500, 500] == 0.0
    assert counts[2000, 500] == pytest.approx(lgamma(2000) - lgamma(500) - lgamma(1501), rel=1e-12)


def test_an_empty_pool_has_a_defined_estimate():
    assert pass_rate.estimate_from_pool(np.array([0]), np.array([0]))[0] == 0.0
