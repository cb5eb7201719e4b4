"""The two stopping rules, event by event, and the optional-stopping facts that they rest on."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit, PositiveExit
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload
from tests.core.scripted import Script, ScriptedSource


def begun(plan: SamplingPlan, *rows: str) -> tuple[SamplingSession, ScriptedSource]:
    source = ScriptedSource(Script.of(*rows), np.random.default_rng(0))
    session = SamplingSession(plan, np.arange(len(rows)), run_seed=0, step=0)
    source.submit(session.next_requests(0.0))
    return session, source


def end(session: SamplingSession, source: ScriptedSource, *rows: int) -> None:
    session.record(source.end(list(rows)), source.clock())
    dropped = session.take_aborts()
    if len(dropped):
        session.record_aborted(dropped, source.abort(dropped), source.clock())
    requests = session.next_requests(source.clock())
    if len(requests):
        source.submit(requests)


def test_a_wave_is_judged_when_its_last_response_is_in_and_not_before():
    session, source = begun(SamplingPlan(PositiveExit(1), (3,), 9, 4, 40), "+++")
    end(session, source, 0)
    end(session, source, 2)
    assert session.state.pos_P.tolist() == [0]
    assert not session.finished
    end(session, source, 1)
    assert session.result().pos_P.tolist() == [3]
    assert not source.aborted


def test_issue_order_drops_what_was_issued_after_the_exit_finished_or_not():
    session, source = begun(SamplingPlan(BalancedExit(1, 1), (4,), 9, 4, 40, window=5), "+-+-+")
    end(session, source, 4)
    end(session, source, 1)
    assert not source.aborted
    end(session, source, 0)
    assert sorted(source.aborted) == [2, 3, 5]  # 5 filled the place of 4
    result = session.result()
    assert result.index_N.tolist() == [0, 1]
    assert result.stats["samples_dropped"] == 4


@pytest.mark.parametrize("window", [2, 8])
def test_at_the_exact_kth_success_the_pass_rate_is_unbiased_and_a_wave_pool_overstates_it(window):
    """algorithm.md section 4: (K-1)/(N-1) with issue_order; N_pos/N over waves of 8 is +30 % at p = 0.1."""
    p, k, prompts = 0.2, 2, 3000
    workload = Workload(np.full(prompts, p), LengthModel(), seed=5)
    plan = SamplingPlan(PositiveExit(k), (8,), 200, 4, 400, window=window)
    session = SamplingSession(plan, np.arange(prompts), run_seed=0, step=0)
    size_P = run_sampling(session, DiscreteEventSource(workload.draw)).size_P
    unbiased_P = (k - 1) / (size_P - 1)
    error = unbiased_P.std() / np.sqrt(prompts)
    assert abs(unbiased_P.mean() - p) < 4 * error
    assert (k / size_P).mean() - p > 8 * error
    assert abs(size_P.mean() - k / p) < 4 * size_P.std() / np.sqrt(prompts)  # E[N] = K/p
