"""From pools to training rows: the batch's shape, which groups it holds, and which numbers reach each row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.learning.objectives import Log
from nemo_ada.core.learning.rows import select, weigh
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from tests.core.scripted import Script, collect

STOP = StopRule(BalancedExit(1, 1), (4,), 12)


def drawn(script, *, reserve=0, plan=None, **session):
    plan = plan or SamplingPlan(StopRule(BalancedExit(1, 1), (4,), 12), 4, 40, max_failed_share=1.0)
    return collect(plan, script, reserve=reserve, **session)[0]


def rows_of(result, batch, *, step=1, ab=(1.0, 1.0), **options):
    prior = np.full(len(result.uid_P), ab[0]), np.full(len(result.uid_P), ab[1])
    advantage = {name: value for name, value in options.items() if name in AdvantageSettings.__dataclass_fields__}
    others = {name: value for name, value in options.items() if name not in advantage}
    options = RowSettings(**{"group": 4, "stop": STOP, "advantage": AdvantageSettings(**advantage), **others})
    selection = select(result, options, batch, run_seed=5, step=step)
    return weigh(result, selection, options, prior_P=prior)


def groups(rows, group):
    """The prompt of each group; every row of a group names it."""
    by_group = rows.prompt_R.reshape(-1, group)
    assert (by_group == by_group[:, :1]).all()
    return by_group[:, 0].tolist()


@given(
    st.lists(st.sampled_from([0.0, 0.2, 0.6, 1.0]), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.4, 0.9]),
    st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_a_batch_has_n_rows_per_prompt_and_each_real_one_is_a_response_of_its_own(rates, reserve, n, failed, seed):
    script = Script.random(seed, [*rates, *[0.5] * reserve], failed=failed)
    result = drawn(script, reserve=reserve)
    rows = rows_of(result, len(rates), group=n)
    assert rows.prompt_R.shape == rows.weight_R.shape == rows.advantage_R.shape == (n * len(rates),)
    chosen = groups(rows, n)
    mixed = [p for p in range(len(result.uid_P)) if result.pos_P[p] and result.neg_P[p]]
    others = [p for p in np.flatnonzero(result.drawn_P).tolist() if p not in mixed]
    assert chosen == sorted((mixed + others)[: len(rates)])
    real = rows.weight_R == 1.0
    assert set(rows.weight_R.tolist()) <= {0.0, 1.0}
    assert (result.prompt_N[rows.pool_R[real]] == rows.prompt_R[real]).all()
    assert (result.response_id_N[rows.pool_R[real]] == rows.response_id_R[real]).all()
    assert len(set(rows.pool_R[real].tolist())) == real.sum()
    assert real.sum() == sum(min(n, int(result.size_P[p])) for p in chosen)
    assert not rows.advantage_R[~real].any()
    empty = result.size_P[rows.prompt_R] == 0
    np.testing.assert_array_equal(rows.response_id_R == -1, empty)
    np.testing.assert_array_equal(rows.pool_R == -1, empty)


def test_groups_that_were_replaced_are_left_out_of_the_batch():
    result = drawn(Script.of("-", "+-", "+", "++-", "-+-"), reserve=2)
    assert result.drawn_P.all()
    assert groups(rows_of(result, 3), 4) == [1, 3, 4]
    too_few_mixed = drawn(Script.of("-", "+-", "+", "-"), reserve=1)
    assert groups(rows_of(too_few_mixed, 3), 4) == [0, 1, 2]


@pytest.mark.parametrize("lost", [0, 3])
def test_the_estimation_variant_trains_on_every_response_once(lost):
    plan = SamplingPlan(StopRule(FixedExit(1), (1,), 32), 4, 40, max_failed_share=1.0)
    script = Script.of("+-", "x" * 3 + "-+" if lost else "-+", "-+-+")
    result = drawn(script, plan=plan, first_wave_P=np.array([2, 3, 7]))
    rows = rows_of(result, 3, keep_all=True)
    assert len(result.response_id_N) == 12 - lost
    assert rows.weight_R.tolist() == [1.0] * (12 - lost) + [0.0] * lost
    assert rows.pool_R[: 12 - lost].tolist() == list(range(12 - lost))
    np.testing.assert_array_equal(rows.prompt_R, result.prompt_N[rows.pool_R])
    np.testing.assert_array_equal(rows.response_id_R, result.response_id_N[rows.pool_R])
    assert rows.metrics["placeholder_rows"] == lost


@pytest.mark.parametrize("keep_all", [False, True])
def test_a_step_without_any_response_is_a_batch_of_fillers(keep_all):
    plan = SamplingPlan(StopRule(FixedExit(1), (1,), 4), 4, 40, max_failed_share=1.0)
    result = drawn(Script.of("x", "x"), plan=plan)
    rows = rows_of(result, 2, keep_all=keep_all)
    assert rows.prompt_R.shape == (8,)
    assert rows.pool_R.tolist() == rows.response_id_R.tolist() == [-1] * 8
    assert not rows.weight_R.any()
    assert not rows.advantage_R.any()
    assert not rows.live_R.any()
    assert (rows.metrics["batch_reward"], rows.metrics["response_length_kept"]) == (0.0, 0.0)
    assert (rows.metrics["live_rows"], rows.metrics["placeholder_rows"]) == (0, 8)


def test_live_rows_have_weight_and_advantage():
    rows = rows_of(drawn(Script.of("+-", "-")), 2, group=6)  # a pool of 4: two repeats; a pool of 12 without signal
    assert rows.live_R.tolist() == [True] * 4 + [False] * 8
    assert rows.metrics["live_rows"] == 4
    assert rows.metrics["placeholder_rows"] == 2


# each setting reaches the rows: of one pool of 4 with one correct response, p = 1/4 -----------------------------------

FOUR = StopRule(FixedExit(4), (4,), 4)
ONE_OF_FOUR = Script.of("+---", "-+--")
BASE = np.array([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"objective": Log()}, 4 * BASE),
        ({"objective": Log(), "max_weight": 3.0}, 3 * BASE),
        ({"objective": Log(), "min_pass_rate": 0.4}, 2.5 * BASE),
        ({"objective": Log(), "exponent": 0.5}, 2 * BASE),
        ({"normalize": "std"}, BASE / (np.sqrt(3) / 4 + 1e-6)),
        ({"weighting": "objective", "stop": FOUR}, 4 / 3 * BASE),  # N / (N - 1)
        ({"baseline": "shrunk", "ab": (1.0, 2.0)}, np.array([1 - 1 / 6, -2 / 6, -2 / 6, -2 / 6])),
    ],
    ids=str,
)
def test_each_setting_reaches_the_advantages(options, expected):
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 40)
    rows = rows_of(drawn(ONE_OF_FOUR, plan=plan), 2, **options)
    np.testing.assert_allclose(rows.advantage_R[:4], expected, rtol=1e-9)
    np.testing.assert_allclose(rows.advantage_R[4:], expected[[1, 0, 2, 3]], rtol=1e-9)


def test_objective_weighting_gives_kept_rows_the_inverse_of_their_design():
    """3 of 12 correct, 2 and 2 kept: row weights q / (1/2) and (1 - q) / (1/2) with q = 1/4, baseline q, w = 12/11."""
    result = drawn(Script.of("+++-"), plan=SamplingPlan(StopRule(FixedExit(12), (12,), 12), 4, 40))
    objective = rows_of(result, 1, weighting="objective", stop=StopRule(FixedExit(12), (12,), 12))
    positive = result.positive_N[objective.pool_R]
    assert positive.sum() == 2
    np.testing.assert_allclose(objective.advantage_R, 12 / 11 * np.where(positive, 0.5 * 0.75, 1.5 * -0.25))
    np.testing.assert_allclose(rows_of(result, 1).advantage_R, np.where(positive, 0.75, -0.25))


def test_metrics_are_those_of_a_recount():
    script = Script.random(4, [0.3, 0.6, 0.0, 0.5, 0.5], failed=0.1)
    result = drawn(script, reserve=1)
    rows = rows_of(result, 4, group=6, objective=Log())
    real = rows.weight_R > 0
    kept = [int(place) for place, one in zip(rows.pool_R, real, strict=True) if one]
    chosen = groups(rows, 6)
    assert rows.metrics["batch_reward"] == pytest.approx(np.mean([result.reward_N[i] for i in kept]))
    assert rows.metrics["response_length_kept"] == pytest.approx(np.mean([result.tokens_N[i] for i in kept]))
    weights = [min(1 / max(result.pos_P[p] / max(result.size_P[p], 1), 0.01), 100.0) for p in chosen]
    assert rows.metrics["weight_mean"] == pytest.approx(np.mean(weights))
    assert rows.metrics["weight_max"] == pytest.approx(max(weights))
    assert rows.metrics["live_rows"] == int(rows.live_R.sum())
    assert rows.metrics["placeholder_rows"] == len(rows.weight_R) - len(kept)
