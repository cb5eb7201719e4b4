"""Stop requests inside NeMo-RL's vLLM workers, and check that the workers live.

NeMo-RL v0.6 and v0.7 have no call that stops a request. Cancelling their coroutine ends the wait and not the request:
the worker decodes on, and the engine cannot be put to sleep. Ray lets the owner of an actor handle run a function on
the actor. Our function calls AsyncLLM.abort for the requests of given prompts. The session drops all responses of a
prompt, so the prompt's tokens identify them. NeMo-RL main cancels requests itself (ray.cancel), so it has none left.

NeMo-RL's rollouts print an error of the engine and return what they have. So a response of a dead engine looks like a
failed response. The caller that gets a failed response calls `check`.

An engine without such workers (a stand-in in a test, another back end) is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from nemo_ada.errors import ProcessLostError

log = logging.getLogger(__name__)

ABORT_SECONDS = 60.0  # wait for the workers. An abort may queue behind 1,000 calls, Ray's limit per async actor


class EngineAbort:
    """Stops the running requests of a NeMo-RL generation object whose workers are vLLM's.

    Attributes:
        workers: Ray's handles of the workers. Empty for an engine without such workers.
    """

    def __init__(self, policy_generation: Any) -> None:
        group = getattr(policy_generation, "worker_group", None)
        self.workers = [worker for worker in getattr(group, "workers", []) if hasattr(worker, "__ray_call__")]

    def stop(self, prompts: list[list[int]]) -> None:
        """Stop every request for one of these prompts, and wait until all workers have begun to.

        After ABORT_SECONDS it logs a warning, and the requests run to their end. A later turn of a dialogue has another
        prompt, so its request runs until `stop_all`.

        Args:
            prompts: Token ids of the prompts.
        """
        if prompts and self.workers and self._abort([tuple(prompt) for prompt in prompts], ABORT_SECONDS) is None:
            log.warning("no answer to an abort within %.0f s: dropped responses decode to their end", ABORT_SECONDS)

    def stop_all(self) -> None:
        """Stop all requests, and wait up to ABORT_SECONDS until the engines are empty and can be put to sleep."""
        deadline = time.monotonic() + ABORT_SECONDS
        while self.workers:
            left = self._abort(None, max(deadline - time.monotonic(), 0.0))
            if left == 0:
                return
            if left is None or time.monotonic() > deadline:
                running = "an unknown number of" if left is None else left
                log.warning("%s requests still run in the engine %.0f s after the abort", running, ABORT_SECONDS)
                return
            time.sleep(0.05)

    def check(self) -> None:
        """Raise ProcessLostError when the process of a worker or of its vLLM engine has died.

        A worker that does not answer within ABORT_SECONDS may be busy, so it counts as alive.
        """
        if not self.workers:
            return
        import ray

        dead = make_engine_check()
        calls = {worker.__ray_call__.remote(dead): number for number, worker in enumerate(self.workers)}
        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ABORT_SECONDS)
        for answer in answered:
            try:
                cause = ray.get(answer)
            except ray.exceptions.RayActorError as error:
                cause = str(error).strip().splitlines()[0]
            if cause:
                raise ProcessLostError(f"vLLM worker {calls[answer]} of {len(calls)} is lost: {cause}")

    def _abort(self, prompts: list[tuple[int, ...]] | None, seconds: float) -> int | None:
        """Begin to abort the requests for these prompts (None means all).

        Returns:
            How many of them were running on all workers together. None when a worker does not answer in time.
        """
        import ray

        stop = request_stopper()
        try:
            return sum(ray.get([worker.__ray_call__.remote(stop, prompts) for worker in self.workers], timeout=seconds))
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayActorError:  # a dead worker runs nothing, and `check` reports it
            return 0


class SharedCheck:
    """A check that blocks, run in a thread. Who asks during a check gets the answer of that check."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._running: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Wait for the check, and raise its error."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(asyncio.to_thread(self._check))
        await asyncio.shield(self._running)


def request_stopper() -> Callable[[Any, list[tuple[int, ...]] | None], int]:
    """Make the function that aborts requests on a vLLM worker.

    Ray sends a nested function by value, so the worker's Python environment need not have this package.
    """

    def stop(worker: Any, prompts: list[tuple[int, ...]] | None) -> int:
        """Begin to abort the requests for these prompts (None means all). Returns how many were running."""
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
        if chosen and engine.output_handler is not None:  # the engine's loop runs in another thread
            asyncio.run_coroutine_threadsafe(engine.abort(chosen), engine.output_handler.get_loop())
        return len(chosen)

    return stop


def make_engine_check() -> Callable[[Any], str]:
    """Make the function that checks a vLLM worker's engine, whose core is another process.

    Ray sends it by value, like `request_stopper`'s.
    """

    def dead(worker: Any) -> str:
        """The reason why the engine is dead, or an empty text when it lives."""
        llm: Any = getattr(worker, "llm", None)
        core = getattr(getattr(llm, "llm_engine", llm), "engine_core", None)
        resources = getattr(core, "resources", None)
        return "its engine's process has died" if getattr(resources, "engine_dead", False) else ""

    return dead
