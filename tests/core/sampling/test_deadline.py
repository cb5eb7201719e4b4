"""Time in one batch (algorithm.md section 6): the cap on seconds holds for the batch, not for each of its waves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.sampling.budget import BOUNDS, Budget
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates
from tests.core.scripted import Driven, Script, collect

SECONDS = 600.0  # first waves take at most 400
PROMPTS = 48


def known(lengths, *, base=1.0, slope=0.0):
    """A model that has seen these lengths, and times of length * (base + slope * responses in flight)."""
    model, load = LatencyModel(), np.linspace(1.0, 40.0, 50)
    timed = np.tile([5, 10, 20, 40, 80], 10)
    model.observe(timed, timed * (base + slope * load), load)
    model.load_state_dict(model.state_dict() | {"lengths": lengths})
    return model


def within(seconds, *rows, **session):
    """A session of waves of four under a cap on seconds."""
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 64), 4, 400, budget=Budget(max_seconds=seconds))
    return Driven(plan, *rows, **session)


MOSTLY_SHORT = [10] * 90 + [50] * 10


def test_late_risks_are_logs_of_the_share_of_lengths_in_time():
    model = known([10] * 90 + [50] * 9 + [100])
    for seconds, share in {100.0: 1.0, 99.0: 0.99, 50.0: 0.99, 49.0: 0.9, 10.0: 0.9}.items():
        assert np.exp(-model.compute_late_risk(1, 0.0, seconds)) == pytest.approx(share)
        assert np.exp(-model.compute_late_risk(8, 0.0, seconds)) == pytest.approx(share**8)
    assert model.compute_late_risk(1, 0.0, 9.0) == model.compute_late_risk(1, 0.0, -1.0) == np.inf
    nothing_seen = LatencyModel()  # then only time that is left counts
    assert nothing_seen.compute_late_risk(100, 50.0, 0.0) == 0.0
    assert nothing_seen.compute_late_risk(1, 0.0, -0.1) == np.inf


def durations(quantile, **options):
    """Seconds of 14 batches with more waves than the cap allows, after a first one in each of two runs."""
    budget = Budget(max_seconds=SECONDS, seconds_quantile=quantile)
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 400, budget=budget, **options)
    found = []
    for seed in range(2):
        latency, rates = LatencyModel(), draw_beta_rates(PROMPTS, 0.6, 1.5, seed)
        for step in range(8):
            session = SamplingSession(StepState(plan, np.arange(PROMPTS)), run_seed=seed, step=step, latency=latency)
            source = DiscreteEventSource(Workload(rates, LengthModel(), seed=seed, step=step).draw)
            found.append(summarise(run_sampling(session, source))["sampling_seconds"] if step else 0.0)
    return np.array([seconds for seconds in found if seconds])


@pytest.mark.statistics
@pytest.mark.parametrize("options", [{"scheduler": "rounds"}, {}], ids=["rounds", "continuous"])
def test_as_many_batches_end_in_time_as_were_asked_for(options):
    half, most = durations(0.5, **options), durations(0.9, **options)
    assert (half > SECONDS).mean() <= 0.5
    assert (most > SECONDS).mean() <= 0.1
    assert half.max() < 1.5 * SECONDS
    assert most.max() < 1.2 * SECONDS
    assert half.mean() > most.mean() > 0.7 * SECONDS  # and the time is used


def test_no_wave_is_issued_that_is_expected_to_end_after_the_deadline():
    """A wave takes 10 tokens of one second each: waves start at 0, 10 and 20; the one at 30 would end at 40."""
    script = Script.of("+")
    script.tokens_PI[:] = 10
    run = within(39.0, script, latency=known([10] * 50))
    for begin in (0.0, 10.0, 20.0):
        run.end(begin + 10.0, *run.ask(begin).response_id_N.tolist())
    assert len(run.ask(30.0)) == 0
    stats = summarise(run.session.result(), run.session.plan.budget)
    assert int(stats["budget_bound"]) == BOUNDS["max_seconds"]
    assert stats["samples_drawn"] == 12
    assert stats["seconds_overshoot"] == 0.0
    assert stats["budget_used_seconds"] == pytest.approx(30 / 39)


def test_what_was_granted_before_counts():
    """Waves of four, each late with probability 1 - .9^4 = .34: one is borne with .5, two are not (.57)."""
    run = within(40.0, "+", "+", "+", latency=known(MOSTLY_SHORT))
    run.ask()
    run.end(0.0, 0, 1, 2, 3)
    assert len(run.ask()) == 4
    run.end(0.0, 4, 5, 6, 7)
    assert len(run.ask()) == 0
    assert run.session.state.cut_P.tolist() == [False, True, False]
    assert (run.session.state.bound_P == BOUNDS["max_seconds"]).sum() == 1


@pytest.mark.parametrize(("first_wave", "issued"), [(10.0, 4), (15.0, 4), (15.1, 0)])
def test_a_first_step_takes_a_wave_to_last_as_long_as_the_batch_has(first_wave, issued):
    run = within(30.0, "+")
    run.ask()
    run.end(first_wave, 0, 1, 2, 3)
    assert len(run.ask(first_wave)) == issued


# Ten tokens, a quarter of a second for each response in flight: eight at a time take 20 seconds, four take 10. --------


def quarter():
    return known([10] * 50, base=0.0, slope=0.25)


@pytest.mark.parametrize(("seconds", "issued"), [(9.0, 0), (19.0, 4), (21.0, 8)])
def test_what_is_issued_beside_a_wave_slows_it_down(seconds, issued):
    run = within(seconds, "+", "-", latency=quarter())
    run.ask()
    run.end(0.0, *range(8))
    assert len(run.ask()) == issued
    assert run.session.state.cut_P.tolist() == [issued == 0] * 2  # who fits alone, but not beside the other, waits
    if issued == 4:
        run.end(10.0, *run.source.running)
        assert len(run.ask(10.0)) == 0
        assert run.session.state.cut_P.all()


@pytest.mark.parametrize("options", [{"scheduler": "rounds"}, {}], ids=str)
def test_who_waits_for_time_is_not_forgotten_when_tokens_refuse_those_who_have_it(options):
    """Time is for one wave after the other, tokens are for none: both prompts are cut, and the session ends."""
    budget = Budget(
        max_tokens=24 + 9, max_seconds=19.0, expected_tokens=3
    )  # first waves take 24; one more response reserves ten
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 64), 4, 40, budget=budget, **options)
    run = Driven(plan, "+", "-", latency=quarter())
    run.ask()
    run.end(0.0, *range(8))
    assert len(run.ask()) == 0
    assert run.session.finished
    assert run.session.state.cut_P.all()
    assert (run.session.state.bound_P == BOUNDS["max_tokens"]).sum() == 2


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=8),
    st.sampled_from([{"scheduler": "rounds"}, {}]),
    st.floats(0.5, 60),
    st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_after_the_deadline_nothing_is_issued_but_redraws_of_first_waves(rates, options, seconds, seed):
    caps = Budget(max_seconds=seconds)
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4, 3), 16), 4, 40, budget=caps, max_failed_share=1.0, **options)
    result, source = collect(plan, Script.random(seed, rates, failed=0.1), order=seed)
    for clock, requests in source.submitted[1:]:
        if clock > seconds:
            assert (requests.wave_N == 0).all()
    assert summarise(result, plan.budget)["seconds_overshoot"] == pytest.approx(max(0.0, source.now - seconds))
