"""The exit conditions against their definitions, over every small pool (algorithm.md section 2)."""

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit, ExitRule, FixedExit, PoolView, PositiveExit
from nemo_ada.core.sampling.paths import StopRule, find_endings
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import UserError
from tests.core.scripted import Script, collect, met

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


class Spent(ExitRule):
    """Enough tokens of all responses together, or the second wave."""

    reads = frozenset({"tokens", "waves"})
    smallest_pool = 1

    def met(self, pools):
        return (pools.tokens_P >= 25) | (pools.wave_P >= 1)


class Late(ExitRule):
    """The third wave."""

    reads = frozenset({"waves"})
    smallest_pool = 6

    def met(self, pools):
        return pools.wave_P >= 2


def test_a_rule_sees_the_tokens_and_the_waves_of_each_pool():
    script = Script.of("+", "-", "+")
    script.tokens_PI[:] = np.array([[3], [10], [20]])
    result, _ = collect(SamplingPlan(StopRule(Spent(), (2,), 20), 4, 40), script)
    assert result.size_P.tolist() == [4, 4, 2], "two waves of 6 and 20 tokens do not suffice, one of 40 does"
    assert result.resolved_first_P.tolist() == [False, False, True]


def test_paths_know_waves_and_refuse_tokens():
    found = find_endings(StopRule(Late(), (2,), 20))
    assert set(found.total_E.tolist()) == {6}
    with pytest.raises(UserError, match=r"Spent reads tokens, so labels alone"):
        find_endings(StopRule(Spent(), (2,), 20))


def test_what_a_rule_does_not_say_that_it_reads_is_not_there():
    with pytest.raises(UserError, match=r'reads = frozenset\(\{"tokens"\}\)'):
        _ = PoolView(POS, NEG).tokens_P
