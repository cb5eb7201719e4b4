"""The driver: what it asks of a source, in which order, and how it reacts to a stop; and the two stopping rules."""

import pytest

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from tests.core.scripted import Driven, Script


def parts(plan, script):
    run = Driven(plan, script)
    return run.session, run.source


@pytest.mark.parametrize("scheduler", ["rounds", "continuous"])
def test_only_a_barrier_waits_for_an_empty_engine(scheduler):
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4, 2), 16), 4, 40, scheduler=scheduler)
    session, source = parts(plan, Script.random(0, [0.1] * 6))
    before = []
    source.watch = lambda: before.append(len(source.running) - len(source.submitted[-1][1]))
    beats = []
    result = run_sampling(session, source, stop_check=lambda: beats.append(1))
    assert len(before) > 3 and (max(before) == 0) == (scheduler == "rounds")
    assert len(beats) > len(before) and not result.cut_P.any(), "asked at every decision, which stops nothing"


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
    session, source = parts(SamplingPlan(StopRule(FixedExit(4), (1,), 4), 4, 40), Script.of(*["+"] * 5))
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
