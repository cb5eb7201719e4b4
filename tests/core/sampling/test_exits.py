"""The exit conditions against their definitions, over every small pool (algorithm.md section 2)."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import AtLeastExit, BalancedExit, ExitRule, FixedExit, PositiveExit
from tests.core.scripted import met

POS, NEG = (grid.ravel() for grid in np.mgrid[0:7, 0:7])
RULES = [PositiveExit(), PositiveExit(3), BalancedExit(1, 1), BalancedExit(2, 3), BalancedExit(3, 0), FixedExit(5)]
RULES += [AtLeastExit(PositiveExit(2), 4), AtLeastExit(BalancedExit(2, 2), 3)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_pool_is_judged_by_its_counts(rule: ExitRule) -> None:
    expected = [met(rule, pos, neg) for pos, neg in zip(POS.tolist(), NEG.tolist(), strict=True)]
    assert rule.met(POS, NEG).tolist() == expected


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_shortfall_is_the_least_that_meets_the_exit(rule: ExitRule) -> None:
    short_pos, short_neg, short = rule.shortfall(POS, NEG)
    rest = np.maximum(short - short_pos - short_neg, 0)  # whatever their labels
    for extra in (0, rest):
        assert rule.met(POS + short_pos + extra, NEG + short_neg + rest - extra).all()
    lacks = (short_pos > 0) | (short_neg > 0) | (short > 0)
    np.testing.assert_array_equal(~lacks, rule.met(POS, NEG))
    for lack, fewer in ((short_pos, (1, 0)), (short_neg, (0, 1))):
        pos, neg = POS + short_pos - fewer[0], NEG + short_neg - fewer[1]
        assert not rule.met(pos, neg)[lack > 0].any()
    only_size = (rest > 0) & (short_pos == 0)
    assert not rule.met(POS + rest - 1, NEG)[only_size].any()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_smaller_pool_meets_the_exit(rule: ExitRule) -> None:
    size = POS + NEG
    assert size[rule.met(POS, NEG)].min() == rule.smallest_pool
