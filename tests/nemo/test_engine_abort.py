"""Requests are stopped inside the worker actor, by their prompt's tokens. A dead worker is told from a failed request.

A real Ray actor with a stand-in for vLLM.
"""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.rollouts.engine_abort import ABORT_SECONDS, EngineAbort


def worker():
    import ray

    @ray.remote
    class Worker:
        """What the abort looks at in NeMo-RL's VllmAsyncGenerationWorker: llm.output_processor and llm.abort."""

        def __init__(self):
            self.gone: list[str] = []
            states = {f"r{k}": SimpleNamespace(prompt_token_ids=[7, k // 2]) for k in range(6)}

            async def abort(names):
                self.gone.extend(names)
                for name in names:
                    del states[name]

            self.llm = SimpleNamespace(
                output_processor=SimpleNamespace(request_states=states), abort=abort, output_handler=None
            )

        async def start(self):
            self.llm.output_handler = asyncio.create_task(asyncio.sleep(3600))

        def core_dies(self):
            self.llm.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_dead=True))

        async def aborted(self, count):
            while len(self.gone) < count:
                await asyncio.sleep(0.01)
            return self.gone

    return Worker.remote()


@pytest.mark.nemo_rl
def test_a_prompts_requests_are_stopped_and_then_the_rest(harness):
    import ray

    actor = worker()
    ray.get(actor.start.remote())
    engine = EngineAbort(SimpleNamespace(worker_group=SimpleNamespace(workers=[actor])))
    engine.stop([[7, 1]])
    assert ray.get(actor.aborted.remote(2), timeout=60) == ["r2", "r3"]
    engine.stop_all()
    assert ray.get(actor.aborted.remote(6), timeout=60) == ["r2", "r3", "r0", "r1", "r4", "r5"]


@pytest.mark.nemo_rl
def test_a_dead_worker_and_a_dead_engine_inside_a_living_one_are_noticed(harness):
    import ray

    first, second = worker(), worker()
    engine = EngineAbort(SimpleNamespace(worker_group=SimpleNamespace(workers=[first, second])))
    engine.check()
    ray.get(second.core_dies.remote())
    with pytest.raises(ProcessLostError, match="vLLM worker 1 of 2 is lost: its engine's process has died"):
        engine.check()
    ray.kill(first)
    with pytest.raises(ProcessLostError, match="vLLM worker 0 of 2 is lost: The actor"):
        engine.check()
    engine.stop_all()  # nothing runs in a dead worker, and nobody waits for it


class SilentRay(ModuleType):
    """Ray whose workers answer nothing: a `get` without a deadline would wait for ever."""

    class exceptions:
        class GetTimeoutError(Exception):
            pass

        class RayActorError(Exception):
            pass

    def __init__(self):
        super().__init__("ray")
        self.deadlines: list[float] = []

    def get(self, references, timeout=None):
        assert timeout is not None, "no deadline"
        self.deadlines.append(timeout)
        raise self.exceptions.GetTimeoutError


def test_workers_that_do_not_answer_an_abort_are_not_waited_for(monkeypatch, caplog):
    ray = SilentRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    silent = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda *_: "a reference"))
    engine = EngineAbort(SimpleNamespace(worker_group=SimpleNamespace(workers=[silent])))
    engine.stop([[7, 1]])
    assert "no answer to an abort" in caplog.text
    engine.stop_all()
    assert "an unknown number of requests still run" in caplog.text
    assert len(ray.deadlines) == 2 and all(0 < seconds <= ABORT_SECONDS for seconds in ray.deadlines)


def test_an_engine_without_workers_is_left_alone():
    engine = EngineAbort(SimpleNamespace())
    engine.stop([[1]])
    engine.stop_all()
