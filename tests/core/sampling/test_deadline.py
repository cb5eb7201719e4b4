"""Time in one batch (algorithm.md section 6): the cap on seconds holds for the batch, not for each of its waves.

1. Late risks add up to the probability that everything ends in time. 2. With heavy-tailed lengths and hundreds of waves
about half of the batches end before the cap, or nine of ten, as `seconds_quantile` asks. 3. Before the latency model
has seen a step, a wave is taken to last as long as the batch has so far. 4. Start-up times count in idle mode's tail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload, beta_pass_rates
from tests.core.scripted import Script, ScriptedSource

SECONDS = 600.0  # first waves take at most 400
PROMPTS = 48


def known(lengths: list[int], *, start: float = 0.0, base: float = 1.0, slope: float = 0.0) -> LatencyModel:
    """A model that has seen these lengths, and times of start + length * (base + slope * responses in flight)."""
    model, load = LatencyModel(), np.linspace(1.0, 40.0, 50)
    timed = np.tile([5, 10, 20, 40, 80], 10)
    model.observe(np.array(lengths), timed, start + timed * (base + slope * load), load)
    return model


def test_late_risks_are_logs_of_the_share_of_lengths_in_time():
    model = known([10] * 90 + [50] * 9 + [100])
    in_time = {100.0: 1.0, 99.0: 0.99, 50.0: 0.99, 49.0: 0.9, 10.0: 0.9}
    for seconds, share in in_time.items():
        assert np.exp(-model.late_risk(1, 0.0, seconds)) == pytest.approx(share)
        assert np.exp(-model.late_risk(8, 0.0, seconds)) == pytest.approx(share**8)
    assert model.late_risk(1, 0.0, 9.0) == np.inf
    assert model.late_risk(1, 0.0, -1.0) == np.inf


def test_what_runs_beside_a_wave_and_its_start_make_it_late():
    slow = known([10] * 90 + [50] * 10, slope=1.0)  # 1 + b seconds a token
    assert slow.late_risk(1, 0.0, 100.1) == 0.0
    assert np.exp(-slow.late_risk(1, 1.0, 100.1)) == pytest.approx(0.9)
    assert np.exp(-slow.late_risk(2, 0.0, 100.1)) == pytest.approx(0.9**2)
    started = known([10] * 90 + [50] * 10, start=30.0)
    assert started.late_risk(1, 0.0, 80.1) == 0.0
    assert np.exp(-started.late_risk(1, 0.0, 79.0)) == pytest.approx(0.9)


def test_before_anything_was_seen_only_time_that_is_left_counts():
    model = LatencyModel()
    assert model.late_risk(100, 50.0, 0.0) == 0.0
    assert model.late_risk(1, 0.0, -0.1) == np.inf


def durations(quantile: float, **options: Any) -> np.ndarray:
    """Seconds of 28 batches with more waves than the cap allows, after a first one in each of four runs."""
    plan = SamplingPlan(
        BalancedExit(2, 2), (8,), 32, 4, 400, caps=Caps(max_seconds=SECONDS), seconds_quantile=quantile, **options
    )
    found = []
    for seed in range(4):
        latency = LatencyModel()
        for step in range(8):
            workload = Workload(beta_pass_rates(PROMPTS, 0.6, 1.5, seed), LengthModel(), seed=seed, step=step)
            session = SamplingSession(plan, np.arange(PROMPTS), run_seed=seed, step=step, latency=latency)
            result = run_sampling(session, DiscreteEventSource(workload.draw))
            if step:
                found.append(result.stats["sampling_seconds"])
    return np.array(found)


@pytest.mark.statistics
@pytest.mark.parametrize(
    "options", [{"scheduler": "rounds"}, {}, {"window": 4}], ids=["rounds", "continuous", "issue_order"]
)
def test_as_many_batches_end_in_time_as_were_asked_for(options):
    half, most = durations(0.5, **options), durations(0.9, **options)
    assert (half > SECONDS).mean() <= 0.5
    assert (most > SECONDS).mean() <= 0.1
    assert half.max() < 1.5 * SECONDS
    assert most.max() < 1.2 * SECONDS
    assert half.mean() > most.mean() > 0.7 * SECONDS  # and the time is used


def test_what_was_granted_before_counts():
    """Waves of four, each late with probability 1 - .9^4 = .34: one is borne with .5, two are not (.57)."""
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, 400, caps=Caps(max_seconds=40.0))
    session = SamplingSession(plan, np.arange(3), run_seed=0, step=0, latency=known([10] * 90 + [50] * 10))
    source = ScriptedSource(Script.of("+", "+", "+"), np.random.default_rng(0))
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), 0.0)
    assert len(session.next_requests(0.0)) == 4
    session.record(source.end([4, 5, 6, 7]), 0.0)
    assert len(session.next_requests(0.0)) == 0
    assert session.state.cut_P.tolist() == [False, True, False]
    assert session.state.refusals["max_seconds"] == 1


def test_what_runs_beside_a_granted_wave_counts_in_its_risk():
    """Beside four others a token takes 9 s: 28 of them fit into 260 s, and a wave's risk is -4 log .9 = .42, of which
    .69 bears one. Alone it would take 5 s: 52 tokens fit, and there is no risk."""
    latency = known([10] * 90 + [50] * 10, slope=1.0)
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, 400, caps=Caps(max_seconds=260.0))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    source = ScriptedSource(Script.of("+", "+"), np.random.default_rng(0))
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), 0.0)
    assert len(session.next_requests(0.0)) == 4  # beside four that run
    session.record(source.end([4, 5, 6, 7]), 0.0)
    assert len(session.next_requests(0.0)) == 0  # its own risk is the same, and the two are more than is borne


@pytest.mark.parametrize(("first_wave", "issued"), [(10.0, 4), (15.0, 4), (15.1, 0)])
def test_a_first_step_takes_a_wave_to_last_as_long_as_the_batch_has(first_wave, issued):
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, 400, caps=Caps(max_seconds=30.0))
    session = SamplingSession(plan, np.arange(1), run_seed=0, step=0)
    source = ScriptedSource(Script.of("+"), np.random.default_rng(0))
    source.submit(session.next_requests(0.0))
    session.record(source.end([0, 1, 2, 3]), first_wave)
    assert len(session.next_requests(first_wave)) == issued


@pytest.mark.parametrize(("elapsed", "left"), [(0.0, 80.0), (20.0, 60.0), (30.0, 50.0), (45.0, 35.0)])
def test_what_is_left_of_a_start_is_time_until_the_end(elapsed, left):
    """Start-up takes 30 s, all responses have 50 tokens of a second each."""
    model = known([50] * 20, start=30.0)
    assert model.remaining_seconds(np.array([elapsed]), 1.0) == pytest.approx(left, abs=1.0)
    assert model.remaining_seconds(np.array([elapsed, 40.0]), 1.0) == pytest.approx(max(left, 40.0), abs=1.0)
