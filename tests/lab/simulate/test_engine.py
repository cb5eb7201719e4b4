"""The discrete-event engine, and what a session gains on it.

Workload of the sessions: 64 prompts, pass rates Beta(0.6, 1.5), log-normal lengths (sigma 0.9, wrong answers 1.3x
longer), balanced(2,2), at most 32 responses, ten seeds.
"""

import dataclasses
from functools import cache

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Requests
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.errors import InvariantError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates

PROMPTS, SEEDS = 64, range(10)
BARRIER = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 400, scheduler="rounds")
CONTINUOUS = dataclasses.replace(BARRIER, scheduler="continuous")
WINDOWS = (4, 6, 8)


# the engine -----------------------------------------------------------------------------------------------------------


def table_engine(lengths, **options):
    tokens = np.array(lengths)
    return DiscreteEventSource(lambda prompt_N, index_N: (np.ones(len(index_N)), tokens[index_N]), **options)


def requests(*index):
    column = np.array(index, np.int64)
    return Requests(column, np.zeros_like(column), column, np.zeros_like(column), column)


def test_every_running_request_gets_one_token_per_step():
    engine = table_engine([5, 2, 2])
    engine.submit(requests(0, 1, 2))
    first = engine.poll()
    assert sorted(first.response_id_N.tolist()) == [1, 2]
    assert (engine.clock(), engine.steps, engine.decoded) == (2.0, 2, 6)
    assert engine.poll().tokens_N.tolist() == [5]
    assert (engine.clock(), engine.decoded) == (5.0, 9)


def test_a_poll_ends_at_the_step_that_it_may_reach_at_most():
    engine = table_engine([5, 2])
    engine.submit(requests(0, 1))
    assert len(engine.poll(until=1)) == 0 and (engine.steps, engine.decoded) == (1, 2)
    assert engine.poll(until=9).response_id_N.tolist() == [1] and engine.steps == 2
    assert len(engine.poll(until=4)) == 0 and engine.poll().tokens_N.tolist() == [5]


def test_at_most_slots_run_and_the_rest_waits_in_order():
    engine = table_engine([3, 5, 1, 1], slots=2)
    engine.submit(requests(0, 1, 2, 3))
    ended = []
    while len(ended) < 4:
        ended += [(row, engine.steps) for row in engine.poll().response_id_N.tolist()]
    assert ended == [(0, 3), (2, 4), (1, 5), (3, 5)]
    assert engine.decoded == 10


def test_an_aborted_request_returns_what_it_had_and_frees_its_slot():
    engine = table_engine([9, 4, 7, 2, 2, 2, 2], slots=2)
    engine.submit(requests(0, 1, 2, 3))
    engine.poll()  # 1 ends at 4, 2 starts
    assert engine.abort(np.array([0, 2])).tolist() == [4, 0]
    assert engine.poll().response_id_N.tolist() == [3]
    assert engine.steps == 6
    assert engine.decoded == 4 + 4 + 2
    engine.submit(requests())
    engine.submit(requests(4, 5, 6))
    assert engine.abort(np.array([6])).tolist() == [0], "one that waits never starts"
    assert sorted(engine.poll().response_id_N.tolist()) == [4, 5]
    with pytest.raises(InvariantError, match="no requests"):
        engine.poll()


def test_steps_can_have_a_duration():
    engine = table_engine([1, 3], step_seconds=0.1, row_seconds=0.01)
    engine.submit(requests(0, 1))
    engine.poll()
    assert engine.clock() == pytest.approx(0.12)
    engine.poll()
    assert engine.clock() == pytest.approx(0.12 + 2 * 0.11)


# the workload ---------------------------------------------------------------------------------------------------------


def test_a_response_is_the_same_whenever_it_is_drawn():
    workload = Workload(np.array([0.2, 0.8]), seed=3, step=4, failed_share=0.1)
    prompt_N, index_N = np.repeat([0, 1], 50), np.tile(np.arange(50), 2)
    reward_N, tokens_N = workload.draw(prompt_N, index_N)
    order = np.random.default_rng(0).permutation(100)
    again = workload.draw(prompt_N[order], index_N[order])
    np.testing.assert_array_equal(again[0], reward_N[order])
    np.testing.assert_array_equal(again[1], tokens_N[order])
    other = dataclasses.replace(workload, step=5).draw(prompt_N, index_N)
    assert (other[1] != tokens_N).any()


def test_labels_and_lengths_have_the_stated_distributions():
    n = 200_000
    lengths = LengthModel(median=20, sigma=0.9, wrong_factor=1.5, max_new_tokens=400)
    workload = Workload(np.array([0.3]), lengths, seed=1, failed_share=0.02)
    reward_N, tokens_N = workload.draw(np.zeros(n, np.int64), np.arange(n))
    assert np.isnan(reward_N).mean() == pytest.approx(0.02, abs=0.002)
    labelled = ~np.isnan(reward_N)
    assert reward_N[labelled].mean() == pytest.approx(0.3, abs=0.005)
    assert np.median(tokens_N[reward_N == 1]) == pytest.approx(20, abs=1)
    assert np.median(tokens_N[reward_N == 0]) == pytest.approx(30, abs=1)
    inner = tokens_N[(reward_N == 1) & (tokens_N < 400)]
    assert np.log(inner).std() == pytest.approx(0.9, abs=0.03)
    assert tokens_N.max() == 400


def test_pass_rates_come_from_a_beta():
    rates = draw_beta_rates(20_000, 0.6, 1.5, seed=0)
    assert rates.mean() == pytest.approx(0.6 / 2.1, abs=0.01)
    np.testing.assert_array_equal(rates, draw_beta_rates(20_000, 0.6, 1.5, seed=0))


# what the session makes of it -----------------------------------------------------------------------------------------


@cache
def one_step(plan, seed):
    source = DiscreteEventSource(Workload(draw_beta_rates(PROMPTS, 0.6, 1.5, seed), seed=seed).draw)
    result = run_sampling(SamplingSession(StepState(plan, np.arange(PROMPTS)), run_seed=seed, step=0), source)
    assert summarise(result)["tokens_drawn"] == source.decoded
    assert summarise(result)["sampling_seconds"] == source.steps
    return source
