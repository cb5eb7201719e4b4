"""Idle mode (algorithm.md section 6): extra waves live inside the tail of the first ones."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, beta_pass_rates
from tests.core.scripted import Driven


def idle(**settings):
    return Budget(mode="idle", **settings)


IDLE = SamplingPlan(BalancedExit(1, 1), (4,), 32, 4, 400, budget=Budget(mode="idle"))


def one_step(plan, workload, latency):
    source = DiscreteEventSource(workload.draw)
    uid_P = np.arange(len(workload.pass_rate_P))
    own = SamplingSession(StepState(plan, uid_P), run_seed=0, step=workload.step, latency=latency)
    return run_sampling(own, source), source, own.state.table


def mostly_short(*rows, **caps):
    """A session of waves of four that has seen lengths 2 (90 %) and 200, and times of a second per token."""
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    plan = dataclasses.replace(IDLE, max_failed_share=1.0, budget=idle(idle_quantile=0.5, **caps))
    run = Driven(plan, *rows, latency=latency)
    run.ask()
    return run


@given(st.integers(0, 10**6), st.floats(0.5, 0.97), st.integers(1, 40))
@settings(max_examples=25)
def test_the_phase_ends_exactly_with_the_last_first_wave_response(seed, quantile, prompts):
    rates = beta_pass_rates(prompts, 0.6, 1.5, seed)
    latency = LatencyModel()
    for step in range(3):
        workload = Workload(rates, seed=seed, step=step)
        result, source, _ = one_step(dataclasses.replace(IDLE, budget=idle(idle_quantile=quantile)), workload, latency)
        prompt_N, index_N = np.repeat(np.arange(prompts), 4), np.tile(np.arange(4), prompts)
        reward_N, tokens_N = workload.draw(prompt_N, index_N)
        assert source.steps == tokens_N.max()  # GRPO's own number of engine steps
        assert (np.bincount(result.prompt_N) % 4 == 0).all()  # waves are whole or absent
        first_pos_P = reward_N.reshape(prompts, 4).sum(axis=1)
        np.testing.assert_array_equal(result.first_pos_P, first_pos_P)
        with_signal = (first_pos_P > 0) & (first_pos_P < 4)
        assert (result.size_P[with_signal] == 4).all()


def test_an_incomplete_extra_wave_is_absent_and_its_tokens_are_paid_for():
    run = mostly_short("++++----", "++-+")
    run.end(5.0, 0, 1, 2, 3)
    assert run.ask(5.0).prompt_N.tolist() == [0] * 4  # no signal: an extra wave, rows 8 to 11
    run.end(6.0, 4, 5, 6, 8, 9)
    run.end(9.0, 7)  # the last one of the first waves
    assert run.drop(9.0) == [10, 11]
    assert len(run.ask(9.0)) == 0
    result = run.session.result()
    assert result.size_P.tolist() == [4, 4]
    assert summarise(result)["tokens_drawn"] == run.source.tokens
    assert summarise(result)["samples_dropped"] == 4
    assert result.cut_P.tolist() == [True, False]


def test_an_extra_wave_needs_a_running_first_wave_response_to_hide_behind():
    run = mostly_short("++++", "+x-+")
    run.end(5.0, *range(8))
    redraw = run.ask(5.0)  # prompt 0 has no signal and waits, too, but nothing runs
    assert (redraw.prompt_N.tolist(), redraw.index_N.tolist()) == ([1], [4])
    assert run.ask(9.0).prompt_N.tolist() == [0] * 4  # at token 4 the redraw is a long one: a wave of two tokens fits


def test_an_extra_wave_does_not_hide_behind_another_one():
    """At 205 the last first-wave response has outlived all known lengths and may end at any moment; that an extra wave
    of another prompt still runs is no reason to begin one more."""
    run = mostly_short("+", "++-+", "-")
    run.end(190.0, 0, 1, 2, 3)
    assert run.ask(190.0).prompt_N.tolist() == [0] * 4
    run.end(205.0, 8, 9, 10, 11)
    assert len(run.ask(205.0)) == 0


def test_the_phase_and_its_extra_waves_end_when_the_budget_refuses_the_last_redraw_of_a_first_wave():
    """20 samples: an extra wave of prompt 0, whatever prompt 1 may ask for before it, whose fifth redraw is refused.
    The source hears of the extra wave's end before it is polled again, which would wait for ever."""
    run = mostly_short("++++", "+x-x", max_samples=20)
    ends = iter([[0, 1, 2, 3], [4, 5, 6, 7], [12, 13], [14, 15], [16, 17], [18, 19]])
    run.source.poll = lambda: run.source.end(next(ends))
    result = run_sampling(run.session, run.source)
    assert len(run.source.issued) == 20
    assert sorted(run.source.aborted) == [8, 9, 10, 11]
    assert result.size_P.tolist() == [4, 2]
    assert result.cut_P.all()


def test_no_extra_wave_takes_what_a_first_wave_may_still_need():
    run = mostly_short("++++", "+x--", max_samples=12)
    run.end(5.0, 0, 1, 2, 3)
    assert len(run.ask(5.0)) == 0
    run.end(6.0, 4, 5, 6, 7)
    assert run.ask(6.0).prompt_N.tolist() == [1]


@pytest.mark.parametrize(("samples", "bound"), [(None, "idle"), (64 * 4 + 8, "max_samples")])
def test_the_cap_that_holds_extra_waves_back_is_named(samples, bound):
    """Some 120 extra waves fit into the tail; with room for two the others wait for samples, not for time."""
    plan = dataclasses.replace(IDLE, budget=idle(max_samples=samples))
    latency = LatencyModel()
    for step in range(4):
        result, _, _ = one_step(plan, Workload(np.full(64, 0.05), seed=4, step=step), latency)
    assert BOUNDS[int(summarise(result)["budget_bound"])] == bound


def test_before_a_step_was_observed_and_after_its_seconds_it_is_grpo():
    workload = Workload(np.full(32, 0.05), seed=0)
    free, capped = LatencyModel(), LatencyModel()
    late = dataclasses.replace(IDLE, budget=idle(max_seconds=1.0))
    assert one_step(IDLE, workload, LatencyModel())[0].size_P.sum() == 32 * 4
    for step in range(2):
        step_load = dataclasses.replace(workload, step=step)
        unbound, _, _ = one_step(IDLE, step_load, free)
        bound, _, _ = one_step(late, step_load, capped)
    assert unbound.size_P.sum() > 32 * 4
    assert bound.size_P.sum() == 32 * 4


@pytest.mark.statistics
@pytest.mark.parametrize(("wrong_factor", "sign"), [(4.0, 1), (0.25, -1)])
def test_the_reported_label_bias_is_the_real_one(wrong_factor, sign):
    """The truth is known here. Over all extra responses that were issued, label - pass rate has mean 0; its mean over
    the kept ones is the bias, and the difference of the two means the same with less noise (a control variate)."""
    rates, lengths = beta_pass_rates(256, 0.6, 1.5, 3), LengthModel(median=20, sigma=0.9, wrong_factor=wrong_factor)
    plan, latency = dataclasses.replace(IDLE, budget=idle(idle_quantile=0.5)), LatencyModel()
    reported, sums = [], []  # of each step; sums of centred labels over kept and over all extra responses
    for step in range(30):
        workload = Workload(rates, lengths, seed=4, step=step)
        result, _, table = one_step(plan, workload, latency)
        if step == 0:  # the latency model knows nothing
            continue
        reported.append(summarise(result)["idle_label_bias"])
        issued = np.flatnonzero(table.wave[: table.n] > 0)
        reward_N, _ = workload.draw(table.prompt[issued], table.index[issued])
        centred_N, kept_N = reward_N - rates[table.prompt[issued]], table.accepted[issued]
        sums.append((centred_N[kept_N].sum(), kept_N.sum(), centred_N.sum(), len(issued)))
    total = np.sum(sums, axis=0)
    left_out = total - np.array(sums)
    jackknife = left_out[:, 0] / left_out[:, 1] - left_out[:, 2] / left_out[:, 3]
    truth, error = total[0] / total[1] - total[2] / total[3], jackknife.std() * np.sqrt(len(sums))
    assert sign * truth > 3 * error  # there is a bias to be reported
    # extra waves go to prompts with one-sided pass rates, so the estimate errs on the large side
    assert abs(truth) - 3 * error < sign * np.mean(reported) < 3 * abs(truth) + 3 * error
