"""Responses of NeMo-RL's asynchronous engine. Each is a task of one event loop, and none waits for another.

A task is NeMo-RL's own `run_sample_multi_turn_rollout`, with generation, environment and turns. Its engine does not
take a seed per request, so a response is reproducible only as far as the engine is.

When a response is dropped, its task is cancelled, and a vLLM engine is asked to stop the request (engine_abort.py). The
asynchronous engine returns only complete responses. So the tokens of a dropped response are estimated. The estimate is
its time in the engine times the tokens per second of the finished responses of the same step, and at most the longest
response. When a dropped response had finished before, its tokens are counted exactly, and its error is raised.

`InFlight` has the tasks. The synchronous loop drives it from a thread of its own (`AsyncSource`). The loops that draw
groups ahead drive one per group (nemo/groups/drawing.py).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.errors import StallError
from nemo_ada.nemo.loop_log import summarise_samples
from nemo_ada.nemo.rollouts.batches import convert_outcomes
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.engine_abort import EngineAbort, SharedCheck
from nemo_ada.nemo.rollouts.response import ENGINE_ERROR, Response, read
from nemo_ada.nemo.rollouts.verdicts import Verdicts
from nemo_ada.nemo.rollouts.wire import send_arrays

T = TypeVar("T")
Respond = Callable[[int, int], Awaitable[tuple[Response, dict[str, Any]]]]
"""Draws one response, given its response_id and its prompt. It also returns NeMo-RL's metrics of the response."""
STALL_SECONDS = 3600.0  # NeMo-RL itself waits for the engine without a deadline


class InFlight:
    """The responses of a step or of a group. All methods run in one event loop.

    Attributes:
        done: responses that were reported, by response_id.
        samples: NeMo-RL's metrics of each response that was reported, by response_id.
        tokens_estimated: estimated tokens of dropped responses so far.
    """

    def __init__(self, respond: Respond, longest: int, ended: Callable[[], object]) -> None:
        """Begin without a response.

        Args:
            respond: draws one response.
            longest: tokens of the longest response.
            ended: called when `take` has something to report.
        """
        self._respond, self._longest, self._notify = respond, longest, ended
        self._tasks: dict[int, asyncio.Future[tuple[Response, dict[str, Any]]]] = {}
        self._begun: dict[int, tuple[int, float]] = {}  # prompt and start of each response in flight
        self._ended: deque[int] = deque()
        self._tokens = self._seconds = 0.0
        self.done: dict[int, Response] = {}
        self.samples: dict[int, dict[str, Any]] = {}
        self.tokens_estimated = 0

    def __len__(self) -> int:
        """Number of responses in flight."""
        return len(self._begun)

    @property
    def prompts(self) -> set[int]:
        """Prompts of the responses in flight."""
        return {prompt for prompt, _ in self._begun.values()}

    def start(self, requests: Requests) -> None:
        """Start a task per response, in issue order."""
        now = time.monotonic()
        for response_id, prompt in zip(requests.response_id_N.tolist(), requests.prompt_N.tolist(), strict=True):
            self._begun[response_id] = prompt, now
            self._tasks[response_id] = task = asyncio.ensure_future(self._respond(response_id, prompt))
            task.add_done_callback(partial(self._end, response_id))

    def _end(self, response_id: int, _: object) -> None:
        if response_id in self._tasks:  # a dropped response is not reported
            self._ended.append(response_id)
            self._notify()

    async def take(self) -> Outcomes:
        """Report all responses that have finished.

        An error of a response is raised. Responses that finished before it are reported first, and the next call
        raises the error.
        """
        ids: list[int] = []
        while self._ended:
            task = self._tasks[self._ended[0]]
            if ids and (task.cancelled() or task.exception() is not None):
                self._notify()
                break
            response, sample = task.result()
            response_id = self._ended.popleft()
            del self._tasks[response_id]
            self._seconds += time.monotonic() - self._begun.pop(response_id)[1]
            self._tokens += response.tokens
            self.done[response_id], self.samples[response_id] = response, sample
            ids.append(response_id)
        return convert_outcomes(ids, [self.done[response_id] for response_id in ids])

    async def drop(self, response_id_N: IntArray) -> tuple[IntArray, set[int]]:
        """Cancel responses. Raises the error of one that has failed.

        Returns:
            Their tokens, as the module explains, and the prompts of those that had not finished.
        """
        ids = response_id_N.tolist()
        for task in [self._tasks[response_id] for response_id in ids]:
            if task.done():
                task.result()
        tasks = await self._cancel(ids)
        now, pace = time.monotonic(), self._tokens / self._seconds if self._seconds > 0 else 0.0
        tokens: list[int] = []
        running: set[int] = set()
        for response_id, task in zip(ids, tasks, strict=True):
            prompt, start = self._begun.pop(response_id)
            if not task.cancelled() and task.exception() is None:
                tokens.append(task.result()[0].tokens)
                continue
            running.add(prompt)
            tokens.append(min(int((now - start) * pace), self._longest))
            self.tokens_estimated += tokens[-1]
        return np.array(tokens, np.int64), running

    async def cancel(self) -> None:
        """Cancel all responses."""
        await self._cancel(list(self._tasks))
        self._begun.clear()

    async def _cancel(self, ids: list[int]) -> list[asyncio.Future[tuple[Response, dict[str, Any]]]]:
        tasks = [self._tasks.pop(response_id) for response_id in ids]
        self._ended = deque(response_id for response_id in self._ended if response_id in self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return tasks


class Responder:
    """Draws single responses with NeMo-RL's `run_sample_multi_turn_rollout`.

    Attributes:
        engine: stops the engine's requests.
    """

    def __init__(self, call: RolloutCall, prompts: Prompts, rollout: Callable[..., Any]) -> None:
        """Prepare to draw.

        Args:
            call: arguments of the rollout.
            prompts: prompts of a step or of a group.
            rollout: NeMo-RL's function.
        """
        self._call, self._prompts, self._rollout = call, prompts, rollout
        self.engine = EngineAbort(call.policy_generation)
        send_arrays(self.engine.workers)
        self._check = SharedCheck(self.engine.check)

    async def respond(self, response_id: int, prompt: int) -> tuple[Response, dict[str, Any]]:
        """Draw a response. Returns NeMo-RL's metrics of it, too.

        Raises:
            ProcessLostError: the response failed because an engine died.
        """
        state, metrics = await self._rollout(
            sample_idx=response_id, initial_sample_state=self._prompts.state(prompt), **self._call.arguments()
        )
        response = read(
            self._prompts.logs[prompt], state["message_log"], float(state["total_reward"]), metrics["truncated"]
        )
        answers = sum("generation_logprobs" in turn for turn in state["message_log"])
        if answers < metrics["turn_count"]:  # NeMo-RL prints the engine's error and returns the turns before it
            response = replace(response, complete=False)
        if response.cause == ENGINE_ERROR:
            await self._check()
        return response, metrics

    def joined(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """NeMo-RL's metrics of several responses together."""
        return summarise_samples(samples)


class AsyncSource:
    """A ResponseSource whose event loop has a thread of its own. The thread runs until `close`.

    Attributes:
        patience: longest wait for a response, in seconds.
    """

    patience = STALL_SECONDS
    kind: type[Responder] = Responder

    def __init__(self, call: RolloutCall, prompts: Prompts, rollout: Callable[..., Any], longest: int) -> None:
        """Start the event loop in its thread.

        Args:
            call: arguments of the rollout.
            prompts: prompts of the step.
            rollout: NeMo-RL's function of single responses.
            longest: tokens of the longest response.
        """
        self._prompts, self._responder = prompts, self.kind(call, prompts, rollout)
        self._ended = threading.Event()
        self._responses = InFlight(self._responder.respond, longest, self._ended.set)
        self._dropped = self._stalled = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Verdicts(self._loop))
        self._thread = threading.Thread(target=self._loop.run_forever, name="nemo-ada-rollouts", daemon=True)
        self._thread.start()

    def submit(self, requests: Requests) -> None:
        """Start a task per response, in issue order."""
        self._loop.call_soon_threadsafe(self._responses.start, requests)

    def poll(self) -> Outcomes:
        """Wait for one response, and report all that have finished, as `InFlight.take` does.

        Raises:
            StallError: no response has finished for `patience` seconds.
        """
        while self._ended.wait(self.patience):
            self._ended.clear()
            found = self._in_loop(self._responses.take())
            if len(found):
                return found
        return self._silence()

    def _silence(self) -> Outcomes:
        """Raise StallError. `poll` calls it when no response has finished for `patience` seconds."""
        self._stalled = True
        raise StallError(f"no response has finished for {self.patience:.0f} s, {len(self._responses)} are running")

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Cancel tasks and ask the engine to stop their requests. Returns their tokens, as the module explains."""
        self._dropped = True
        tokens_N, dropped = self._in_loop(self._responses.drop(response_id_N))
        # The engine could not distinguish the requests of a running prompt with the same tokens.
        running = [self._prompts.tokens(prompt) for prompt in self._responses.prompts]
        stopped = [self._prompts.tokens(prompt) for prompt in dropped]
        self._responder.engine.stop([tokens for tokens in stopped if tokens not in running])
        return tokens_N

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def response(self, response_id: int) -> Response:
        """Return a response that was reported."""
        return self._responses.done[response_id]

    def close(self) -> None:
        """End every task and the thread, and stop the engine's requests. A stalled engine is not asked to stop."""
        if not self._thread.is_alive():
            return
        if self._stalled:  # a stalled engine would not answer an abort either, and the process is about to end
            self._loop.call_soon_threadsafe(self._loop.stop)
            return
        left = len(self._responses)
        self._in_loop(self._responses.cancel())
        if left or self._dropped:
            self._responder.engine.stop_all()
        self._in_loop(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the session does not have."""
        return {"tokens_dropped_estimated": float(self._responses.tokens_estimated)}

    @property
    def reported(self) -> dict[str, Any]:
        """NeMo-RL's metrics, joined over all responses that were reported."""
        return self._responder.joined(list(self._responses.samples.values()))
