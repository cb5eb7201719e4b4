"""The budget's promises (algorithm.md section 6) under random labels, lengths, failures and completion orders.
Seconds: test_deadline.py."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.sampling.budget import BOUNDS, Budget, StepLedger
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource
from tests.core.scripted import Driven, Script, collect, wave_oracle

LONGEST = 40
WORST_CASE = {"token_reservation": "worst_case"}
SHORT = {"budget": Budget(max_tokens=1000, expected_tokens=31)}
RATES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries({"scheduler": st.sampled_from(["rounds", "continuous"])})


def waves_of(size):
    return StopRule(BalancedExit(2, 2), (size,), 32)


def plan_with(budget, options):
    return SamplingPlan(
        StopRule(BalancedExit(2, 2), (4, 3), 16), 4, LONGEST, max_failed_share=1.0, budget=budget, **options
    )


def first_responses(options, prompts):
    return prompts * plan_with(Budget(), options).stop.first_wave


@given(RATES, OPTIONS, st.integers(0, 60), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=80)
def test_samples_are_never_exceeded_and_used_where_prompts_want_them(rates, options, spare, seed, reserve):
    cap = first_responses(options, len(rates)) + spare
    plan = plan_with(Budget(max_samples=cap), options)
    script = Script.random(seed, [*rates, *[0.5] * reserve], failed=0.1)
    result, source = collect(plan, script, order=seed, reserve=reserve)
    assert len(source.issued) == summarise(result)["samples_drawn"] <= cap
    assert summarise(result, plan.budget)["budget_used_samples"] == len(source.issued) / cap
    if result.cut_P.any():
        assert int(summarise(result)["budget_bound"]) == BOUNDS["max_samples"]
        assert cap - len(source.issued) < 16


@given(RATES, OPTIONS, st.integers(0, 900), st.integers(0, 10**6), st.booleans())
@settings(max_examples=80)
def test_expected_reservation_overshoots_at_most_by_what_was_in_flight(rates, options, spare, seed, seen):
    expected, latency, over_by = 5, LatencyModel(), [0]
    if seen:
        latency.observe(np.array([3, 4, 9]), np.array([3.0, 4.0, 9.0]), np.ones(3))
    cap = first_responses(options, len(rates)) * expected + spare
    plan = plan_with(Budget(max_tokens=cap, expected_tokens=expected), options)
    run = Driven(plan, Script.random(seed, rates, failed=0.1), latency=latency)
    source = run.source

    def note():
        in_flight = sum(int(source.script.tokens_PI[place]) for place in source.running.values())
        later = len(source.submitted) > 1
        assert not later or source.tokens + len(source.submitted[-1][1]) <= cap  # nothing is issued on a spent budget
        over_by[0] = max(over_by[0], source.tokens + in_flight - cap)

    source.watch = note
    result = run_sampling(run.session, source)
    assert summarise(result, plan.budget)["tokens_overshoot"] == max(0, source.tokens - cap) <= max(0, over_by[0])


@pytest.mark.parametrize(("reservation", "each"), [("expected", 95), ("worst_case", 400)])
def test_a_response_reserves_the_length_that_most_responses_keep_to(reservation, each):
    latency = LatencyModel()
    latency.observe(np.arange(1, 101), np.arange(1.0, 101.0), np.ones(100))
    plan = SamplingPlan(
        StopRule(FixedExit(4), (4,), 4), 4, 400, budget=Budget(token_reservation=reservation, expected_tokens=7)
    )
    run = Driven(plan, "+", "+", latency=latency)
    run.ask()
    assert run.session.ledger.tokens_reserved == 8 * each


@given(RATES, OPTIONS, st.integers(0, 30), st.integers(0, 2000), st.floats(0.5, 20), st.integers(0, 10**6))
@settings(max_examples=80)
def test_every_combination_of_caps_ends_with_all_first_waves(rates, options, samples, tokens, seconds, seed):
    first = first_responses(options, len(rates))
    plan = plan_with(Budget(first + samples, first * 6 + tokens, seconds, expected_tokens=6), options)
    latency = LatencyModel()
    for step in range(2):
        script = Script.random(seed + step, rates, failed=0.1)
        result, source = collect(plan, script, order=seed, latency=latency, step=step)
        opening = source.submitted[0][1]
        assert len(opening) == first
        assert (opening.index_N < plan.stop.first_wave).all()
        assert (np.bincount(opening.prompt_N, minlength=len(rates)) == plan.stop.first_wave).all()
        assert result.cut_P.any() <= (int(summarise(result)["budget_bound"]) != BOUNDS["none"])
        for prompt in np.flatnonzero(~result.cut_P).tolist():  # whole waves, but where the budget ended a redraw
            assert result.size_P[prompt] == len(wave_oracle(plan, script, prompt))


def test_a_wave_that_does_not_fit_is_not_cut_short():
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 32), 4, LONGEST, budget=Budget(max_samples=15))
    result, source = collect(plan, Script.of("+", "+"))
    assert result.size_P.sum() == len(source.issued) == 12
    assert sorted(result.size_P.tolist()) == [4, 8] and summarise(result)["prompts_cut"] == 2


def test_the_order_under_a_cap_is_random_seeded_and_stays_within_the_budget():
    served = []
    for run_seed in range(12):
        plan = SamplingPlan(
            StopRule(BalancedExit(2, 2), (4,), 8), 4, LONGEST, scheduler="rounds", budget=Budget(max_samples=28)
        )
        results = [collect(plan, Script.of(*["+"] * 6), order=order, run_seed=run_seed)[0] for order in (0, 1)]
        np.testing.assert_array_equal(results[0].size_P, results[1].size_P)
        served.append(tuple(np.flatnonzero(results[0].size_P == 8).tolist()))
    assert {len(prompts) for prompts in served} == {1}
    assert len(set(served)) > 2


def test_a_wave_that_tokens_refuse_waits_for_what_another_one_will_give_back():
    """First waves reserve 320 of 320 tokens and use 24; of the 296 left one second wave takes 160, the other waits."""
    budget = Budget(max_tokens=320, token_reservation="worst_case")
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 8), 4, LONGEST, budget=budget)
    run = Driven(plan, "+", "-")
    for asked in (8, 4, 4):
        assert len(run.ask()) == asked
        run.end(0.0, *sorted(run.source.running))
    result = run.session.result()
    assert result.size_P.tolist() == [8, 8]
    assert not result.cut_P.any()


@pytest.mark.parametrize(("cut", "bound"), [(5, "max_samples"), (1, "stopped")])
def test_the_reported_bound_is_what_refused_most_prompts(cut, bound):
    """`cut` of six prompts want a second wave that the samples do not allow; then the step is dropped."""
    run = Driven(
        SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 32), 4, LONGEST, budget=Budget(max_samples=24)), *["+"] * 6
    )
    run.ask()
    run.end(1.0, *range(4 * cut))
    assert len(run.ask(1.0)) == 0
    run.session.stop(drain=False)
    run.drop(1.0)
    result = run.session.result()
    assert int(summarise(result)["budget_bound"]) == BOUNDS[bound]
    assert result.cut_P.all()


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]), min_size=1, max_size=10),
    st.integers(0, 60),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=60)
def test_continuous_serves_the_same_prompts_as_rounds_when_samples_run_out(rates, spare, seed, newest_first):
    """Whatever ends first: who ends a wave early has no claim on the budget before the others of that wave."""
    caps = Budget(max_samples=4 * len(rates) + spare)
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4, 3, 5), 20), 4, LONGEST, budget=caps, scheduler="rounds")
    script = Script.random(seed, rates)
    whole, _ = collect(plan, script, order=seed)
    for order in range(3):
        result, _ = collect(replace(plan, scheduler="continuous"), script, order=order, newest_first=newest_first)
        for name in ("size_P", "reward_N", "cut_P"):
            np.testing.assert_array_equal(getattr(result, name), getattr(whole, name))


def test_the_budget_does_not_go_to_short_responses():
    """32 prompts of pass rate 0.1; the last 16 have responses of about 100 tokens, the first of about 20."""
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 32), 4, 400, budget=Budget(max_samples=4 * 32 + 48))
    extra = np.zeros(2)
    for step in range(12):
        rng = np.random.default_rng(step)
        label_PI = (rng.random((32, 200)) < 0.1).astype(np.float64)
        tokens_PI = rng.integers(10, 30, (32, 200)) * np.where(np.arange(32) < 16, 1, 5)[:, None]
        source = DiscreteEventSource(lambda p, i, drawn=(label_PI, tokens_PI): (drawn[0][p, i], drawn[1][p, i]))
        session = SamplingSession(StepState(plan, np.arange(32)), run_seed=0, step=step)
        run_sampling(session, source)
        extra += (session.state.issued_P - 4).reshape(2, 16).sum(axis=1)
    assert extra.sum() == pytest.approx(12 * 48, rel=0.1)
    assert 0.35 < extra[1] / extra.sum() < 0.65  # first come, first served would be 0.01


def test_a_first_wave_is_whole_before_another_prompt_gets_a_second_one():
    """12 samples, two first waves of four; prompt 1 fails once, after prompt 0 has asked for four more."""
    for run_seed in range(8):
        plan = SamplingPlan(
            StopRule(BalancedExit(2, 2), (4,), 32), 4, LONGEST, budget=Budget(max_samples=12), max_failed_share=1.0
        )
        run = Driven(plan, "+", "x+", run_seed=run_seed)
        run.ask()
        run.end(1.0, 0, 1, 2, 3)
        assert len(run.ask(1.0)) == 0
        run.end(2.0, 4, 5, 6, 7)
        assert run.ask(2.0).prompt_N.tolist() == [1]
        run.end(3.0, 8)
        assert len(run.ask(3.0)) == 0
        assert run.session.result().size_P.tolist() == [4, 4]


def test_reserve_prompts_are_taken_in_the_order_of_the_data():
    """So that the next step can go on after the last one that was taken, and none is taken twice or left out."""
    for seed in range(20):
        plan = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, LONGEST, budget=Budget(max_samples=4 * 4 + 10))
        rates = [0.0, 1.0, 0.0, 0.5, *[0.3] * 4]
        result, source = collect(plan, Script.random(seed, rates), order=seed, run_seed=seed, reserve=4)
        taken = sorted({prompt for prompt, _ in source.issued.values()})
        assert taken == list(range(result.used))


# start-up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "caps", "options", "fits", "message"),
    [
        (
            512,
            {"max_samples": 2048},
            {},
            {"stop": waves_of(4)},
            r"2048 .* = 4096; raise it to 4096 or .*wave_size to 4",
        ),
        (512, {"max_samples": 4095}, {}, {"budget": Budget(max_samples=4096)}, "= 4096"),
        (4, {"max_tokens": 1000}, {}, SHORT, r"4 prompts x 8 responses x 100 .* = 3200; raise it"),
        (4, {"max_tokens": 1000, "expected_tokens": 32}, {}, SHORT, r"to at most 31 \(with"),
        (4, {"max_tokens": 1000, "expected_tokens": 31} | WORST_CASE, {}, {"budget": Budget(max_tokens=3200)}, "3200"),
        (
            4,
            {"max_samples": 8},
            {"stop": waves_of(3)},
            {"stop": waves_of(2)},
            "4 prompts x 3 responses = 12",
        ),
    ],
)
def test_first_waves_that_do_not_fit_are_refused_with_what_would(prompts, caps, options, fits, message):
    refused = replace(SamplingPlan(waves_of(8), 4, 100, budget=Budget(**caps)), **options)
    with pytest.raises(UserError, match=message):
        SamplingSession(StepState(refused, np.arange(prompts)), run_seed=0, step=0)
    SamplingSession(StepState(replace(refused, **fits), np.arange(prompts)), run_seed=0, step=0)


def test_the_estimation_variant_is_checked_by_its_allocation():
    plan = SamplingPlan(StopRule(FixedExit(1), (1,), 32), 4, 100, budget=Budget(max_samples=9))
    SamplingSession(StepState(plan, np.arange(2), first_wave_P=np.array([4, 5])), run_seed=0, step=0)
    with pytest.raises(UserError, match="= 10"):
        SamplingSession(StepState(plan, np.arange(2), first_wave_P=np.array([5, 5])), run_seed=0, step=0)


@pytest.mark.parametrize("ended", [False, True])
def test_an_abandoned_group_gives_everything_back_and_starts_again_under_its_number(ended):
    step = StepLedger(Budget(max_samples=8, max_tokens=80), groups=2, first=2, most=4)
    failed, other = step.start(), step.start()
    failed.reserve(2, 10)
    failed.settle(10, 7)
    other.reserve(2, 10)
    if ended:
        failed.end()
    failed.abandon()
    assert (step.use.samples, step.use.tokens, step.tokens_reserved) == (2, 20, 20)
    with pytest.raises(InvariantError):
        step.start(other.number)
    assert step.start(failed.number).number == failed.number == 0


def test_a_share_of_the_prompts_gets_a_share_of_what_all_prompts_share():
    whole = Budget(max_samples=100, max_tokens=1000, max_seconds=7.0)
    assert whole.shrink(8.0) == replace(whole, max_samples=13, max_tokens=125)


@pytest.mark.parametrize(("rule", "cap", "first"), [(FixedExit(4), 8, True), (BalancedExit(2, 2), 4, True),
                                                    (BalancedExit(2, 2), 8, False)])  # fmt: skip
def test_a_plan_knows_whether_anything_is_drawn_after_first_waves(rule, cap, first):
    assert SamplingPlan(StopRule(rule, (4,), cap), 4, LONGEST).stop.one_wave is first
