"""What the session's bookkeeping costs: the time of its own calls, without engine and verifier.

    python recipes/benchmarks/bench_session.py

Expect (one core of a 2020s server CPU): 4096 prompts x 128 responses well under 1 s in total when outcomes come in
engine-sized groups, and some tens of microseconds per event when they come one by one. Between the steps of an engine
in the same process an event takes several times as long (cold caches): bench_sampling.py measures that share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from measure import measure
from workload import HARD

from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.core.sampling.state import StepState
from nemo_ada.lab.simulate.engine import LengthModel, Workload

T = TypeVar("T")


class Stopwatch:
    """Adds up the seconds of the calls that go through it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, call: Callable[..., T], *arguments: object, **named: object) -> T:
        begin = time.perf_counter()
        result = call(*arguments, **named)
        self.seconds += time.perf_counter() - begin
        self.calls += 1
        return result


def bookkeeping(plan: SamplingPlan, prompts: int, group: int) -> tuple[float, int, int]:
    """(seconds in the session, responses, events) with outcomes in groups of `group`, in order of issue."""
    workload = Workload(HARD.draw(prompts, 0), LengthModel(), seed=0)
    session_time = Stopwatch()
    state = session_time(StepState, plan, np.arange(prompts))
    session = session_time(SamplingSession, state, run_seed=0, step=0, latency=LatencyModel(keep_lengths=4096))
    issued: list[np.ndarray] = []
    reward = tokens = waiting = np.zeros(0, np.int64)
    events, now = 0, 0.0
    dropped: set[int] = set()
    while True:
        rows = session_time(session.take_aborts)
        if len(rows):
            session_time(session.record_aborted, rows, np.ones(len(rows), np.int64), now)
            dropped.update(rows.tolist())
            waiting = waiting[~np.isin(waiting, rows)]
        requests = session_time(session.next_requests, now)
        if len(requests):
            reward_N, tokens_N = workload.draw(requests.prompt_N, requests.index_N)
            reward, tokens = np.concatenate([reward, reward_N]), np.concatenate([tokens, tokens_N])
            waiting = np.concatenate([waiting, requests.response_id_N])
            issued.append(requests.response_id_N)
        if session.finished:
            session_time(session.result)
            return session_time.seconds, sum(map(len, issued)), events
        now += 1.0
        ended, waiting = waiting[:group], waiting[group:]
        session_time(session.record, Outcomes(ended, reward[ended].astype(np.float64), tokens[ended]), now)
        events += 1


def main() -> None:
    large: dict[str, Any] = dict(group_size=16, max_new_tokens=4096)
    fixed = SamplingPlan(StopRule(FixedExit(128), (16,), 128), **large)
    balanced = SamplingPlan(StopRule(BalancedExit(8, 8), (16,), 128), **large)
    capped = replace(balanced, budget=Budget(max_samples=200_000))
    print(f"{'':34}{'prompts':>8}{'group':>7}{'responses':>11}{'seconds':>9}{'us/event':>10}")
    cases = [
        ("fixed(128), waves of 16", fixed, 4096, 4096),
        ("balanced(8,8), waves of 16", balanced, 4096, 4096),
        ("balanced(8,8), capped", capped, 4096, 4096),
        ("fixed(128), engine of 256 slots", fixed, 4096, 256),
        ("balanced(2,2), one by one", SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 400), 64, 1),
        ("balanced(2,2), 4 at a time", SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 400), 512, 4),
    ]
    for name, plan, prompts, group in cases:
        seconds, responses, events = min(bookkeeping(plan, prompts, group) for _ in range(5))
        print(f"{name:34}{prompts:8}{group:7}{responses:11}{seconds:9.3f}{1e6 * seconds / events:10.1f}")


if __name__ == "__main__":
    measure(main)
