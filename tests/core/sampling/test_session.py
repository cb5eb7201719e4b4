"""The sampling session under any order of completion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core import seeds
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.errors import FailedResponsesError, InvariantError
from tests.core.scripted import Driven, Script, collect, pools, wave_oracle

EXITS = st.one_of(
    st.builds(PositiveExit, st.integers(1, 4)),
    st.builds(BalancedExit, st.integers(1, 3), st.integers(1, 3)),
    st.builds(FixedExit, st.integers(1, 9)),
)
PASS_RATES = st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=7)
WAVES = st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple)


def wave_plan(rule, waves, cap, **options):
    arguments = {"max_failed_share": 1.0, **options}
    return SamplingPlan(StopRule(rule, waves, cap), 4, 40, **arguments)


@given(EXITS, WAVES, st.integers(1, 20), PASS_RATES, st.sampled_from([0.0, 0.2]), st.integers(0, 10**6))
@settings(max_examples=80)
def test_waves_collect_what_the_papers_loop_collects_in_any_order_of_completion(rule, waves, cap, rates, failed, seed):
    script = Script.random(seed, rates, failed=failed)
    for scheduler, newest_first in (("rounds", False), ("continuous", False), ("continuous", True)):
        plan = wave_plan(rule, waves, cap, scheduler=scheduler)
        result, source = collect(plan, script, order=seed, newest_first=newest_first)
        for prompt, pool in enumerate(pools(result)):
            indices = wave_oracle(plan, script, prompt)
            assert [index for index, _, _ in pool] == indices
            assert all(reward == script.reward_PI[prompt, index] for index, reward, _ in pool)
            assert all(tokens == script.tokens_PI[prompt, index] for index, _, tokens in pool)
        assert not source.aborted


@given(EXITS, WAVES, st.integers(1, 12), PASS_RATES, st.integers(0, 10**6))
@settings(max_examples=80)
def test_failed_responses_never_enter_a_pool_and_cost_at_most_twice_the_cap(rule, waves, cap, rates, seed):
    script = Script.random(seed, rates, failed=0.4)
    result, source = collect(wave_plan(rule, waves, cap), script, order=seed)
    assert np.isfinite(result.reward_N).all()
    places = [source.issued[row] for row in result.response_id_N.tolist()]
    assert all(script.label(*place) is not None for place in places)
    assert places == list(zip(result.prompt_N.tolist(), result.index_N.tolist(), strict=True))
    assert (result.size_P <= cap).all()
    issued_P = np.bincount([prompt for prompt, _ in source.issued.values()], minlength=len(rates))
    assert (issued_P <= 2 * cap + max(waves)).all()
    assert summarise(result)["samples_failed"] == sum(script.label(*source.issued[r]) is None for r in source.finished)


def test_a_reward_that_is_not_finite_is_a_failure_even_if_the_source_did_not_say_so():
    plan = wave_plan(FixedExit(2), (2,), 2)
    session = SamplingSession(StepState(plan, np.arange(1)), run_seed=0, step=0)
    rows = session.next_requests(0.0).response_id_N
    session.record(Outcomes(rows, np.array([np.inf, 1.0]), np.array([3, 3])), 1.0)
    assert session.failures == {"reward_not_finite": 1}
    assert session.next_requests(1.0).index_N.tolist() == [2]


def test_too_many_failures_stop_the_step_and_name_cause_and_prompts():
    script = Script.of(*["+" * 8] * 6, "xx+", "xx+")
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 40, max_failed_share=0.05)
    with pytest.raises(FailedResponsesError, match=r"4 of 3\d responses of step 3 .*scripted: 4.*prompts p6, p7"):
        collect(plan, script, names_P=[f"p{i}" for i in range(8)])


@pytest.mark.parametrize(("reserve", "failed"), [(0, 103), (1000, 108)])
def test_a_verifier_that_always_fails_ends_the_step_early(reserve, failed):
    """The step may have 64 x 32 labelled responses: at 103 failed ones it is clear that 5 % are too few. Of 1,000
    reserve prompts those three count that have begun, whatever the others might bring."""
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 40, max_failed_share=0.05)
    with pytest.raises(FailedResponsesError, match=rf"^{failed} of \d+ responses of step 3 have no .*; prompts \d"):
        collect(plan, Script.of(*["x"] * (64 + reserve)), newest_first=True, reserve=reserve)


def test_early_failures_count_against_the_whole_step():
    """4 of the first 64 responses fail, and 4 of some 250 in the end, of a prompt that is long over."""
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 40, max_failed_share=0.05)
    result, source = collect(plan, Script.of("xxxx+-", *["+"] * 7), order=3)
    assert len(source.issued) > 200
    assert result.failures == {"scripted": 4}


def test_what_the_environment_masks_is_drawn_again_and_ends_no_step_however_much_it_is():
    """Every second response is masked, ten times max_failed_share."""
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 8), 4, 40, max_failed_share=0.05)
    result, _ = collect(plan, Script.of(*["m+m-m+m+-"] * 8))
    assert result.failures == {"masked": 32} and result.size_P.tolist() == [4] * 8


def test_masked_responses_hide_no_broken_verifier():
    """4 of the 40 responses that are not masked fail: a tenth. Of all 80 it would be a twentieth."""
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 8), 4, 40, max_failed_share=0.06)
    with pytest.raises(FailedResponsesError, match=r"^4 of 80 responses .*\(masked: 40, scripted: 4\)"):
        collect(plan, Script.of(*["mmmmm+-++"] * 8, "xxxx+"))


@pytest.mark.parametrize("row", ["m", "mx"])
def test_a_step_in_which_nothing_but_masked_responses_is_left_ends_the_run(row):
    plan = SamplingPlan(StopRule(FixedExit(4), (4,), 8), 4, 40, max_failed_share=1.0)
    with pytest.raises(
        FailedResponsesError, match=r"all 64 responses of step 3 have no label, and .* masks \d+ of them"
    ):
        collect(plan, Script.of(*[row] * 8))


def test_failures_of_a_step_that_is_dropped_are_no_error():
    """7 of its 8 responses failed before the job's end; a whole step may have tolerated them."""
    plan = SamplingPlan(StopRule(FixedExit(200), (8,), 200), 4, 40, max_failed_share=0.05)
    session = SamplingSession(StepState(plan, np.arange(1)), run_seed=0, step=6)
    rows = session.next_requests(0.0).response_id_N
    causes = ["verifier", "verifier", "engine", "verifier", "engine", "verifier", "engine"]
    session.record(Outcomes(rows, np.ones(8), np.full(8, 3), dict(enumerate(causes))), 1.0)
    session.stop(drain=False)
    assert session.result().failures == {"verifier": 4, "engine": 3}


def test_seeds_take_no_more_memory_than_responses_do():
    """63 prompts end with their first wave, one draws 4096 responses: a table for all would hold 64 x 4096 seeds."""
    plan = SamplingPlan(StopRule(BalancedExit(1, 1), (8,), 4096), 4, 40, max_failed_share=1.0)
    reward_PI = np.ones((64, 5120))
    reward_PI[:63, 1] = 0.0
    run = Driven(plan, Script(reward_PI, np.full(reward_PI.shape, 3, np.int64)), run_seed=7, step=3)
    run_sampling(run.session, run.source)
    issued = run.source.issued
    assert len(issued) == 63 * 8 + 4096
    assert run.session._seed_PI.size <= 4 * len(issued)
    places = np.array(list(issued.values()))
    expected = seeds.compute_response_seed(7, 3, places[:, 0], places[:, 1])
    np.testing.assert_array_equal([run.source.seeds[row] for row in issued], expected)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_estimation_variant_draws_what_was_allocated(allocation, seed):
    script = Script.random(seed, [0.5] * len(allocation), failed=0.1)
    plan = wave_plan(FixedExit(1), (1,), 32)
    result, source = collect(plan, script, order=seed, first_wave_P=np.array(allocation))
    given_up = np.array([sum(script.label(p, i) is None for i in range(2 * n)) >= n for p, n in enumerate(allocation)])
    assert ((result.size_P == allocation) | given_up).all()
    assert (source.submitted[0][1].prompt_N == np.repeat(np.arange(len(allocation)), allocation)).all()
    np.testing.assert_array_equal(result.first_size_P, result.size_P)


def test_seeds_follow_the_uid_and_not_the_position():
    plan = wave_plan(FixedExit(3), (3,), 3)
    drawn = {}
    for uids in ([5, 9], [9, 5]):
        session = SamplingSession(StepState(plan, np.array(uids)), run_seed=1, step=2)
        asked = session.next_requests(0.0)
        assert len(set(asked.seed_N.tolist())) == 6, "equal prompts of a batch differ in their uid"
        drawn[uids[0]] = {(uids[p], i): s for p, i, s in zip(asked.prompt_N, asked.index_N, asked.seed_N, strict=True)}
    assert drawn[5] == drawn[9]


# refill: reserve prompts -------------------------------------------------------------------------------------------


def test_groups_without_signal_are_replaced_and_unused_prompts_are_not_drawn():
    all_drawn, _ = collect(wave_plan(FixedExit(2), (2,), 2), Script.of(*["-"] * 5), reserve=3)
    assert all_drawn.drawn_P.all()
    assert summarise(all_drawn)["groups_replaced"] == 3
    script = Script.of("-", "+-", "+", "-", "+-", "+-", "+-")
    result, source = collect(wave_plan(FixedExit(4), (4,), 4), script, reserve=4)
    # prompts 0 and 2 end without signal; 3 replaces one of them, ends without signal too and is replaced
    assert result.drawn_P.tolist() == [True, True, True, True, True, True, False]
    assert result.size_P.tolist() == [4, 4, 4, 4, 4, 4, 0]
    assert summarise(result)["groups_replaced"] == 3
    assert {prompt for prompt, _ in source.issued.values()} == set(range(6))


# stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["drain", "drop"])
@pytest.mark.parametrize("scheduler", ["rounds", "continuous"])
@pytest.mark.parametrize("calls", [0, 1, 5])
def test_a_session_can_be_stopped_at_any_moment(order, scheduler, calls):
    script = Script.random(3, [0.05] * 12, failed=0.05)
    plan = wave_plan(BalancedExit(3, 3), (6, 2), 64, scheduler=scheduler)
    run = Driven(plan, script, reserve=2)
    source, checks, submitted = run.source, [], []

    def stop_check():
        checks.append(len(source.issued))
        if len(checks) == calls + 1:
            submitted.append(len(source.issued))
            return order
        return None

    result = run_sampling(run.session, source, stop_check=stop_check)
    assert [len(source.issued)] == submitted
    assert not source.running
    assert run.session.dropped == (order == "drop" or calls == 0)
    assert summarise(result)["samples_drawn"] == len(source.issued)
    assert summarise(result)["tokens_drawn"] == source.tokens
    assert bool(source.aborted) <= (order == "drop")
    if order == "drain" and calls:
        labelled = sum(script.label(*source.issued[row]) is not None for row in source.finished)
        assert len(result.response_id_N) == labelled


@pytest.mark.parametrize(
    ("waves", "rows", "ended", "aborted", "sizes"),
    [
        ((4,), ("++++--", "+-+-"), [0, 1, 2, 3, 4], [5, 6, 7], [4, 0]),  # wave 0 of prompt 0, one response of prompt 1
        ((1, 3), ("+", "-"), [0, 1], [2, 3, 4, 5, 6, 7], [1, 1]),
    ],
)
def test_a_drop_leaves_nothing_running_and_nothing_half_done_in_a_pool(waves, rows, ended, aborted, sizes):
    run = Driven(wave_plan(BalancedExit(2, 2), waves, 16), *rows)
    run.ask()
    run.end(1.0, *ended)
    if waves == (1, 3):
        run.ask(1.0)
    run.session.stop(drain=False)
    assert run.drop(1.0) == aborted
    assert run.session.result().size_P.tolist() == sizes


# protocol -------------------------------------------------------------------------------------------------------------


def outcomes(*rows):
    return Outcomes(np.array(rows, np.int64), np.ones(len(rows)), np.ones(len(rows), np.int64))


@pytest.fixture
def two_running():
    session = SamplingSession(StepState(wave_plan(FixedExit(2), (2,), 2), np.arange(1)), run_seed=0, step=0)
    session.next_requests(10.0)
    return session


@pytest.mark.parametrize("rows", [(0, 0), (99,), (2,), (-1,), (1,)])
def test_outcomes_that_were_not_asked_for_are_refused(two_running, rows):
    two_running.record(outcomes(1), 11.0)
    with pytest.raises(InvariantError, match="not in flight"):
        two_running.record(outcomes(*rows), 12.0)


def test_a_clock_that_runs_backwards_does_not_make_time_negative(two_running):
    two_running.record(outcomes(), 11.0)  # only lets time pass
    assert (two_running.now, two_running.state.in_flight) == (11.0, 2)
    with pytest.raises(InvariantError, match="2 responses in flight"):
        two_running.result()
    two_running.record(outcomes(0), 12.0)
    two_running.record(outcomes(1), 11.0)
    assert summarise(two_running.result())["sampling_seconds"] == 2.0


@pytest.mark.parametrize("reserve", [-1, 2, 3])
def test_somebody_has_to_start(reserve):
    with pytest.raises(InvariantError, match=f"{reserve} of 2 reserve prompts"):
        SamplingSession(StepState(wave_plan(FixedExit(2), (2,), 2), np.arange(2), reserve=reserve), run_seed=0, step=0)
