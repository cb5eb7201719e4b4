"""The latency model: sensible predictions on an engine whose truth is known. Its state: test_resume.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.lab.simulate.engine import LengthModel
from tests.core.scripted import Driven, Script

LENGTHS = LengthModel(median=20, sigma=0.9, wrong_factor=1.0)

GRPO = SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, 400)


def test_nothing_is_predicted_before_anything_was_seen():
    model = LatencyModel()
    assert not model.ready
    assert model.compute_late_risk(8, 100.0, 1.0) == 0.0
    assert model.get_length_quantile(0.9) == 0


@given(st.floats(0.1, 5), st.floats(0, 0.2))
@settings(max_examples=20)
def test_a_linear_engine_is_recognised_and_the_cost_of_a_prompt_told_apart(base, slope):
    rng, model, with_start = np.random.default_rng(0), LatencyModel(), LatencyModel()
    tokens, load = rng.integers(2, 200, 500), rng.uniform(1, 100, 500)
    seconds = tokens * (base + slope * load)
    model.observe(tokens, seconds, load)
    with_start.observe(tokens, seconds + 50 * base, load)
    for in_flight in (1.0, 40.0, 200.0):
        pace = pytest.approx(base + slope * in_flight, rel=1e-6)
        assert model.predict_seconds_per_token(in_flight) == pace
        assert with_start.predict_seconds_per_token(in_flight) == pace
    longest = 50 * base + with_start.get_length_quantile(1.0) * with_start.predict_seconds_per_token(10.0)
    assert (
        with_start.compute_late_risk(1, 9.0, 1.001 * longest)
        == 0.0
        < with_start.compute_late_risk(1, 9.0, 0.98 * longest)
    )


def test_neither_base_nor_slope_become_negative():
    model = LatencyModel()
    tokens = np.full(100, 10)
    load = np.linspace(1, 100, 100)
    model.observe(tokens, tokens * (5.0 - 0.04 * load), load)  # faster when fuller
    assert model.predict_seconds_per_token(0.0) == model.predict_seconds_per_token(1000.0) > 0
    steep = LatencyModel()
    steep.observe(tokens, tokens * np.maximum(0.0, load - 30.0), load)
    assert steep.predict_seconds_per_token(0.0) == 0.0
    assert steep.predict_seconds_per_token(100.0) > 0


def test_old_lengths_are_forgotten_and_the_longest_recent_one_is_not():
    model = LatencyModel(keep_lengths=1000)
    model.observe(np.arange(5000), np.zeros(5000), np.zeros(5000))
    assert len(model.state_dict()["lengths"]) == 1000
    for level in (0.0, 0.01, 0.5, 0.95, 1.0):
        assert model.get_length_quantile(level) == np.quantile(np.arange(4000, 5000), level, method="inverted_cdf")


FIRST_WAVES = [10, 11, 12, 13, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("options", "ends", "drop", "taught"),
    [
        ({"max_responses": 8}, [range(8), range(8, 12)], False, [*FIRST_WAVES, 14, 15, 16, 17]),
        ({"max_responses": 16}, [range(8), range(8, 12)], True, []),
    ],
    ids=["a whole step", "a dropped step"],
)
def test_a_step_teaches_the_lengths_that_nothing_selected(options, ends, drop, taught):
    """Responses of prompt 0 have lengths 10, 11, ..., those of prompt 1 20, 21, ..."""
    script, latency = Script.of("+", "++-"), LatencyModel()
    script.tokens_PI[:] = np.array([[10], [20]]) + np.arange(256)
    cap = options.pop("max_responses")
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), cap), 4, 400, **options)
    run = Driven(plan, script, latency=latency)
    for rows in ends:
        run.ask(run.source.clock())
        run.end(run.source.clock(), *rows)
    if drop:
        run.ask(run.source.clock())
        run.session.stop(drain=False)
        run.drop(run.source.clock())
    run.session.result()
    assert sorted(latency.state_dict()["lengths"]) == sorted(taught)
