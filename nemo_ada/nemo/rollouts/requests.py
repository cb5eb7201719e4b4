"""The source for NeMo-RL's asynchronous engine. Every response is a task of one event loop, and none waits for another.

Each task is NeMo-RL's own `run_sample_multi_turn_rollout`, with generation, environment and turns. Its engine does not
take a seed per request, so a response is reproducible only as far as the engine is.

When a response is dropped, its task is cancelled, and a vLLM engine is asked to stop the request (engine_abort.py). The
asynchronous engine returns only complete responses. So the tokens of a dropped response are estimated. The estimate is
its time in the engine times the tokens per second of the finished responses of the same step, and at most the longest
response. When a dropped response had finished before, its tokens are counted exactly.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.errors import StallError
from nemo_ada.nemo.loop_log import of_samples
from nemo_ada.nemo.rollouts.batches import outcomes
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.engine_abort import EngineAbort
from nemo_ada.nemo.rollouts.response import ENGINE_ERROR, GYM_ERROR, Response, read
from nemo_ada.nemo.rollouts.verdicts import Verdicts

log = logging.getLogger(__name__)

SampleRollout = Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], dict[str, Any]]]]
STALL_SECONDS = 3600.0  # NeMo-RL itself waits for the engine without a deadline


class AsyncSource:
    """A ResponseSource that runs NeMo-RL's per-sample rollout. Its thread runs until `close`.

    Attributes:
        patience: longest wait for a response, in seconds.
        tokens_estimated: estimated tokens of dropped responses so far.
    """

    patience = STALL_SECONDS

    def __init__(self, call: RolloutCall, prompts: Prompts, rollout: SampleRollout, longest: int) -> None:
        """Start the event loop in its thread.

        Args:
            call: arguments of the rollout.
            prompts: prompts of the step.
            rollout: NeMo-RL's `run_sample_multi_turn_rollout`.
            longest: tokens of the longest response.
        """
        self._call, self._prompts, self._rollout, self._longest = call, prompts, rollout, longest
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._places: dict[int, int] = {}
        self._issued_at: dict[int, float] = {}
        self._dropped: set[int] = set()
        self._done: dict[int, Response] = {}
        self._samples: dict[int, dict[str, Any]] = {}  # NeMo-RL's metrics of each response
        self._finished: queue.SimpleQueue[tuple[int, Response | BaseException]] = queue.SimpleQueue()
        self._tokens = self._seconds = 0.0
        self._stalled = False
        self.tokens_estimated = 0
        self._engine = EngineAbort(call.policy_generation)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Verdicts(self._loop))
        self._thread = threading.Thread(target=self._loop.run_forever, name="nemo-ada-rollouts", daemon=True)
        self._thread.start()

    def submit(self, requests: Requests) -> None:
        """Start a task per response, in issue order."""
        now = time.monotonic()
        pairs = list(zip(requests.response_id_N.tolist(), requests.prompt_N.tolist(), strict=True))
        for response_id, prompt in pairs:
            self._places[response_id] = prompt
            self._issued_at[response_id] = now
        self._loop.call_soon_threadsafe(self._start, pairs)

    def _start(self, pairs: list[tuple[int, int]]) -> None:
        for response_id, prompt in pairs:
            self._tasks[response_id] = self._loop.create_task(self._draw(response_id, prompt))

    async def _draw(self, response_id: int, prompt: int) -> None:
        try:
            response, self._samples[response_id] = await self._respond(response_id, prompt)
            self._finished.put((response_id, response))
        except Exception as error:  # noqa: BLE001 - poll raises it in the thread that waits
            self._finished.put((response_id, error))

    async def _respond(self, response_id: int, prompt: int) -> tuple[Response, dict[str, Any]]:
        """One response, and NeMo-RL's metrics of it."""
        state, metrics = await self._rollout(
            sample_idx=response_id, initial_sample_state=self._prompts.state(prompt), **self._call.arguments()
        )
        response = read(
            self._prompts.logs[prompt], state["message_log"], float(state["total_reward"]), metrics["truncated"]
        )
        answers = sum("generation_logprobs" in turn for turn in state["message_log"])
        if answers < metrics["turn_count"]:  # NeMo-RL prints the engine's error and returns the turns before it
            response = replace(response, complete=False)
        return response, metrics

    def poll(self) -> Outcomes:
        """Wait for one response, and report all that have finished.

        An error of a response is raised. Responses that finished before it are reported first, and the next call
        raises the error.

        Raises:
            StallError: no response has finished for `patience` seconds.
            ProcessLostError: a response failed because an engine died.
        """
        ids: list[int] = []
        responses: list[Response] = []
        while not ids or not self._finished.empty():
            try:
                response_id, response = self._finished.get(timeout=self.patience)
            except queue.Empty:
                return self._silence()
            if response_id in self._dropped:
                continue
            if isinstance(response, BaseException):
                if not ids:
                    raise response
                self._finished.put((response_id, response))
                break
            self._seconds += time.monotonic() - self._issued_at.pop(response_id)
            self._tokens += response.tokens
            ids.append(response_id)
            responses.append(response)
        if any(response.cause in (ENGINE_ERROR, GYM_ERROR) for response in responses):
            self._check()
        self._done.update(zip(ids, responses, strict=True))
        return outcomes(ids, responses)

    def _check(self) -> None:
        """Raise ProcessLostError when a process is dead that the responses need."""
        self._engine.check()

    def _silence(self) -> Outcomes:
        """Raise StallError. `poll` calls it when no response has finished for `patience` seconds."""
        self._stalled = True
        raise StallError(f"no response has finished for {self.patience:.0f} s, {len(self._issued_at)} are running")

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Cancel tasks and ask the engine to stop their requests. Returns their tokens, as the module explains."""
        ids = response_id_N.tolist()
        self._dropped.update(ids)
        self._in_loop(self._cancel(ids))
        known = self._known_tokens(set(ids))
        now, pace = time.monotonic(), self._tokens / self._seconds if self._seconds > 0 else 0.0
        tokens = []
        running: set[int] = set()
        for response_id in ids:
            elapsed = now - self._issued_at.pop(response_id)
            if response_id in known:
                tokens.append(known[response_id])
            else:
                running.add(self._places[response_id])
                tokens.append(min(int(elapsed * pace), self._longest))
                self.tokens_estimated += tokens[-1]
        still = {self._places[response_id] for response_id in self._issued_at}
        self._engine.stop([self._prompt_tokens(p) for p in running if not self._shared(p, still)])
        return np.array(tokens, np.int64)

    async def _cancel(self, ids: list[int]) -> None:
        tasks = [self._tasks[response_id] for response_id in ids if response_id in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known_tokens(self, ids: set[int]) -> dict[int, int]:
        """Return the tokens of dropped responses that had finished. Other outcomes stay in the queue."""
        known: dict[int, int] = {}
        waiting = []
        while not self._finished.empty():
            response_id, response = self._finished.get()
            if response_id not in ids:
                waiting.append((response_id, response))
            elif isinstance(response, Response):
                known[response_id] = response.tokens
        for item in waiting:
            self._finished.put(item)
        return known

    def _prompt_tokens(self, prompt: int) -> list[int]:
        return [token for message in self._prompts.logs[prompt] for token in message["token_ids"].tolist()]

    def _shared(self, prompt: int, still: set[int]) -> bool:
        """Return whether a running prompt has the same tokens. The engine could not distinguish their requests."""
        return self._prompt_tokens(prompt) in [self._prompt_tokens(other) for other in still]

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def response(self, response_id: int) -> Response:
        """Return a response that was reported."""
        return self._done[response_id]

    def close(self) -> None:
        """End every task and the thread, and stop the engine's requests. A stalled engine is not asked to stop."""
        if not self._thread.is_alive():
            return
        if self._stalled:  # a stalled engine would not answer an abort either, and the process is about to end
            self._loop.call_soon_threadsafe(self._loop.stop)
            return
        left = list(self._issued_at)
        self._in_loop(self._cancel(left))
        if left or self._dropped:
            self._engine.stop_all()
        self._in_loop(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the session does not have."""
        return {"tokens_dropped_estimated": float(self.tokens_estimated)}

    @property
    def reported(self) -> dict[str, Any]:
        """NeMo-RL's metrics, joined over all responses that were reported."""
        return of_samples([self._samples[response_id] for response_id in self._done])
