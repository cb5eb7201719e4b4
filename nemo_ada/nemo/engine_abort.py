"""Stop requests inside NeMo-RL's vLLM workers, and ask whether the workers live.

NeMo-RL v0.6 and v0.7 offer no call for it. Cancelling their coroutine ends the wait but not the request: the worker
decodes on, and the engine cannot be put to sleep. Ray lets the owner of an actor handle run a function on the actor.
That function calls AsyncLLM.abort for the requests whose prompt is ours. The session drops all responses of a prompt,
so the prompt's tokens name them. NeMo-RL main cancels requests itself (ray.cancel); nothing is left to stop there.

Its rollouts print an error of generation and return what they have, so the death of an engine looks like a failed
response. Whoever gets such a response asks the workers.

An engine without such workers (a stand-in, another back end) is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from nemo_ada.errors import ProcessLostError

log = logging.getLogger(__name__)

ABORT_SECONDS = 60.0  # for the workers' answer; an abort may queue behind 1,000 calls, Ray's limit per async actor


class EngineAbort:
    """Stops running requests of a NeMo-RL generation object, where its workers are vLLM's."""

    def __init__(self, policy_generation: Any) -> None:
        group = getattr(policy_generation, "worker_group", None)
        self._workers = [worker for worker in getattr(group, "workers", []) if hasattr(worker, "__ray_call__")]

    def stop(self, prompts: list[list[int]]) -> None:
        """Stop every request for one of these prompts (token ids). A later turn of a dialogue has a longer prompt, is
        not found, and runs until `stop_all`.

        Returns when all workers know, or logs a warning after ABORT_SECONDS: the requests then run to their end.
        """
        if prompts and self._workers and self._ask([tuple(prompt) for prompt in prompts], ABORT_SECONDS) is None:
            log.warning("no answer to an abort within %.0f s: dropped responses decode to their end", ABORT_SECONDS)

    def stop_all(self) -> None:
        """Stop everything; wait up to ABORT_SECONDS until the engines are empty and can be put to sleep."""
        deadline = time.monotonic() + ABORT_SECONDS
        while self._workers:
            left = self._ask(None, max(deadline - time.monotonic(), 0.0))
            if left == 0:
                return
            if left is None or time.monotonic() > deadline:
                running = "an unknown number of" if left is None else left
                log.warning("%s requests still run in the engine %.0f s after the abort", running, ABORT_SECONDS)
                return
            time.sleep(0.05)

    def check(self) -> None:
        """Raise ProcessLostError when a worker's process is gone, or that of its vLLM engine. A worker that does not
        answer within ABORT_SECONDS says nothing: it may be busy."""
        if not self._workers:
            return
        import ray

        dead = engine_dead()
        asked = {worker.__ray_call__.remote(dead): number for number, worker in enumerate(self._workers)}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ABORT_SECONDS)
        for answer in answered:
            try:
                cause = ray.get(answer)
            except ray.exceptions.RayActorError as error:
                cause = str(error).strip().splitlines()[0]
            if cause:
                raise ProcessLostError(f"vLLM worker {asked[answer]} of {len(asked)} is lost: {cause}")

    def _ask(self, prompts: list[tuple[int, ...]] | None, seconds: float) -> int | None:
        """Requests that were running on all workers; None when a worker does not answer in time."""
        import ray

        stop = request_stopper()
        try:
            return sum(
                ray.get([worker.__ray_call__.remote(stop, prompts) for worker in self._workers], timeout=seconds)
            )
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayActorError:  # a dead worker runs nothing; `check` says that it is dead
            return 0


def request_stopper() -> Callable[[Any, list[tuple[int, ...]] | None], int]:
    """The function that runs on a vLLM worker. Ray sends a nested function by value, so the worker's Python
    environment need not have this package."""

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


def engine_dead() -> Callable[[Any], str]:
    """The function that asks a vLLM worker for the state of its engine, whose core is a process of its own; sent by
    value, as `request_stopper`'s."""

    def dead(worker: Any) -> str:
        """Why the engine answers no more; empty when it lives."""
        llm: Any = getattr(worker, "llm", None)
        core = getattr(getattr(llm, "llm_engine", llm), "engine_core", None)
        resources = getattr(core, "resources", None)
        return "its engine's process has died" if getattr(resources, "engine_dead", False) else ""

    return dead
