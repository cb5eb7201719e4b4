"""A pool ends when its rewards differ enough, and its rows are its highest and lowest rewards (exits.SpreadExit)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.learning.factor import count_kept
from nemo_ada.core.learning.rows import select, weigh
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, PoolView, SpreadExit, sum_squared_deviations
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import UserError
from tests.core.scripted import Script, collect

WAVE, CAP = 4, 16
REWARD = st.floats(0, 1, width=16)


def pools(reward_PI, *, exit_rule, threshold=0.7):
    reward_PI = np.asarray(reward_PI, np.float64)
    plan = SamplingPlan(StopRule(exit_rule, (WAVE,), CAP), WAVE, 40, positive_threshold=threshold, max_failed_share=1.0)
    script = Script(np.tile(reward_PI, (1, CAP)), np.full((len(reward_PI), reward_PI.shape[1] * CAP), 3))
    return plan, collect(plan, script)[0]


def rows_of(plan, result):
    settings = RowSettings(WAVE, plan.stop)
    selection = select(result, settings, len(result.uid_P), run_seed=3, step=1)
    return weigh(result, selection, settings, prior_P=None)


def test_with_two_rewards_that_are_one_apart_it_is_the_balanced_rule():
    pos_P, neg_P = np.indices((9, 9)).reshape(2, -1)
    pools_P = PoolView(pos_P, neg_P)
    np.testing.assert_array_equal(SpreadExit(1.0).met(pools_P), BalancedExit(1, 1).met(pools_P))


@given(st.lists(REWARD, min_size=1, max_size=8), REWARD)
def test_a_further_reward_never_lowers_the_sum(rewards, further):
    def squares(values):
        return sum_squared_deviations(np.zeros(len(values), np.int64), np.array(values), 1)[0]

    assert squares([*rewards, further]) >= squares(rewards) - 1e-12
    wide = [*rewards, further]
    pool = PoolView(np.ones(1, np.int64), np.ones(1, np.int64), lambda: np.array([squares(wide)]))
    assert SpreadExit(max(wide) - min(wide)).met(pool)[0]


def test_it_draws_until_the_rewards_differ():
    """Four waves for equal rewards, one where two differ by enough, two where small differences have to add up."""
    reward_PI = [[0.3] * 4, [0.3, 0.3, 0.3, 0.8], [0.3, 0.3, 0.7, 0.7], [0.3, 0.3, 0.3, 0.65]]
    _, result = pools(reward_PI, exit_rule=SpreadExit(0.5))
    np.testing.assert_array_equal(result.size_P, [CAP, WAVE, WAVE, 2 * WAVE])
    np.testing.assert_array_equal(result.resolved_P, [False, True, True, True])
    np.testing.assert_array_equal(result.resolved_first_P, [False, True, True, False])


def test_no_label_decides_what_is_drawn():
    reward_PI = np.random.default_rng(0).random((8, 4))
    sizes = [pools(reward_PI, exit_rule=SpreadExit(0.9), threshold=threshold)[1].size_P for threshold in (0.1, 0.9)]
    np.testing.assert_array_equal(*sizes)


def test_its_rows_are_the_highest_and_the_lowest_rewards():
    reward_PI = np.random.default_rng(1).permuted(np.tile(np.linspace(0, 0.6, 8), (5, 1)), axis=1)
    plan, result = pools(reward_PI, exit_rule=SpreadExit(10.0))
    rows = rows_of(plan, result)
    for position in range(5):
        mine = rows.pool_R[rows.prompt_R == position]
        pool = np.sort(result.reward_N[result.prompt_N == position])
        assert len(set(mine.tolist())) == WAVE
        np.testing.assert_allclose(np.sort(result.reward_N[mine]), [*pool[:2], *pool[-2:]])
        own = rows.advantage_R[rows.prompt_R == position]
        np.testing.assert_allclose(own, result.reward_N[mine] - pool.mean())


def test_with_labels_it_keeps_as_many_of_each_as_the_published_rule():
    patterns = np.array(list(itertools.product([0.0, 1.0], repeat=6)))
    plan, result = pools(patterns, exit_rule=SpreadExit(1.0))
    rows = rows_of(plan, result)
    kept_pos_P = np.bincount(rows.prompt_R, result.positive_N[rows.pool_R] * rows.weight_R)
    np.testing.assert_array_equal(kept_pos_P, count_kept(result.pos_P, result.neg_P, WAVE)[0])


def test_a_prompt_without_a_response_has_placeholder_rows():
    plan, result = pools([[float("nan")] * 4, [0.1, 0.2, 0.3, 0.9]], exit_rule=SpreadExit(0.5))
    rows = rows_of(plan, result)
    assert (rows.pool_R[:WAVE] == -1).all() and not rows.weight_R[:WAVE].any() and rows.weight_R[WAVE:].all()


@pytest.mark.parametrize(
    "section",
    [{"advantage": {"weighting": "objective"}},
     {"reserve_prompts": 8}],
)  # fmt: skip
def test_what_has_no_spread_is_refused(section):
    chosen = {"kind": "spread", "difference": 0.5}
    base = {"preset": "ada_seq_lean", "sampling": {"exit": chosen}}
    assert parse_ada_settings(base).plan(4, 400).stop.exit == SpreadExit(0.5)
    with pytest.raises(UserError):
        parse_ada_settings({**base, **section}).plan(4, 400)
