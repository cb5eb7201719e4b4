"""The driver: what it asks of a source, in which order, and how it reacts to a stop."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.errors import InvariantError
from tests.core.scripted import Script, ScriptedSource


def parts(plan: SamplingPlan, script: Script) -> tuple[SamplingSession, ScriptedSource]:
    session = SamplingSession(plan, np.arange(len(script.reward_PI)), run_seed=0, step=0)
    return session, ScriptedSource(script, np.random.default_rng(0))


def test_a_barrier_submits_only_to_an_empty_engine():
    session, source = parts(
        SamplingPlan(BalancedExit(2, 2), (4, 2), 16, 4, 40, scheduler="rounds"), Script.random(0, [0.1] * 6)
    )
    before = []
    source.watch = lambda: before.append(len(source.running) - len(source.submitted[-1][1]))
    run_sampling(session, source)
    assert len(before) > 3
    assert set(before) == {0}


def test_without_a_barrier_prompts_go_on_alone():
    session, source = parts(SamplingPlan(BalancedExit(2, 2), (4, 2), 16, 4, 40), Script.random(0, [0.1] * 6))
    before = []
    source.watch = lambda: before.append(len(source.running) - len(source.submitted[-1][1]))
    run_sampling(session, source)
    assert max(before) > 0


def test_dropped_responses_are_aborted_before_the_source_is_polled_again():
    session, source = parts(SamplingPlan(BalancedExit(1, 1), (4,), 16, 4, 40, window=6), Script.random(1, [0.5] * 20))
    poll = source.poll

    def checked_poll():
        assert not session.aborting
        return poll()

    source.poll = checked_poll
    run_sampling(session, source)
    assert source.aborted
    assert not source.running


def test_the_heartbeat_is_called_at_every_decision_until_it_orders_a_stop():
    session, source = parts(SamplingPlan(FixedExit(4), (1,), 4, 4, 40), Script.of("+", "-"))
    beats = []
    result = run_sampling(session, source, stop_check=lambda: beats.append(1))
    assert len(beats) > 4
    assert not result.cut_P.any()


@pytest.mark.parametrize(
    ("orders", "running", "kept", "dropped"),
    [
        (["drain"], [0, 4, 3, 2, 1], 5, False),
        (["drain", "drain", None, "drain"], [0, 4, 3, 2, 1], 5, False),
        (["drop"], [0, 4], 1, True),
        (["drain", None, "drop"], [0, 4, 3, 2], 3, True),
    ],
)
def test_a_stop_may_still_become_a_drop_while_what_runs_is_finished(orders, running, kept, dropped):
    session, source = parts(SamplingPlan(FixedExit(4), (1,), 4, 4, 40), Script.of(*["+"] * 5))
    source.newest_first = True  # one response per poll: draining takes several decisions
    beats = []
    asked = iter([None, *orders])

    def on_event():
        if source.running or not beats:
            beats.append(len(source.running))
        return next(asked, None)

    result = run_sampling(session, source, stop_check=on_event)
    assert beats == running
    assert result.size_P.sum() == kept
    assert session.dropped == dropped


@pytest.mark.parametrize("order", ["drain", "drop"])
def test_a_step_that_is_stopped_before_its_first_response_is_dropped(order):
    session, source = parts(SamplingPlan(FixedExit(4), (4,), 4, 4, 40), Script.of("+"))
    result = run_sampling(session, source, stop_check=lambda: order)
    assert not source.issued and len(result.response_id_N) == 0
    assert session.dropped


def test_a_source_that_reports_twice_is_noticed():
    session, source = parts(SamplingPlan(FixedExit(4), (4,), 4, 4, 40), Script.of("+"))
    outcomes = []

    def repeating_poll():
        if not outcomes:
            outcomes.append(source.end([0]))
        return outcomes[0]

    source.poll = repeating_poll
    with pytest.raises(InvariantError, match="not in flight"):
        run_sampling(session, source)
