"""Stop requests inside NeMo-RL's vLLM workers, which offer no call for it (v0.6 to main).

Cancelling NeMo-RL's coroutine ends the wait but not the request: its worker starts a task of its own per request and
leaves it alone. A request that runs on would decode for nothing, and the engine could not be put to sleep for
training. Ray lets the owner of an actor handle run a function on the actor, so the request is stopped where it lives:
AsyncLLM.abort with the ids of the requests whose prompt is ours. The session drops responses of a whole prompt or all
of them, so the prompt's tokens name them well enough.

An engine without such workers (a stand-in, another back end) has nothing to stop here: cancelling is all there is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0


class EngineAbort:
    """Stops running requests of a NeMo-RL generation object, where its workers are vLLM's."""

    def __init__(self, policy_generation: Any) -> None:
        group = getattr(policy_generation, "worker_group", None)
        self._workers = [worker for worker in getattr(group, "workers", []) if hasattr(worker, "__ray_call__")]

    def stop(self, prompts: list[list[int]]) -> None:
        """Stop every request for one of these prompts (token ids); returns when the workers have been told."""
        if prompts and self._workers:
            self._ask([tuple(prompt) for prompt in prompts])

    def stop_all(self) -> None:
        """Stop everything and wait until the engines are empty, so that they can be put to sleep."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._workers and (left := self._ask(None)):
            if time.monotonic() > deadline:
                log.warning(
                    "%d requests still run in the engine %.0f s after they were stopped", left, PATIENCE_SECONDS
                )
                return
            time.sleep(0.05)

    def _ask(self, prompts: list[tuple[int, ...]] | None) -> int:
        import ray

        stop = request_stopper()
        return sum(ray.get([worker.__ray_call__.remote(stop, prompts) for worker in self._workers]))


def request_stopper() -> Callable[[Any, list[tuple[int, ...]] | None], int]:
    """The function that runs on a vLLM worker. Defined inside another one, it travels by value: the worker's own
    Python environment need not have this package."""

    def stop(worker: Any, prompts: list[tuple[int, ...]] | None) -> int:
        """Begin to abort the requests for these prompts (None = all); the number that was running."""
        engine: Any = getattr(worker, "llm", None)
        states = getattr(getattr(engine, "output_processor", None), "request_states", None)
        if not states:
            return 0
        wanted = None if prompts is None else set(prompts)
        chosen = [
            getattr(state, "external_req_id", name)
            for name, state in list(states.items())
            if wanted is None or tuple(state.prompt_token_ids or ()) in wanted
        ]
        if chosen and engine.output_handler is not None:  # a task of the engine's loop, which is not this thread's
            asyncio.run_coroutine_threadsafe(engine.abort(chosen), engine.output_handler.get_loop())
        return len(chosen)

    return stop
