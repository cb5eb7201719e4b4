"""The driver: what it asks of a source, in which order, and how it reacts to a stop; and the two stopping rules."""

import pytest

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.summary import summarise
from tests.core.scripted import Driven, Script, stopping_of


def parts(plan, script):
    run = Driven(plan, script)
    return run.session, run.source


@pytest.mark.parametrize("scheduler", ["rounds", "continuous"])
def test_only_a_barrier_waits_for_an_empty_engine(scheduler):
    plan = SamplingPlan(BalancedExit(2, 2), (4, 2), 16, 4, 40, scheduler=scheduler)
    session, source = parts(plan, Script.random(0, [0.1] * 6))
    before = []
    source.watch = lambda: before.append(len(source.running) - len(source.submitted[-1][1]))
    beats = []
    result = run_sampling(session, source, stop_check=lambda: beats.append(1))
    assert len(before) > 3 and (max(before) == 0) == (scheduler == "rounds")
    assert len(beats) > len(before) and not result.cut_P.any(), "asked at every decision, which stops nothing"


def test_dropped_responses_are_aborted_before_the_source_is_polled_again():
    session, source = parts(
        SamplingPlan(BalancedExit(1, 1), (4,), 16, 4, 40, stopping=stopping_of(6)), Script.random(1, [0.5] * 20)
    )
    poll = source.poll

    def checked_poll():
        assert not session.state.to_abort
        return poll()

    source.poll = checked_poll
    run_sampling(session, source)
    assert source.aborted
    assert not source.running


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


# stopping, event by event ---------------------------------------------------------------------------------------------


def finish(run, *rows):
    run.end(run.source.clock(), *rows)
    run.drop(run.source.clock())
    run.ask(run.source.clock())


def test_issue_order_drops_what_was_issued_after_the_exit_finished_or_not():
    run = Driven(SamplingPlan(BalancedExit(1, 1), (4,), 9, 4, 40, stopping=stopping_of(5)), "+-+-+")
    run.ask()
    finish(run, 4)
    finish(run, 1)
    assert not run.source.aborted
    finish(run, 0)
    assert sorted(run.source.aborted) == [2, 3, 5]  # 5 filled the place of 4
    result = run.session.result()
    assert result.index_N.tolist() == [0, 1]
    assert summarise(result)["samples_dropped"] == 4
