"""The driver: what it asks of a source, in which order, and how it reacts to a stop; and the two stopping rules."""

import asyncio
from dataclasses import fields

import numpy as np
import pytest

from nemo_ada.core.sampling.budget import Budget, StepLedger
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling, run_sampling_async
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


class Awaited:
    """A scripted source whose calls are awaited."""

    def __init__(self, source):
        self.source, self.clock, self.waits = source, source.clock, 0

    async def submit(self, requests):
        await asyncio.sleep(0)
        self.source.submit(requests)

    async def poll(self):
        await asyncio.sleep(0)
        return self.source.poll()

    async def abort(self, response_id_N):
        return self.source.abort(response_id_N)

    async def wait(self):
        self.waits += 1


@pytest.mark.parametrize("orders", [[], ["drain"], [None, "drop"], [None, "give_up"]])
def test_a_source_that_is_awaited_gives_the_same_pools_to_the_bit(orders):
    plan, script = SamplingPlan(StopRule(BalancedExit(2, 2), (4, 2), 16), 4, 40), Script.random(2, [0.2] * 6)

    def stop_check():
        asked = iter([None, *orders])
        return lambda: next(asked, None)

    called, source = parts(plan, script)
    result = run_sampling(called, source, stop_check=stop_check())
    awaited, other = parts(plan, script)
    found = asyncio.run(run_sampling_async(awaited, Awaited(other), stop_check=stop_check()))
    assert awaited.dropped == called.dropped == ("drop" in orders)
    for field in fields(result):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(result, field.name), field.name)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_session_waits_while_a_shared_budget_serves_an_earlier_one(awaits):
    """Eleven samples for two prompts: the first may still want seven of them, until it has ended with four."""
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 8), 4, 40, budget=Budget(max_samples=15))
    step = StepLedger(plan.budget, groups=2, first=4, most=8)
    ledgers = [step.start(), step.start()]
    first, late = (Driven(plan, "++--" if n == 0 else "++++--", ledger=ledgers[n]) for n in range(2))
    first.ask()
    waits = []

    def wait():
        waits.append(1)
        if len(waits) == 3:
            first.end(1.0, *range(4))
            first.ask(1.0)
            ledgers[0].end()

    class Waiting(Awaited):
        async def wait(self):
            wait()

    if awaits:
        result = asyncio.run(run_sampling_async(late.session, Waiting(late.source)))
    else:
        result = run_sampling(late.session, late.source, wait=wait)
    assert len(waits) == 3 and result.size_P.tolist() == [8]
