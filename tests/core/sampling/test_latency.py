"""The latency model: exact state, sensible predictions on an engine whose truth is known (the discrete-event model)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload
from tests.core.scripted import Script, ScriptedSource

LENGTHS = LengthModel(median=20, sigma=0.9, wrong_factor=1.0)


def one_step(
    plan: SamplingPlan, latency: LatencyModel, step: int, prompts: int = 64, pass_rate: float = 0.4, **engine: float
) -> float:
    """Duration of the step."""
    workload = Workload(np.full(prompts, pass_rate), LENGTHS, seed=11, step=step)
    source = DiscreteEventSource(workload.draw, **engine)
    session = SamplingSession(plan, np.arange(prompts), run_seed=0, step=step, latency=latency)
    return run_sampling(session, source).stats["sampling_seconds"]


GRPO = SamplingPlan(FixedExit(4), (4,), 4, 4, 400)


def test_nothing_is_predicted_before_anything_was_seen():
    model = LatencyModel()
    assert not model.ready
    assert model.wave_seconds(8, 100.0, 0.9) == 0.0
    assert model.remaining_seconds(np.zeros(3), 3.0) == 0.0
    assert model.length_quantile(0.9) == 0


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=40)
def test_state_round_trips_through_json_exactly(seed, steps):
    rng = np.random.default_rng(seed)

    def learn(model: LatencyModel, rng: np.random.Generator) -> None:
        tokens = rng.integers(1, 300, 50)
        model.observe(tokens[:20], tokens, tokens * rng.random(50), 100 * rng.random(50))

    model = LatencyModel(keep_lengths=60)
    for _ in range(steps):
        learn(model, rng)
    twin = LatencyModel(keep_lengths=60)
    twin.load_state_dict(json.loads(json.dumps(model.state_dict())))
    after = np.random.default_rng(seed + 1).bit_generator.state
    for one in (model, twin):  # and both go on identically
        again = np.random.default_rng()
        again.bit_generator.state = after
        learn(one, again)
    assert twin.state_dict() == model.state_dict()
    elapsed = rng.random(7) * 20
    assert twin.remaining_seconds(elapsed, 7.0) == model.remaining_seconds(elapsed, 7.0)
    assert twin.wave_seconds(4, 30.0, 0.8) == model.wave_seconds(4, 30.0, 0.8)
    assert twin.length_quantile(0.95) == model.length_quantile(0.95)


@given(st.floats(0.1, 5), st.floats(0, 0.2))
@settings(max_examples=40)
def test_a_linear_engine_is_recognised(base, slope):
    rng = np.random.default_rng(0)
    tokens, load = rng.integers(1, 200, 500), rng.uniform(1, 100, 500)
    model = LatencyModel()
    model.observe(tokens, tokens, tokens * (base + slope * load), load)
    for in_flight in (1.0, 40.0, 200.0):
        assert model.seconds_per_token(in_flight) == pytest.approx(base + slope * in_flight, rel=1e-6)


def test_the_cost_of_a_prompt_is_told_apart_from_the_cost_of_a_token():
    rng = np.random.default_rng(0)
    length, load = rng.integers(2, 200, 400), rng.uniform(1, 60, 400)
    model = LatencyModel()
    model.observe(length, length, 0.5 + length * (0.01 + 0.001 * load), load)
    assert model.seconds_per_token(20.0) == pytest.approx(0.03, rel=1e-6)
    whole_wave = model.length_quantile(0.5) * model.seconds_per_token(10.0)
    assert model.wave_seconds(1, 9.0, 0.5) == pytest.approx(0.5 + whole_wave, rel=1e-6)


def test_neither_base_nor_slope_become_negative():
    model = LatencyModel()
    tokens = np.full(100, 10)
    load = np.linspace(1, 100, 100)
    model.observe(tokens, tokens, tokens * (5.0 - 0.04 * load), load)  # faster when fuller
    assert model.seconds_per_token(0.0) == model.seconds_per_token(1000.0) > 0
    steep = LatencyModel()
    steep.observe(tokens, tokens, tokens * np.maximum(0.0, load - 30.0), load)
    assert steep.seconds_per_token(0.0) == 0.0
    assert steep.seconds_per_token(100.0) > 0


def test_old_lengths_are_forgotten_and_the_longest_recent_one_is_not():
    model = LatencyModel(keep_lengths=1000)
    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    model.observe(np.arange(5000), none, nothing, nothing)
    assert model.length_quantile(0.0) == 4000
    assert model.length_quantile(1.0) == 4999
    assert len(model.state_dict()["lengths"]) == 1000


def test_length_quantiles_are_those_of_the_sample():
    model = LatencyModel()
    lengths = np.random.default_rng(0).permutation(np.arange(1, 101))
    model.observe(lengths, lengths[:0], np.zeros(0), np.zeros(0))
    for level in (0.01, 0.5, 0.8, 0.95, 1.0):
        assert model.length_quantile(level) == np.quantile(lengths, level, method="inverted_cdf")


@pytest.mark.parametrize("engine", [{}, {"step_seconds": 0.02, "row_seconds": 0.0005}])
def test_phase_ends_are_predicted_from_one_observed_step(engine):
    """Predicted at t = 0: the end of GRPO's first waves. The mean over steps is right within a quarter."""
    latency = LatencyModel()
    predicted, actual = [], []
    for step in range(25):
        if step:
            predicted.append(latency.remaining_seconds(np.zeros(256), 256.0 * 0.2))
        seconds = one_step(GRPO, latency, step, **engine)
        if step:
            actual.append(seconds)
    assert np.mean(predicted) == pytest.approx(np.mean(actual), rel=0.25)


def test_wave_times_are_quantiles_of_wave_times():
    """Of waves of 4 drawn afresh from the engine's lengths, about 80 % end within the 0.8 prediction."""
    latency = LatencyModel()
    for step in range(4):
        one_step(GRPO, latency, step)
    fresh = Workload(np.full(2000, 0.4), LENGTHS, seed=99)
    _, tokens = fresh.draw(np.repeat(np.arange(2000), 4), np.tile(np.arange(4), 2000))
    longest = tokens.reshape(2000, 4).max(axis=1)
    for level in (0.5, 0.8, 0.95):
        share = (longest <= latency.wave_seconds(4, 100.0, level)).mean()
        assert share == pytest.approx(level, abs=0.05)


def test_the_remaining_time_is_the_median_of_the_last_end():
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(3, 0.9, 4000).astype(np.int64) + 1
    model = LatencyModel()
    model.observe(lengths, lengths, lengths.astype(np.float64), np.ones(len(lengths)))
    ends = []
    for _ in range(400):
        drawn = rng.choice(lengths[lengths > 60], 5)  # five responses at token 60
        ends.append(drawn.max() - 60)
    assert model.remaining_seconds(np.full(5, 60.0), 5.0) == pytest.approx(np.median(ends), rel=0.15)


@pytest.mark.parametrize(("options", "pass_rate"), [({"window": 6}, 0.4), ({"idle": True, "idle_quantile": 0.5}, 0.02)])
def test_lengths_that_the_model_learns_are_not_censored(options, pass_rate):
    """issue_order and idle mode drop long responses: learning from all that finished would make them look short."""
    mean_length = []
    for plan in (GRPO, SamplingPlan(BalancedExit(2, 2), (4,), 64, 4, 400, **options)):
        latency = LatencyModel(keep_lengths=10**6)
        for step in range(10):
            one_step(plan, latency, step, prompts=256, pass_rate=pass_rate)
        lengths = np.array(latency.state_dict()["lengths"])
        mean_length.append((lengths.mean(), lengths.std() / np.sqrt(len(lengths))))
    (grpo, grpo_error), (other, other_error) = mean_length
    assert abs(grpo - other) < 3 * np.hypot(grpo_error, other_error)


def taught(plan: SamplingPlan, latency: LatencyModel, ends: list[list[int]], *, drop: bool) -> list[int]:
    """Lengths that a session of two prompts teaches: `ends` finishes these rows one call after the other. Responses of
    prompt 0 have lengths 10, 11, ..., those of prompt 1 20, 21, ..."""
    script = Script.of("+", "++-")
    script.tokens_PI[:] = np.array([[10], [20]]) + np.arange(256)
    source = ScriptedSource(script, np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(2), run_seed=0, step=0, latency=latency)
    known = len(latency.state_dict()["lengths"])
    for rows in ends:
        asked = session.next_requests(source.clock())
        if len(asked):
            source.submit(asked)
        session.record(source.end(rows), source.clock())
    if drop:
        source.submit(session.next_requests(source.clock()))
        session.stop(drain=False)
        rows = session.take_aborts()
        session.record_aborted(rows, source.abort(rows), source.clock())
    session.result()
    return sorted(latency.state_dict()["lengths"][known:])


FIRST_WAVES = [10, 11, 12, 13, 20, 21, 22, 23]


def test_a_whole_step_teaches_all_its_lengths():
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 8, 4, 400)
    lengths = taught(plan, LatencyModel(), [list(range(8)), list(range(8, 12))], drop=False)
    assert lengths == sorted([*FIRST_WAVES, 14, 15, 16, 17])


def test_a_step_that_was_dropped_teaches_nothing():
    plan = SamplingPlan(BalancedExit(2, 2), (4,), 16, 4, 400)
    assert taught(plan, LatencyModel(), [list(range(8)), list(range(8, 12))], drop=True) == []


def test_idle_mode_teaches_first_waves_only_also_where_no_wave_was_dropped():
    """An extra wave is kept when it was short: learning from it would make responses look short."""
    latency = LatencyModel()
    latency.observe(np.array([2] * 90 + [200] * 10), np.full(9, 10), np.full(9, 10.0), np.full(9, 4.0))
    plan = SamplingPlan(BalancedExit(1, 1), (4,), 8, 4, 400, idle=True, idle_quantile=0.5)
    lengths = taught(plan, latency, [[0, 1, 2, 3], [8, 9, 10, 11], [4, 5, 6, 7]], drop=False)
    assert lengths == FIRST_WAVES
