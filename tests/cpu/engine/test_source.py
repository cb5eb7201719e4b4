"""The response source alone, on a scripted engine: who is reported, when, and with which cause."""

from __future__ import annotations

import time
from collections.abc import Hashable
from concurrent.futures import Future
from threading import Timer

import numpy as np
import pytest

from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.cpu.engine import source as module
from nemo_ada.cpu.engine.source import EngineSource, Verify
from nemo_ada.cpu.engine.vllm_engine import Finished, Payload, Sampling
from nemo_ada.errors import InvariantError
from nemo_ada.verify.verdict import TIMEOUT, Verdict
from tests.cpu import scripted_engine

SAMPLING = Sampling(8, stop_tokens=(1,))


class ScriptedEngine(scripted_engine.ScriptedEngine):
    """Reports, step by step, the ids that the script names; an id gets a response of `row + 1` tokens."""

    def __init__(self, *script: list[Hashable] | Exception) -> None:
        super().__init__(lambda prompt: ([], "stop"))
        self.script = list(script)

    def step(self) -> list[Finished]:
        self.steps += 1
        turn = self.script.pop(0) if self.script else []
        if isinstance(turn, Exception):
            raise turn
        for row in turn:
            self.running.pop(row, None)
        return [finished(row) for row in turn]


def finished(row: Hashable) -> Finished:
    if isinstance(row, tuple):  # ("failed", row)
        return Finished(row[1], 3, None, "broken")
    tokens = row + 1 if isinstance(row, int) else 1
    return Finished(row, tokens, Payload(np.full(tokens, row), np.zeros(tokens, dtype=np.float32), "stop"))


def rows(*row: int, prompt: int = 0) -> Requests:
    response_id_N = np.array(row, dtype=np.int64)
    return Requests(
        response_id_N,
        np.full_like(response_id_N, prompt),
        response_id_N.copy(),
        np.zeros_like(response_id_N),
        50 + response_id_N,
    )


def prompts_position(p: int, tokens: list[int], done: bool) -> Verdict:
    return Verdict(float(p))


def source_on(engine: ScriptedEngine, verify: Verify = prompts_position, **options) -> EngineSource:
    return EngineSource(engine, [[5], [6], []], verify, SAMPLING, clock=lambda: 0.0, **options)


def label(outcomes: Outcomes) -> dict[int, float]:
    return dict(zip(outcomes.response_id_N.tolist(), outcomes.reward_N.tolist(), strict=True))


def test_poll_steps_until_something_finishes_and_reports_each_row_once():
    engine = ScriptedEngine([], [], [2, 0], [1])
    source = source_on(engine)
    source.submit(rows(0, 1))
    source.submit(rows(2, prompt=1))
    first = source.poll()
    assert (label(first), engine.steps) == ({2: 1.0, 0: 0.0}, 3)
    assert first.tokens_N.tolist() == [3, 1]
    assert label(source.poll()) == {1: 0.0}
    with pytest.raises(InvariantError, match="no response under way"):
        source.poll()


def test_each_request_carries_its_prompt_and_its_seed():
    engine = ScriptedEngine()
    source = source_on(engine)
    source.submit(rows(0))
    source.submit(rows(7, prompt=1))
    assert {row: (prompt, sampling.seed) for row, (prompt, sampling) in engine.added.items()} == {
        0: ([5], 50),
        7: ([6], 57),
    }


def test_repeated_and_unknown_ids_change_nothing():
    engine = ScriptedEngine(["stranger", 99, 0], [0, 1])
    source = source_on(engine)
    source.submit(rows(0, 1))
    assert label(source.poll()) == {0: 0.0}
    payload = source.payload(0)
    assert label(source.poll()) == {1: 0.0}
    assert source.payload(0) is payload


def test_failures_have_causes_and_no_payload():
    def score(p: int, tokens: list[int], done: bool) -> Verdict:
        match tokens[0]:
            case 1:
                raise ZeroDivisionError
            case 2:
                return Verdict(float("nan"))
            case 3:
                return Verdict(None, "verifier_timeout")
            case 4:
                return None  # type: ignore[return-value]
        return Verdict(1.0)

    engine = ScriptedEngine([0, 1, 2, 3, 4, ("failed", 5)])
    source = source_on(engine, score)
    source.submit(rows(0, 1, 2, 3, 4, 5))
    source.submit(rows(6, prompt=2))  # refused by the engine
    outcomes = source.poll()
    assert outcomes.response_id_N.tolist() == [6]
    assert outcomes.failures == {6: "engine_error"}
    outcomes = source.poll()
    assert outcomes.failures == {
        1: "verifier_error",
        2: "verifier_error",
        3: "verifier_timeout",
        4: "verifier_error",
        5: "engine_error",
    }
    assert outcomes.tokens_N.tolist() == [1, 2, 3, 4, 5, 3]
    assert label(outcomes)[0] == 1.0
    for row in outcomes.failures:
        with pytest.raises(InvariantError):
            source.payload(row)


def test_a_lost_engine_raises_through_poll():
    source = source_on(ScriptedEngine(OSError("out of memory")))
    source.submit(rows(0))
    with pytest.raises(OSError, match="out of memory"):
        source.poll()


def test_an_engine_that_loses_requests_is_noticed():
    engine = ScriptedEngine()
    source = source_on(engine)
    source.submit(rows(0))
    engine.running.clear()
    with pytest.raises(InvariantError, match="lost 1 requests"):
        source.poll()


def test_the_engine_keeps_stepping_while_scores_are_pending():
    futures: dict[int, Future[Verdict]] = {}

    def score(p: int, tokens: list[int], done: bool) -> Future[Verdict]:
        return futures.setdefault(tokens[0], Future())

    engine = ScriptedEngine([0], [], [], [1])
    step = engine.step

    def step_and_score_late() -> list[Finished]:
        if engine.steps == 3:
            futures[0].set_result(Verdict(0.5))
        return step()

    engine.step = step_and_score_late  # type: ignore[method-assign]
    source = source_on(engine, score)
    source.submit(rows(0, 1))
    assert label(source.poll()) == {0: 0.5}
    assert engine.steps == 4
    futures[1].set_exception(RuntimeError("verifier died"))
    assert source.poll().failures == {1: "verifier_error"}
    assert engine.steps == 4


def test_poll_sleeps_when_only_scores_are_pending():
    future: Future[Verdict] = Future()
    engine = ScriptedEngine([0])
    source = source_on(engine, lambda p, tokens, done: future)
    source.submit(rows(0))
    timer = Timer(0.3, future.set_result, [Verdict(1.0)])
    timer.start()
    wall, cpu = time.perf_counter(), time.thread_time()
    assert label(source.poll()) == {0: 1.0}
    assert time.perf_counter() - wall > 0.2
    assert time.thread_time() - cpu < 0.1
    assert engine.steps == 1


def test_abort_reaches_every_stage_before_the_report():
    futures = [Future(), Future()]
    engine = ScriptedEngine([0, 1, 2], [4])
    source = source_on(engine, lambda p, tokens, done: futures[tokens[0]] if tokens[0] < 2 else Verdict(0.0))
    source.submit(rows(0, 1, 2, 3, 4))
    assert label(source.poll()) == {2: 0.0}
    # verifying after 1 token, reported, decoding its 10th
    assert source.abort(np.array([0, 2, 3])).tolist() == [1, 0, 10]
    assert engine.aborted == [3]
    assert futures[0].cancelled()
    futures[1].set_result(Verdict(1.0))
    assert label(source.poll()) == {1: 1.0}
    assert label(source.poll()) == {4: 0.0}
    with pytest.raises(InvariantError, match="never submitted: \\[9\\]"):
        source.abort([9])


def test_abort_of_a_scored_response_before_its_report_pays_for_its_tokens():
    source = source_on(ScriptedEngine([1]))
    source.submit(rows(0, prompt=2))  # refused at once, so it is ready before anything is polled
    source.submit(rows(1))
    assert source.abort(np.array([0])).tolist() == [0]
    assert label(source.poll()) == {1: 0.0}
    pending: Future[Verdict] = Future()
    source = source_on(ScriptedEngine([4, 1]), lambda p, tokens, done: pending if tokens[0] == 4 else Verdict(0.0))
    source.submit(rows(1, 4))
    assert label(source.poll()) == {1: 0.0}
    pending.set_result(Verdict(1.0))
    assert source.abort(np.array([4])).tolist() == [5]
    with pytest.raises(InvariantError, match="no response under way"):
        source.poll()


def test_closing_frees_the_engine_for_the_next_step():
    engine = ScriptedEngine()
    source = source_on(engine)
    source.submit(rows(0, 1))
    with pytest.raises(InvariantError, match="found 2 requests"):
        source_on(engine)
    source.close()
    assert source_on(engine) and engine.aborted == [0, 1]


def test_a_row_cannot_be_submitted_twice_nor_for_a_prompt_that_is_not_there():
    source = source_on(ScriptedEngine())
    source.submit(rows(0))
    with pytest.raises(InvariantError, match="response 0 was submitted twice"):
        source.submit(rows(0))
    with pytest.raises(InvariantError, match="prompt position 3"):
        source.submit(rows(1, prompt=3))


def test_verdicts_that_come_in_time_are_reported_in_the_order_of_the_engine():
    pending = {row: Future() for row in (0, 1, 2)}
    source = source_on(ScriptedEngine([2, 0, 1]), lambda p, tokens, done: pending[tokens[0]], grace_s=30.0)
    source.submit(rows(0, 1, 2))
    for delay, row in ((0.02, 0), (0.04, 1), (0.06, 2)):
        Timer(delay, pending[row].set_result, [Verdict(1.0)]).start()
    assert source.poll().response_id_N.tolist() == [2, 0, 1]


def test_an_answer_that_hangs_costs_its_grace_once_and_the_engine_goes_on():
    hanging: Future[Verdict] = Future()
    engine = ScriptedEngine([0], [], [1], [], [2])
    source = source_on(engine, lambda p, tokens, done: Verdict(1.0) if tokens[0] else hanging, grace_s=0.1)
    source.submit(rows(0, 1, 2))
    began = time.perf_counter()
    assert label(source.poll()) == {1: 1.0} and label(source.poll()) == {2: 1.0}
    assert 0.1 <= time.perf_counter() - began < 0.2 and engine.steps == 5
    hanging.set_result(Verdict(None, TIMEOUT))
    assert source.poll().failures == {0: TIMEOUT}


def test_a_verifier_that_is_silent_for_too_long_fails_and_ends_no_run(monkeypatch):
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    source = source_on(ScriptedEngine([0, 1]), lambda p, tokens, done: Future())
    source.submit(rows(0, 1))
    assert source.poll().failures == {0: "verifier_error", 1: "verifier_error"}
