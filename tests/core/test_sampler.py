"""One run's sampler over its steps: what it asks, what it learns, what it remembers."""

import json

import numpy as np
import pytest

from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.prompts.allocation import Allocation, PowerRule
from nemo_ada.core.prompts.estimators import EmaBeta, EmaSettings, ValueRegressor
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import Budget, Ledger
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import FailedResponsesError, InvariantError, UserError
from tests.core.scripted import Script, ScriptedSource, advantages_of, predicted

PLAN = SamplingPlan(StopRule(BalancedExit(1, 1), (4,), 8), 4, 40)
EST = SamplingPlan(StopRule(FixedExit(1), (1,), 32), 4, 40)
ROWS = RowSettings(4, PLAN.stop)
ALLOCATION = Allocation(PowerRule(), 2, 16, 0.01)


def sampler(plan=PLAN, *, run_seed=3, **options):
    return AdaSampler(plan, ROWS, run_seed=run_seed, **options)


def one_step(own, step, ids, script, **options):
    sampled = own.run_step(step, ids, ScriptedSource(script, np.random.default_rng(step)), **options)
    assert sampled is not None
    return sampled.rows


def first_requests(own, step, ids):
    source = ScriptedSource(Script.of(*["+-"] * len(ids)), np.random.default_rng(step))
    own.run_step(step, ids, source)
    return source.submitted[0][1]


def knowing(rates, mass=20):
    """An estimator that has seen `mass` responses of each prompt."""
    estimator = EmaBeta()
    pos = np.array([round(rate * mass) for rate in rates.values()])
    estimator.update(list(rates), pos, np.full(len(rates), mass))
    return estimator


def test_the_estimator_learns_each_prompts_pool_under_its_id():
    own = sampler(estimator=EmaBeta(EmaSettings(decay=0.5)))
    one_step(own, 0, ["a", "b"], Script.of("+---", "----" * 2))
    assert own.estimator is not None
    np.testing.assert_allclose(predicted(own.estimator, ["b", "a", "new"]), [1 / 10, 2 / 6, 1 / 2])
    one_step(own, 1, ["b", "c"], Script.of("++--", "+---"))
    np.testing.assert_allclose(predicted(own.estimator, ["a", "b"]), [2 / 6, (2 + 1) / (0.5 * 8 + 4 + 2)])


def test_predictions_are_counted_against_first_waves_in_tenths():
    own = sampler(estimator=knowing({"low": 0.1, "half": 0.5, "high": 1.0}))
    sampled = own.run_step(
        0, ["half", "low", "high"], ScriptedSource(Script.of("+---", "---++", "++++-"), np.random.default_rng(0))
    )
    drawn, correct = (sampled.lists[f"ada/predicted_{name}"] for name in ("responses", "correct"))
    assert drawn == [0, 4, 0, 0, 0, 4, 0, 0, 0, 4] and correct == [0, 1, 0, 0, 0, 1, 0, 0, 0, 4]
    assert (
        "ada/predicted_responses"
        not in sampler().run_step(0, ["a"], ScriptedSource(Script.of("+-+-"), np.random.default_rng(0))).lists
    )


def test_features_reach_the_estimator_before_and_after_the_step():
    seen = []

    class Watching(EmaBeta):
        def predict_beta(self, prompt_ids, features_PF=None):
            seen.append(("beta", list(prompt_ids), features_PF))
            return super().predict_beta(prompt_ids)

        def update(self, prompt_ids, pos_P, total_P, features_PF=None):
            seen.append(("update", list(prompt_ids), features_PF))
            super().update(prompt_ids, pos_P, total_P)

    features = np.arange(6.0).reshape(2, 3)
    one_step(sampler(estimator=Watching()), 0, ["a", "b"], Script.of("+-", "-+"), features_PF=features)
    assert [(call, ids) for call, ids, _ in seen] == [("beta", ["a", "b"]), ("update", ["a", "b"])]
    assert all(found is features for _, _, found in seen)


def test_the_estimators_prior_is_the_prior_of_the_shrunk_baseline():
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 40)
    settings = RowSettings(4, plan.stop, AdvantageSettings(baseline="shrunk"))
    own = AdaSampler(plan, settings, run_seed=0, estimator=EmaBeta(EmaSettings(prior_negative=2.0)))
    rows = one_step(own, 0, ["a"], Script.of("-"))
    np.testing.assert_allclose(rows.advantage_R, -1 / 6)  # (0 + a) / (3 + a + b)


@pytest.mark.parametrize(("shrunk", "there"), [(True, False), (False, True)])
def test_the_share_without_signal_is_left_out_where_equal_labels_teach(shrunk, there):
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 40)
    settings = RowSettings(4, plan.stop, AdvantageSettings(baseline="shrunk" if shrunk else "pool"))
    own = AdaSampler(plan, settings, run_seed=0, estimator=EmaBeta(EmaSettings(prior_negative=2.0)))
    sampled = own.run_step(0, ["a", "b"], ScriptedSource(Script.of("-", "+-"), np.random.default_rng(0)))
    assert [name in sampled.metrics for name in ("ada/zero_signal_groups", "ada/zero_signal_groups_if_grpo")] == [
        there,
        there,
    ]


def test_explained_variance_is_that_of_a_recount():
    own = sampler(estimator=knowing({"low": 0.1, "high": 0.9}))
    script = Script.of("-+--", "+++-")
    sampled = own.run_step(0, ["low", "high"], ScriptedSource(script, np.random.default_rng(0)))
    a_P, b_P = knowing({"low": 0.1, "high": 0.9}).predict_beta(["low", "high"])
    label = script.reward_PI[:, :4]
    error = ((label - (a_P / (a_P + b_P))[:, None]) ** 2).mean()
    assert sampled.metrics["ada/explained_variance"] == pytest.approx(1 - error / label.var())
    same = sampler(estimator=knowing({"low": 0.1})).run_step(
        0, ["low"], ScriptedSource(Script.of("-"), np.random.default_rng(0))
    )
    assert "ada/explained_variance" not in same.metrics


def test_est_allocates_n_per_prompt_by_predicted_rate_within_its_bounds():
    rates = {"hard": 0.0, "middle": 0.5, "easy": 1.0, "other": 0.5}
    own = sampler(EST, estimator=knowing(rates), allocation=ALLOCATION)
    asked = first_requests(own, 0, list(rates))
    counts = np.bincount(asked.prompt_N)
    assert counts.sum() == 16
    predicted = np.array([1 / 22, 11 / 22, 21 / 22, 11 / 22]) + 0.01
    np.testing.assert_allclose(counts, 16 * predicted**-0.5 / (predicted**-0.5).sum(), atol=1.0)
    assert counts[0] > counts[1] >= counts[2] >= 2
    np.testing.assert_array_equal(asked.index_N, np.concatenate([np.arange(count) for count in counts]))


def test_responses_left_over_by_equal_rates_go_to_other_prompts_in_another_step_or_run():
    ids = [f"p{i}" for i in range(12)]
    plan = SamplingPlan(StopRule(FixedExit(1), (1,), 32), 3, 40)

    def favoured(run_seed, step):
        weights = {name: 0.1 if i < 5 else 0.8 for i, name in enumerate(ids)}
        own = sampler(plan, run_seed=run_seed, estimator=knowing(weights), allocation=Allocation(PowerRule(), 1, 9, 0))
        counts = np.bincount(first_requests(own, step, ids).prompt_N)
        assert counts.sum() == 36
        return tuple(counts.tolist())

    assert favoured(1, 1) == favoured(1, 1)
    assert len({favoured(1, step) for step in range(8)}) > 1
    assert len({favoured(run, 1) for run in range(8)}) > 1


def test_failing_prompts_are_named_by_their_ids():
    with pytest.raises(FailedResponsesError, match="prompts bad one"):
        one_step(sampler(), 0, ["fine", "bad one"], Script.of("+-", "x"))


def test_each_step_draws_and_keeps_under_its_own_number():
    ids = ["a", "b"]
    seeds = [first_requests(sampler(), step, ids).seed_N.tolist() for step in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert first_requests(sampler(run_seed=4), 0, ids).seed_N.tolist() != seeds[0]
    plan = SamplingPlan(StopRule(FixedExit(24), (24,), 24), 4, 40)
    script = Script.random(1, [0.5] * 8)
    names = [f"p{i}" for i in range(8)]
    kept = [
        one_step(sampler(plan, run_seed=run), step, names, script).pool_R.tolist()
        for run, step in ((3, 0), (3, 1), (4, 0))
    ]
    assert kept[0] != kept[1]
    assert kept[0] != kept[2]


@pytest.mark.parametrize("orders", [["drop"], [None, "drop"], ["drain", "drop"]])
def test_a_dropped_step_changes_nothing(orders):
    own = sampler(estimator=EmaBeta(EmaSettings(decay=0.5)))
    one_step(own, 0, ["a", "b"], Script.of("+-", "-+"))
    before = json.dumps(own.state_dict(), default=np.ndarray.tolist)
    left = list(orders)
    source = ScriptedSource(Script.of("+-", "-+"), np.random.default_rng(1))
    assert own.run_step(1, ["a", "c"], source, stop_check=lambda: left.pop(0) if left else None) is None
    assert json.dumps(own.state_dict(), default=np.ndarray.tolist) == before


def test_final_rewards_change_the_update_and_not_the_pools():
    script = Script.of("+---", "--+-")
    plain, scaled = (
        sampler().run_step(0, ["a", "b"], ScriptedSource(script, np.random.default_rng(0)), final_rewards=final_rewards)
        for final_rewards in (None, lambda result: 10.0 * result.reward_N)
    )
    assert plain is not None
    assert scaled is not None
    np.testing.assert_allclose(scaled.rows.advantage_R, 10.0 * plain.rows.advantage_R)
    np.testing.assert_array_equal(scaled.result.reward_N, 10.0 * plain.result.reward_N)
    np.testing.assert_array_equal(scaled.raw_reward_N, plain.result.reward_N)
    np.testing.assert_array_equal(scaled.result.positive_N, plain.result.positive_N)


def test_the_state_of_a_sampler_without_estimator_is_its_latency_model():
    own, other = sampler(), sampler(estimator=knowing({"a": 0.5}))
    one_step(own, 0, ["a"], Script.of("+-"))
    state = own.state_dict()
    assert state["estimator"] is None
    other.load_state_dict(state)  # a run that starts to use an estimator keeps it as it is
    assert other.estimator is not None
    assert predicted(other.estimator, ["a"])[0] == pytest.approx(0.5)
    assert other.latency.state_dict() == own.latency.state_dict()
    fresh = sampler()
    fresh.load_state_dict(other.state_dict())  # and one that no longer uses it ignores what was saved
    assert fresh.latency.state_dict() == own.latency.state_dict()
    assert fresh.state_dict()["estimator"] is None


def test_the_state_of_another_estimator_is_refused():
    own, other = sampler(estimator=EmaBeta(EmaSettings(decay=0.5))), sampler(estimator=ValueRegressor(3))
    with pytest.raises(UserError, match="come from another"):
        other.load_state_dict(own.state_dict())


def test_settings_that_need_an_estimator_are_refused_without_one():
    with pytest.raises(InvariantError, match="need an estimator"):
        sampler(EST, allocation=ALLOCATION)
    with pytest.raises(InvariantError, match="need an estimator"):
        AdaSampler(PLAN, RowSettings(4, ROWS.stop, AdvantageSettings(baseline="shrunk")), run_seed=0)


def test_a_step_counts_its_responses_and_their_failures_by_cause():
    own = sampler()
    source = ScriptedSource(Script.of("+x-", "+-"), np.random.default_rng(0))
    sampled = own.run_step(0, ["a", "b"], source)
    assert sampled is not None
    failed = {name: value for name, value in sampled.metrics.items() if name.startswith("ada/failed/")}
    assert sampled.metrics["ada/samples_drawn"] == len(source.issued)
    assert list(failed.values()) == [1.0]
    assert sum(next(iter(sampled.lists.values()))) == 2


@pytest.mark.parametrize(
    ("ask", "refused"),
    [
        (
            lambda: advantage_of_two(weighting="objective", prior_P=(np.ones(1), np.ones(1))),
            "needs reference weighting",
        ),
        (lambda: advantage_of_two(weighting="objective", normalize="std"), "needs normalize=none"),
        (lambda: Ledger(Budget(max_samples=3)).reserve(4, 0, first_waves=True), "against max_samples"),
        (lambda: Ledger(Budget(max_tokens=3)).reserve(1, 4), "against max_tokens"),
        (lambda: Ledger(Budget()).settle(1, 1), "settled 1 tokens of 0"),
    ],
    ids=["posterior", "objective", "samples", "tokens", "settled"],
)
def test_a_broken_promise_of_our_own_code_is_no_silent_number(ask, refused):
    with pytest.raises(InvariantError, match=refused):
        ask()


def advantage_of_two(**options):
    labels, row = np.array([1.0, 0.0]), np.arange(2)[None]
    return advantages_of(labels, labels > 0, np.zeros(2, int), row, np.ones((1, 2)), weight_P=np.ones(1), **options)


def test_the_estimator_of_a_shrunk_baseline_learns_mean_rewards():
    rows = RowSettings(4, StopRule(FixedExit(4), (4,), 4), AdvantageSettings(baseline="shrunk"))
    own = AdaSampler(SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 40), rows, run_seed=3, estimator=EmaBeta())
    graded = Script(np.tile([0.5, 0.25, 0.0, 0.75], (1, 64)), np.full((1, 256), 3, np.int64))
    sampled = own.run_step(1, ["a"], ScriptedSource(graded, np.random.default_rng(1)))
    assert sampled is not None and own.estimator is not None
    np.testing.assert_allclose(predicted(own.estimator, ["a"]), [(1.5 + 1) / (4 + 2)])
    assert "ada/explained_variance" not in sampled.metrics, "predicted rewards are not pass rates"
    assert "ada/predicted_responses" not in sampled.lists


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.5), (-2.0, 1.0)])
def test_a_shrunk_baseline_follows_rewards_to_another_range(low, high):
    """Rewards of another scale give the same step with that scale's advantages: NeMo-RL's `reward_scaling`."""
    stop = StopRule(FixedExit(4), (4,), 4)
    made = {}
    for ends in ((0.0, 1.0), (low, high)):
        rows = RowSettings(4, stop, AdvantageSettings(baseline="shrunk"), reward_range=ends)
        own = AdaSampler(SamplingPlan(stop, 4, 40), rows, run_seed=3, estimator=EmaBeta())
        source = ScriptedSource(Script.of("+-+-", "-", "+"), np.random.default_rng(1))

        def scaled(result, ends=ends):
            return ends[0] + result.reward_N * (ends[1] - ends[0])

        made[ends] = own.run_step(1, ["a", "b", "c"], source, final_rewards=scaled), own
    (plain, plain_own), (other, other_own) = made.values()
    np.testing.assert_allclose(other.rows.advantage_R, plain.rows.advantage_R * (high - low))
    assert (plain.rows.advantage_R != 0).all(), "equal labels teach, too"
    np.testing.assert_allclose(*(predicted(one.estimator, ["a", "b", "c"]) for one in (plain_own, other_own)))
    assert other.metrics["ada/explained_variance"] == plain.metrics["ada/explained_variance"]
    assert other.lists["ada/predicted_responses"] == plain.lists["ada/predicted_responses"]


def test_a_reward_outside_the_range_ends_the_step():
    stop = StopRule(FixedExit(4), (4,), 4)
    rows = RowSettings(4, stop, AdvantageSettings(baseline="shrunk"), reward_range=(-1.0, 1.0))
    own = AdaSampler(SamplingPlan(stop, 4, 40), rows, run_seed=3, estimator=EmaBeta())
    source = ScriptedSource(Script.of("+-"), np.random.default_rng(1))
    with pytest.raises(UserError, match=r"in \[-1, 1\].*baseline: pool"):
        own.run_step(1, ["a"], source, final_rewards=lambda result: result.reward_N * 2)
