"""The exit conditions against their definitions, over every small pool (algorithm.md section 2)."""

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PoolView, PositiveExit
from tests.core.scripted import met

POS, NEG = (grid.ravel() for grid in np.mgrid[0:7, 0:7])
RULES = [PositiveExit(), PositiveExit(3), BalancedExit(1, 1), BalancedExit(2, 3), BalancedExit(3, 0), FixedExit(5)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_pool_is_judged_by_its_counts(rule):
    np.testing.assert_array_equal(rule.met(PoolView(POS, NEG)), met(rule, POS, NEG))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_pool_lacks_a_label_when_no_number_of_the_other_one_meets_the_exit(rule):
    lacks_pos, lacks_neg = rule.lacking(PoolView(POS, NEG))
    np.testing.assert_array_equal(lacks_pos, ~rule.met(PoolView(POS, NEG + 99)))
    np.testing.assert_array_equal(lacks_neg, ~rule.met(PoolView(POS + 99, NEG)))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_smaller_pool_meets_the_exit(rule):
    size = POS + NEG
    assert size[rule.met(PoolView(POS, NEG))].min() == rule.smallest_pool
