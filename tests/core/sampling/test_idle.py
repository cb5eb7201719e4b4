"""Idle mode (algorithm.md section 6): extra waves live inside the tail of the first ones.

1. The phase ends with the last first-wave response. 2. Extra waves that are not complete then are dropped whole.
3. Prompts with signal never get an extra wave. 4. It needs an observed step; before, it is GRPO. 5. A prompt in reserve
does not prolong the phase. 6. The reported label bias is the real one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload, beta_pass_rates
from tests.core.scripted import Script, ScriptedSource

IDLE = SamplingPlan(BalancedExit(1, 1), (4,), 32, 4, 400, idle=True)
GRPO = SamplingPlan(FixedExit(4), (4,), 4, 4, 400)


def one_step(
    plan: SamplingPlan, workload: Workload, latency: LatencyModel, reserve: int = 0
) -> tuple[SamplingResult, DiscreteEventSource]:
    source = DiscreteEventSource(workload.draw)
    session = SamplingSession(
        plan, np.arange(len(workload.pass_rate_P)), run_seed=0, step=workload.step, latency=latency, reserve=reserve
    )
    return run_sampling(session, source), source


@given(st.integers(0, 10**6), st.floats(0.5, 0.97), st.integers(1, 40))
@settings(max_examples=40)
def test_the_phase_ends_exactly_with_the_last_first_wave_response(seed, quantile, prompts):
    rates = beta_pass_rates(prompts, 0.6, 1.5, seed)
    latency = LatencyModel()
    for step in range(3):
        workload = Workload(rates, seed=seed, step=step)
        result, source = one_step(dataclasses.replace(IDLE, idle_quantile=quantile), workload, latency)
        prompt_N, index_N = np.repeat(np.arange(prompts), 4), np.tile(np.arange(4), prompts)
        reward_N, tokens_N = workload.draw(prompt_N, index_N)
        assert source.steps == tokens_N.max()  # GRPO's own number of engine steps
        assert (np.bincount(result.prompt_N) % 4 == 0).all()  # waves are whole or absent
        first_pos_P = reward_N.reshape(prompts, 4).sum(axis=1)
        np.testing.assert_array_equal(result.first_pos_P, first_pos_P)
        with_signal = (first_pos_P > 0) & (first_pos_P < 4)
        assert (result.size_P[with_signal] == 4).all()


def test_before_anything_was_observed_it_is_grpo():
    workload = Workload(np.full(16, 0.1), seed=0)
    result, _ = one_step(IDLE, workload, LatencyModel())
    assert (result.size_P == 4).all()


def test_an_incomplete_extra_wave_is_absent_and_its_tokens_are_paid_for():
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    source = ScriptedSource(Script.of("++++----", "++-+"), np.random.default_rng(0))
    session = SamplingSession(
        dataclasses.replace(IDLE, idle_quantile=0.5), np.arange(2), run_seed=0, step=0, latency=latency
    )
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), 5.0)
    source.submit(session.next_requests(5.0))  # prompt 0 has no signal: an extra wave, rows 8 to 11
    assert sorted(source.running) == [4, 5, 6, 7, 8, 9, 10, 11]
    session.record(source.end([4, 5, 6, 8, 9]), 6.0)
    session.record(source.end([7]), 9.0)  # the last one of the first waves
    dropped = session.take_aborts()
    assert sorted(dropped.tolist()) == [10, 11]
    session.record_aborted(dropped, source.abort(dropped), 9.0)
    assert len(session.next_requests(9.0)) == 0
    result = session.result()
    assert result.size_P.tolist() == [4, 4]
    assert result.stats["tokens_drawn"] == source.tokens
    assert result.stats["samples_dropped"] == 4
    assert result.cut_P.tolist() == [True, False]


def test_an_extra_wave_needs_a_running_first_wave_response_to_hide_behind():
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    plan = dataclasses.replace(IDLE, idle_quantile=0.5, max_failed_share=1.0)
    source = ScriptedSource(Script.of("++++", "+x-+"), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    source.submit(session.next_requests(0.0))
    session.record(source.end(list(range(8))), 5.0)
    redraw = session.next_requests(5.0)  # prompt 0 has no signal and waits, too, but nothing runs
    assert (redraw.prompt_N.tolist(), redraw.index_N.tolist()) == ([1], [4])
    source.submit(redraw)
    behind_it = session.next_requests(9.0)  # at token 4 the redraw is a long one: a wave of two tokens fits
    assert behind_it.prompt_N.tolist() == [0] * 4


def test_an_extra_wave_does_not_hide_behind_another_one():
    """At 205 the last first-wave response has outlived all known lengths and may end at any moment; that an extra wave
    of another prompt still runs is no reason to begin one more."""
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    plan = dataclasses.replace(IDLE, idle_quantile=0.5)
    source = ScriptedSource(Script.of("+", "++-+", "-"), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(3), run_seed=0, step=0, latency=latency)
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), 190.0)
    extra = session.next_requests(190.0)
    assert extra.prompt_N.tolist() == [0] * 4
    source.submit(extra)
    session.record(source.end([8, 9, 10, 11]), 205.0)
    assert len(session.next_requests(205.0)) == 0


def test_a_prompt_on_standby_does_not_prolong_the_phase():
    latency = LatencyModel()
    for step in range(12):
        rates = np.concatenate([np.zeros(8), np.full(24, 0.5), np.full(16, 0.4)])
        workload = Workload(rates, seed=2, step=step)
        plan = dataclasses.replace(IDLE, max_responses=4)
        result, source = one_step(plan, workload, latency, reserve=16)
        _, tokens_N = workload.draw(np.repeat(np.arange(32), 4), np.tile(np.arange(4), 32))
        assert source.steps == tokens_N.max()
        assert set(result.size_P.tolist()) <= {0, 4}
        assert (result.size_P[~result.drawn_P] == 0).all()
    assert result.stats["groups_replaced"] > 0


def test_the_phase_ends_when_the_budget_refuses_the_last_redraw_of_a_first_wave():
    plan = dataclasses.replace(IDLE, max_failed_share=1.0, caps=Caps(max_samples=8))
    latency = LatencyModel()
    latency.observe(np.array([2, 200]), np.array([10]), np.array([10.0]), np.array([4.0]))
    source = ScriptedSource(Script.of("++++", "+x-x"), np.random.default_rng(0))
    result = run_sampling(SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency), source)
    assert result.size_P.tolist() == [4, 2]
    assert result.cut_P.tolist() == [True, True]


def test_extra_waves_that_run_at_that_moment_are_dropped_before_the_source_is_polled_again():
    """20 samples: an extra wave of prompt 0, whatever prompt 1 may ask for before it, whose fifth redraw is refused."""
    plan = dataclasses.replace(IDLE, idle_quantile=0.5, max_failed_share=1.0, caps=Caps(max_samples=20))
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    source = ScriptedSource(Script.of("++++", "+x-x"), np.random.default_rng(0))
    ends = iter([[0, 1, 2, 3], [4, 5, 6, 7], [12, 13], [14, 15], [16, 17], [18, 19]])
    source.poll = lambda: source.end(next(ends))
    result = run_sampling(SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency), source)
    assert len(source.issued) == 20
    assert sorted(source.aborted) == [8, 9, 10, 11]
    assert result.size_P.tolist() == [4, 2]


@pytest.mark.parametrize(("samples", "bound"), [(None, "idle"), (64 * 4 + 8, "max_samples")])
def test_the_cap_that_holds_extra_waves_back_is_named(samples, bound):
    """Some 120 extra waves fit into the tail; with room for two the others wait for samples, not for time."""
    plan = dataclasses.replace(IDLE, caps=Caps(max_samples=samples))
    latency = LatencyModel()
    for step in range(4):
        result, _ = one_step(plan, Workload(np.full(64, 0.05), seed=4, step=step), latency)
    assert BOUNDS[int(result.stats["budget_bound"])] == bound


def test_no_extra_wave_takes_what_a_first_wave_may_still_need():
    plan = dataclasses.replace(IDLE, idle_quantile=0.5, max_failed_share=1.0, caps=Caps(max_samples=12))
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    source = ScriptedSource(Script.of("++++", "+x--"), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), 5.0)
    assert len(session.next_requests(5.0)) == 0
    session.record(source.end([4, 5, 6, 7]), 6.0)
    assert session.next_requests(6.0).prompt_N.tolist() == [1]


def test_the_seconds_cap_holds_in_idle_mode_too():
    workload = Workload(np.full(32, 0.05), seed=0)
    free, capped = LatencyModel(), LatencyModel()
    late = dataclasses.replace(IDLE, caps=Caps(max_seconds=1.0))
    for step in range(2):
        step_load = dataclasses.replace(workload, step=step)
        unbound, _ = one_step(IDLE, step_load, free)
        bound, _ = one_step(late, step_load, capped)
    assert unbound.size_P.sum() > 32 * 4
    assert bound.size_P.sum() == 32 * 4


@pytest.mark.statistics
@pytest.mark.parametrize(("wrong_factor", "sign"), [(4.0, 1), (0.25, -1)])
def test_the_reported_label_bias_is_the_real_one(wrong_factor, sign):
    """The truth is known here. Over all extra responses that were issued, label - pass rate has mean 0; its mean over
    the kept ones is the bias, and the difference of the two means the same with less noise (a control variate)."""
    lengths = LengthModel(median=20, sigma=0.9, wrong_factor=wrong_factor)
    rates = beta_pass_rates(256, 0.6, 1.5, 3)
    latency = LatencyModel()
    reported, sums = [], []
    for step in range(50):
        workload = Workload(rates, lengths, seed=4, step=step)
        plan = dataclasses.replace(IDLE, idle_quantile=0.5)
        session = SamplingSession(plan, np.arange(256), run_seed=0, step=step, latency=latency)
        result = run_sampling(session, DiscreteEventSource(workload.draw))
        table = session.state.table
        issued = np.flatnonzero(table.wave[: table.n] > 0)
        reward_N, _ = workload.draw(table.prompt[issued], table.index[issued])
        centred_N = reward_N - rates[table.prompt[issued]]
        kept_N = np.isin(issued, result.response_id_N)
        sums.append((centred_N[kept_N].sum(), kept_N.sum(), centred_N.sum(), len(issued)))
        reported.append(result.stats["idle_label_bias"])
    total = np.sum(sums, axis=0)
    left_out = total - np.array(sums)
    jackknife = left_out[:, 0] / left_out[:, 1] - left_out[:, 2] / left_out[:, 3]
    truth, error = total[0] / total[1] - total[2] / total[3], jackknife.std() * np.sqrt(len(sums))
    print(f"truth {truth:+.4f} +- {error:.4f}, reported {np.mean(reported):+.4f}")
    assert sign * truth > 3 * error  # there is a bias to be reported
    # extra waves go to prompts with one-sided pass rates, so the estimate errs on the large side
    assert abs(truth) - 3 * error < sign * np.mean(reported) < 3 * abs(truth) + 3 * error


@pytest.mark.statistics
@pytest.mark.parametrize("n", [2, 4])
def test_the_reported_label_bias_is_not_short_by_the_share_of_a_label_in_its_own_mean(n):
    """With equal pass rates first and extra waves have the same bias, so the estimate has the mean of the truth."""
    lengths = LengthModel(median=20, sigma=0.9, wrong_factor=4.0)
    latency, rates = LatencyModel(), np.full(256, 0.15)
    plan = dataclasses.replace(IDLE, wave_sizes=(n,), idle_quantile=0.5)
    reported, known = [], []
    for step in range(60):
        workload = Workload(rates, lengths, seed=5, step=step)
        session = SamplingSession(plan, np.arange(256), run_seed=0, step=step, latency=latency)
        result = run_sampling(session, DiscreteEventSource(workload.draw))
        if step == 0:
            continue  # the latency model knows nothing yet
        table = session.state.table
        extra = np.flatnonzero((table.wave[: table.n] > 0) & table.accepted[: table.n])
        first = np.flatnonzero(table.wave[: table.n] == 0)
        left = session.now - table.issued_at[extra]
        centred = table.positive[first] - table.positive[first].mean()  # over prompts that are all alike
        in_time = (table.ended_at[first] - table.issued_at[first])[None, :] <= left[:, None]
        known.append(np.mean(in_time @ centred / in_time.sum(axis=1)))
        reported.append(result.stats["idle_label_bias"])
    difference = np.array(reported) - np.array(known)
    error = difference.std() / np.sqrt(len(difference))
    assert np.mean(known) > 10 * error
    assert abs(difference.mean()) < 3 * error
