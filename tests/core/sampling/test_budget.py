"""The budget's promises (algorithm.md section 6) under random labels, lengths, failures and completion orders.

1. samples: never exceeded. 2. tokens, worst_case: never exceeded. 3. tokens, expected: exceeded at most by what was in
flight. 4. seconds: nothing is issued that is expected to end late. 5. first waves come first; if they do not fit, the
session does not start and says what would. 6. A session always ends, without an error, and says which cap bound it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.errors import UserError
from nemo_ada.simulate.engine import DiscreteEventSource
from tests.core.scripted import Script, ScriptedSource, collect, wave_oracle

LONGEST = 40
RATES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries(
    {
        "scheduler": st.sampled_from(["rounds", "continuous"]),
        "window": st.sampled_from([None, 1, 3, 6]),
    }
)


def plan_with(caps: Caps, options: dict, **more: object) -> SamplingPlan:
    arguments: dict = {"max_failed_share": 1.0, "caps": caps, **options, **more}
    return SamplingPlan(BalancedExit(2, 2), (4, 3), 16, 4, LONGEST, **arguments)


def first_responses(plan: SamplingPlan, prompts: int) -> int:
    return prompts * plan.first_issue


@given(RATES, OPTIONS, st.integers(0, 60), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=100)
def test_samples_are_never_exceeded_and_used_where_prompts_want_them(rates, options, spare, seed, reserve):
    plan = plan_with(Caps(), options)
    cap = first_responses(plan, len(rates)) + spare
    plan = plan_with(Caps(max_samples=cap), options)
    script = Script.random(seed, [*rates, *[0.5] * reserve], failed=0.1)
    result, source = collect(plan, script, order=seed, reserve=reserve)
    assert len(source.issued) == result.stats["samples_drawn"] <= cap
    assert result.stats["budget_used_samples"] == len(source.issued) / cap
    if result.cut_P.any():
        assert BOUNDS[int(result.stats["budget_bound"])] == "max_samples"
        assert cap - len(source.issued) < (16 if options["window"] is None else 1)


@given(RATES, OPTIONS, st.integers(0, 900), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=100)
def test_tokens_are_never_exceeded_with_worst_case_reservation(rates, options, spare, seed, reserve):
    plan = plan_with(Caps(), options)
    cap = first_responses(plan, len(rates)) * LONGEST + spare
    plan = plan_with(Caps(max_tokens=cap), options, token_reservation="worst_case")
    script = Script.random(seed, [*rates, *[0.5] * reserve], failed=0.1)
    source = ScriptedSource(script, np.random.default_rng(seed))

    def could_end_within_the_cap() -> None:
        assert source.tokens + LONGEST * len(source.running) <= cap

    source.watch = could_end_within_the_cap  # at each submission
    session = SamplingSession(plan, np.arange(len(rates) + reserve), run_seed=0, step=0, reserve=reserve)
    result = run_sampling(session, source)
    assert source.tokens == result.stats["tokens_drawn"] <= cap
    assert result.stats["tokens_overshoot"] == 0
    assert session.ledger.tokens_reserved == 0


@given(RATES, OPTIONS, st.integers(0, 900), st.integers(0, 10**6), st.booleans())
@settings(max_examples=100)
def test_expected_reservation_overshoots_at_most_by_what_was_in_flight(rates, options, spare, seed, seen):
    expected = 5
    cap = first_responses(plan_with(Caps(), options), len(rates)) * expected + spare
    plan = plan_with(Caps(max_tokens=cap), options, expected_tokens=expected)
    source = ScriptedSource(Script.random(seed, rates, failed=0.1), np.random.default_rng(seed))
    over_by = [0]

    def note() -> None:
        in_flight = sum(int(source.script.tokens_PI[place]) for place in source.running.values())
        later = len(source.submitted) > 1
        assert not later or source.tokens + len(source.submitted[-1][1]) <= cap  # nothing is issued on a spent budget
        over_by[0] = max(over_by[0], source.tokens + in_flight - cap)

    source.watch = note
    latency = LatencyModel()
    if seen:
        latency.observe(np.array([3, 4, 9]), np.array([3]), np.array([3.0]), np.array([1.0]))
    result = run_sampling(SamplingSession(plan, np.arange(len(rates)), run_seed=0, step=0, latency=latency), source)
    assert result.stats["tokens_overshoot"] == max(0, source.tokens - cap) <= max(0, over_by[0])


@pytest.mark.parametrize(("reservation", "each"), [("expected", 95), ("worst_case", 400)])
def test_a_response_reserves_the_length_that_most_responses_keep_to(reservation, each):
    latency = LatencyModel()
    latency.observe(np.arange(1, 101), np.array([3]), np.array([3.0]), np.array([1.0]))
    plan = SamplingPlan(FixedExit(4), (4,), 4, 4, 400, token_reservation=reservation, expected_tokens=7)
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    session.next_requests(0.0)
    assert session.ledger.tokens_reserved == 8 * each


@given(RATES, OPTIONS, st.integers(0, 30), st.integers(0, 2000), st.floats(0.5, 20), st.integers(0, 10**6))
@example([0.0] * 3, {"scheduler": "continuous", "window": 3}, 13, 271, 8.0, 535)  # waited for ever
@settings(max_examples=100)
def test_every_combination_of_caps_ends_with_all_first_waves(rates, options, samples, tokens, seconds, seed):
    first = first_responses(plan_with(Caps(), options), len(rates))
    caps = Caps(first + samples, first * 6 + tokens, seconds)
    plan = plan_with(caps, options, expected_tokens=6)
    latency = LatencyModel()
    for step in range(2):
        script = Script.random(seed + step, rates, failed=0.1)
        result, source = collect(plan, script, order=seed, latency=latency, step=step)
        opening = source.submitted[0][1]
        assert len(opening) == first
        assert (opening.index_N < plan.first_issue).all()
        assert (np.bincount(opening.prompt_N, minlength=len(rates)) == plan.first_issue).all()
        assert result.cut_P.any() <= (BOUNDS[int(result.stats["budget_bound"])] != "none")
        if options["window"] is None:  # whole waves only, except where the budget ended the redraw of failures
            for prompt in np.flatnonzero(~result.cut_P).tolist():
                assert result.size_P[prompt] == len(wave_oracle(plan, script, prompt))


def test_a_wave_that_does_not_fit_is_not_cut_short():
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 32, 4, LONGEST, caps=Caps(max_samples=15))
    result, _ = collect(plan, Script.of("+", "+"))
    assert sorted(result.size_P.tolist()) == [4, 8]
    assert result.stats["prompts_cut"] == 2


def test_a_window_is_filled_in_part():
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 32, 4, LONGEST, window=4, caps=Caps(max_samples=15))
    result, source = collect(plan, Script.of("+", "+"))
    assert len(source.issued) == 15
    assert result.size_P.sum() == 15


def test_the_order_under_a_cap_is_random_seeded_and_stays_within_the_budget():
    served = []
    for run_seed in range(12):
        plan = SamplingPlan(BalancedExit(2, 2), (4,), 8, 4, LONGEST, scheduler="rounds", caps=Caps(max_samples=28))
        results = [collect(plan, Script.of(*["+"] * 6), order=order, run_seed=run_seed)[0] for order in (0, 1)]
        np.testing.assert_array_equal(results[0].size_P, results[1].size_P)
        served.append(tuple(np.flatnonzero(results[0].size_P == 8).tolist()))
    assert {len(prompts) for prompts in served} == {1}
    assert len(set(served)) > 2


def test_a_wave_that_tokens_refuse_waits_for_what_another_one_will_give_back():
    """First waves reserve 320 of 320 tokens and use 24; of the 296 left one second wave takes 160, the other waits."""
    plan = SamplingPlan(
        BalancedExit(2, 2), (4,), 8, 4, LONGEST, caps=Caps(max_tokens=320), token_reservation="worst_case"
    )
    source = ScriptedSource(Script.of("+", "-"), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0)
    source.submit(session.next_requests(0.0))
    session.record(source.end(list(range(8))), 1.0)
    second = session.next_requests(1.0)
    assert len(second) == 4
    source.submit(second)
    session.record(source.end(second.response_id_N.tolist()), 2.0)
    source.submit(session.next_requests(2.0))
    session.record(source.end(sorted(source.running)), 3.0)
    result = session.result()
    assert result.size_P.tolist() == [8, 8]
    assert not result.cut_P.any()


@pytest.mark.parametrize(("cut", "bound"), [(5, "max_samples"), (1, "stopped")])
def test_the_reported_bound_is_what_refused_most_prompts(cut, bound):
    """`cut` of six prompts want a second wave that the samples do not allow; then the step is dropped."""
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 32, 4, LONGEST, caps=Caps(max_samples=24))
    source = ScriptedSource(Script.of(*["+"] * 6), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(6), run_seed=0, step=0)
    source.submit(session.next_requests(0.0))
    session.record(source.end(list(range(4 * cut))), 1.0)
    assert len(session.next_requests(1.0)) == 0
    session.stop(drain=False)
    rows = session.take_aborts()
    session.record_aborted(rows, source.abort(rows), 1.0)
    result = session.result()
    assert BOUNDS[int(result.stats["budget_bound"])] == bound
    assert result.cut_P.all()


LABELS = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]), min_size=1, max_size=10)


@given(LABELS, st.integers(0, 60), st.integers(0, 10**6), st.booleans())
@settings(max_examples=150)
def test_continuous_serves_the_same_prompts_as_rounds_when_samples_run_out(rates, spare, seed, newest_first):
    """Whatever ends first: who ends a wave early has no claim on the budget before the others of that wave."""
    caps = Caps(max_samples=4 * len(rates) + spare)
    plan = SamplingPlan(BalancedExit(2, 2), (4, 3, 5), 20, 4, LONGEST, caps=caps, scheduler="rounds")
    script = Script.random(seed, rates)
    whole, _ = collect(plan, script, order=seed)
    free = replace(plan, scheduler="continuous")
    for order in range(3):
        result, _ = collect(free, script, order=order, newest_first=newest_first)
        np.testing.assert_array_equal(result.size_P, whole.size_P)
        np.testing.assert_array_equal(result.reward_N, whole.reward_N)
        np.testing.assert_array_equal(result.cut_P, whole.cut_P)


@pytest.mark.parametrize("window", [None, 2, 4])
def test_the_budget_does_not_go_to_short_responses(window):
    """Prompts with equal pass rates, half of them with responses five times as long."""
    extra = np.zeros(2)
    for step in range(30):
        workload = SlowHalf(step)
        plan = SamplingPlan(BalancedExit(2, 2), (4,), 32, 4, 400, window=window, caps=Caps(max_samples=4 * 32 + 48))
        session = SamplingSession(plan, np.arange(32), run_seed=0, step=step)
        run_sampling(session, DiscreteEventSource(workload.draw))
        extra += (session.state.issued_P - 4).reshape(2, 16).sum(axis=1)
    share = extra[1] / extra.sum()
    assert extra.sum() == pytest.approx(30 * 48, rel=0.1)
    assert 0.35 < share < 0.65  # first come, first served would be 0.01


@dataclass
class SlowHalf:
    """32 prompts of pass rate 0.1; the last 16 have responses of about 100 tokens, the first of about 20."""

    step: int

    def draw(self, prompt_N, index_N):
        rng = np.random.default_rng(self.step)
        label = (rng.random((32, 200)) < 0.1).astype(np.float64)
        tokens = rng.integers(10, 30, (32, 200)) * np.where(np.arange(32) < 16, 1, 5)[:, None]
        return label[prompt_N, index_N], tokens[prompt_N, index_N]


def test_a_first_wave_is_whole_before_another_prompt_gets_a_second_one():
    """12 samples, two first waves of four; prompt 1 fails once, after prompt 0 has asked for four more."""
    for run_seed in range(8):
        plan = SamplingPlan(BalancedExit(2, 2), (4,), 32, 4, LONGEST, caps=Caps(max_samples=12), max_failed_share=1.0)
        source = ScriptedSource(Script.of("+", "x+"), np.random.default_rng(0))
        session = SamplingSession(plan, np.arange(2), run_seed=run_seed, step=0)
        source.submit(session.next_requests(0.0))
        session.record(source.end([0, 1, 2, 3]), 1.0)
        assert len(session.next_requests(1.0)) == 0
        session.record(source.end([4, 5, 6, 7]), 2.0)
        redraw = session.next_requests(2.0)
        assert redraw.prompt_N.tolist() == [1]
        source.submit(redraw)
        session.record(source.end(redraw.response_id_N.tolist()), 3.0)
        assert len(session.next_requests(3.0)) == 0
        assert session.result().size_P.tolist() == [4, 4]


def test_prompts_on_standby_are_taken_in_the_order_of_the_data():
    """So that the next step can go on after the last one that was taken, and none is taken twice or left out."""
    for seed in range(20):
        plan = SamplingPlan(FixedExit(4), (4,), 4, 4, LONGEST, caps=Caps(max_samples=4 * 4 + 10))
        rates = [0.0, 1.0, 0.0, 0.5, *[0.3] * 4]
        result, source = collect(plan, Script.random(seed, rates), order=seed, run_seed=seed, reserve=4)
        taken = sorted({prompt for prompt, _ in source.issued.values()})
        assert taken == list(range(len(taken)))
        assert result.used == len(taken)


# seconds --------------------------------------------------------------------------------------------------------------


def test_no_wave_is_issued_that_is_expected_to_end_after_the_deadline():
    """A wave takes 10 tokens of one second each: waves start at 0, 10 and 20; the one at 30 would end at 40."""
    latency = LatencyModel()
    latency.observe(np.full(50, 10), np.full(50, 10), np.full(50, 10.0), np.full(50, 4.0))
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, LONGEST, caps=Caps(max_seconds=39.0))
    script = Script.of("+")
    script.tokens_PI[:] = 10
    session = SamplingSession(plan, np.arange(1), run_seed=0, step=0, latency=latency)
    source = ScriptedSource(script, np.random.default_rng(0))
    for begin in (0.0, 10.0, 20.0):
        requests = session.next_requests(begin)
        assert len(requests) == 4
        source.submit(requests)
        session.record(source.end(requests.response_id_N.tolist()), begin + 10.0)
    assert len(session.next_requests(30.0)) == 0
    assert session.finished
    stats = session.result().stats
    assert BOUNDS[int(stats["budget_bound"])] == "max_seconds"
    assert stats["seconds_overshoot"] == 0.0
    assert stats["budget_used_seconds"] == pytest.approx(30 / 39)


@pytest.mark.parametrize("scheduler", ["rounds", "continuous"])
@pytest.mark.parametrize("window", [None, 4])
def test_who_waits_for_time_is_not_forgotten_when_tokens_refuse_those_who_have_it(scheduler, window):
    """Time is for one wave after the other, tokens are for none: both prompts are cut, and the session ends."""
    latency, load = LatencyModel(), np.linspace(1.0, 40.0, 50)
    latency.observe(np.full(50, 10), np.full(50, 10), 2.5 * load, load)
    caps = Caps(max_tokens=24 + 9, max_seconds=19.0)  # first waves take 24; one more response reserves ten
    plan = SamplingPlan(
        BalancedExit(2, 2), (4,), 64, 4, LONGEST, caps=caps, expected_tokens=3, scheduler=scheduler, window=window
    )
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    source = ScriptedSource(Script.of("+", "-"), np.random.default_rng(0))
    source.submit(session.next_requests(0.0))
    session.record(source.end(list(range(8))), 0.0)
    assert len(session.next_requests(0.0)) == 0
    assert session.finished
    assert session.state.cut_P.all()
    assert session.state.refusals["max_tokens"] == 2


@pytest.mark.parametrize(("seconds", "issued"), [(9.0, 0), (19.0, 4), (21.0, 8)])
def test_what_is_issued_beside_a_wave_slows_it_down(seconds, issued):
    """Ten tokens, a quarter of a second for each response in flight: eight at a time take 20 seconds, four take 10."""
    latency, load = LatencyModel(), np.linspace(1.0, 40.0, 50)
    latency.observe(np.full(50, 10), np.full(50, 10), 2.5 * load, load)
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, LONGEST, caps=Caps(max_seconds=seconds))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    source = ScriptedSource(Script.of("+", "-"), np.random.default_rng(0))
    source.submit(session.next_requests(0.0))
    session.record(source.end(list(range(8))), 0.0)
    requests = session.next_requests(0.0)
    assert len(requests) == issued
    assert session.state.cut_P.tolist() == [issued == 0] * 2  # who fits alone, but not beside the other, waits
    if issued == 4:
        source.submit(requests)
        session.record(source.end(requests.response_id_N.tolist()), 10.0)
        assert len(session.next_requests(10.0)) == 0
        assert session.state.cut_P.all()


def test_a_random_seeded_order_decides_when_the_time_allows_one_wave_of_many():
    """Four prompts want a wave. It takes 10 s alone, and 25 s are left: two waves."""
    served = []
    for run_seed in range(8):
        latency, load = LatencyModel(), np.linspace(1.0, 40.0, 50)
        latency.observe(np.full(50, 10), np.full(50, 10), 2.5 * load, load)
        plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, LONGEST, caps=Caps(max_seconds=25.0))
        session = SamplingSession(plan, np.arange(4), run_seed=run_seed, step=0, latency=latency)
        source = ScriptedSource(Script.of("++++", "----", "+++-", "++++"), np.random.default_rng(0))
        source.submit(session.next_requests(0.0))
        session.record(source.end(list(range(16))), 0.0)
        served.append(tuple(np.unique(session.next_requests(0.0).prompt_N).tolist()))
    assert {len(prompts) for prompts in served} == {2}
    assert len(set(served)) > 1


@given(RATES, OPTIONS, st.floats(0.5, 60), st.integers(0, 10**6))
@settings(max_examples=100)
def test_after_the_deadline_nothing_is_issued_but_redraws_of_first_waves(rates, options, seconds, seed):
    plan = plan_with(Caps(max_seconds=seconds), options)
    result, source = collect(plan, Script.random(seed, rates, failed=0.1), order=seed)
    for clock, requests in source.submitted[1:]:
        if clock > seconds:
            assert (requests.wave_N == 0).all()
            assert plan.window is None
    assert result.stats["seconds_overshoot"] == pytest.approx(max(0.0, source.now - seconds))


# start-up -------------------------------------------------------------------------------------------------------------


def start(prompts: int, waves: tuple[int, ...], caps: Caps, **options: object) -> SamplingSession:
    arguments: dict = {"caps": caps, **options}
    plan = SamplingPlan(BalancedExit(2, 2), waves, 32, 4, 100, **arguments)
    return SamplingSession(plan, np.arange(prompts), run_seed=0, step=0)


def test_first_waves_over_max_samples_are_refused_with_what_would_fit():
    with pytest.raises(UserError, match=r"max_samples=2048 .* = 4096; raise it to 4096 or lower .*wave_size to 4"):
        start(512, (8,), Caps(max_samples=2048))
    start(512, (8,), Caps(max_samples=4096))
    start(512, (4,), Caps(max_samples=2048))


def test_first_waves_over_max_tokens_are_refused_with_what_would_fit():
    caps = Caps(max_tokens=1000)
    with pytest.raises(UserError, match=r"max_tokens=1000 cannot .* 4 prompts x 8 responses x 100 .* = 3200; raise it"):
        start(4, (8,), caps)
    with pytest.raises(UserError, match=r"expected_tokens to at most 31 \(with"):
        start(4, (8,), caps, expected_tokens=32)
    start(4, (8,), caps, expected_tokens=31)
    with pytest.raises(UserError, match="3200"):
        start(4, (8,), caps, expected_tokens=31, token_reservation="worst_case")
    start(4, (8,), Caps(max_tokens=3200), token_reservation="worst_case")


def test_a_window_is_what_has_to_fit_under_issue_order():
    start(4, (8,), Caps(max_samples=8), window=2)
    with pytest.raises(UserError, match="4 prompts x 3 responses = 12"):
        start(4, (8,), Caps(max_samples=8), window=3)


def test_the_estimation_variant_is_checked_by_its_allocation():
    plan = SamplingPlan(FixedExit(1), (1,), 32, 4, 100, caps=Caps(max_samples=9))
    SamplingSession(plan, np.arange(2), run_seed=0, step=0, first_wave_P=np.array([4, 5]))
    with pytest.raises(UserError, match="= 10"):
        SamplingSession(plan, np.arange(2), run_seed=0, step=0, first_wave_P=np.array([5, 5]))
