"""Draws the responses of one prompt as tasks of the controller's event loop.

A wave starts only while no refit is under way, under the version of the weights of that moment. An error of a response
ends the group: its other responses are cancelled, and NeMo-RL's retry budgets decide what follows. A response without a
verdict is no error, and the session draws another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.nemo.rollouts.batches import outcomes
from nemo_ada.nemo.rollouts.response import Response

WAIT_SECONDS = 1.0  # the interval at which a group without new responses checks its time limit
Respond = Callable[[int], Awaitable[tuple[Response, dict[str, Any]]]]
"""Draws one response, given its issue order within the prompt. It also returns NeMo-RL's metrics of the response."""


class EngineCalls(Protocol):
    """The engine as a group sees it."""

    @property
    def version(self) -> int:
        """Version of the weights of a response that starts now."""

    async def may_start(self) -> None:
        """Wait until no refit is under way."""

    async def wait(self, seconds: float) -> None:
        """Wait until another group ends, or until so much time has passed."""


class Drawing:
    """The responses of one group.

    Attributes:
        versions: version of the weights of each response, by response_id.
        samples: NeMo-RL's metrics of each response that was reported, by response_id.
        gave_up: whether the time limit was reached.
    """

    def __init__(self, respond: Respond, engine: EngineCalls, *, longest: int, limit: float) -> None:
        """Prepare a group.

        Args:
            respond: draws one response.
            engine: the engine.
            longest: tokens of the longest response.
            limit: seconds after which the group is given up.
        """
        self._respond, self._engine, self._longest, self._limit = respond, engine, longest, limit
        self._tasks: dict[asyncio.Task[tuple[Response, dict[str, Any]]], int] = {}
        self._issued_at: dict[int, float] = {}
        self._done: dict[int, Response] = {}
        self._tokens = self._seconds = 0.0
        self._began: float | None = None
        self._paused = 0.0
        self.versions: dict[int, int] = {}
        self.samples: dict[int, dict[str, Any]] = {}
        self.gave_up = False

    async def run(self, session: SamplingSession) -> SamplingResult:
        """Draw until the session has enough. It cancels what still runs, whatever ends it."""
        try:
            while True:
                if self._late():
                    session.give_up()
                dropped = session.take_aborts()
                if len(dropped):
                    session.record_aborted(dropped, await self._abort(dropped), time.monotonic())
                requests = session.next_requests(time.monotonic())
                if len(requests):
                    await self._submit(requests)
                if session.finished:
                    return session.result()
                if session.state.in_flight == 0:  # a budget that is shared serves other groups first
                    await self._engine.wait(WAIT_SECONDS)
                else:
                    session.record(await self._finished(), time.monotonic())
        finally:
            await self._cancel(list(self._tasks))

    def response(self, response_id: int) -> Response:
        """Return a response that was reported."""
        return self._done[response_id]

    @property
    def responses(self) -> dict[int, Response]:
        """All responses that were reported, by response_id."""
        return dict(self._done)

    def _late(self) -> Literal[True] | None:
        """Return True once, when the group takes too long. Time spent in refits does not count."""
        if self._began is None or self.gave_up:
            return None
        self.gave_up = time.monotonic() - self._began - self._paused > self._limit
        return True if self.gave_up else None

    async def _submit(self, requests: Requests) -> None:
        asked = time.monotonic()
        await self._engine.may_start()
        now = time.monotonic()
        if self._began is None:
            self._began = now
        else:
            self._paused += now - asked
        pairs = zip(requests.response_id_N.tolist(), requests.index_N.tolist(), strict=True)
        for response_id, index in pairs:
            self.versions[response_id] = self._engine.version
            self._issued_at[response_id] = now
            self._tasks[asyncio.ensure_future(self._respond(index))] = response_id

    async def _finished(self) -> Outcomes:
        """Wait for a response, or for a moment. Report all that have finished, and raise the error of one."""
        done, _ = await asyncio.wait(self._tasks, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ids: list[int] = []
        responses: list[Response] = []
        for task in sorted(done, key=lambda one: self._tasks[one]):
            response_id = self._tasks.pop(task)
            response, self.samples[response_id] = task.result()
            self._seconds += time.monotonic() - self._issued_at.pop(response_id)
            self._tokens += response.tokens
            self._done[response_id] = response
            ids.append(response_id)
            responses.append(response)
        return outcomes(ids, responses)

    async def _abort(self, response_id_N: IntArray) -> IntArray:
        """Cancel responses. Returns their tokens, for those that still run an estimate from the pace of the others.

        Raises the error of one that has failed.
        """
        ids = response_id_N.tolist()
        tasks = {response_id: task for task, response_id in self._tasks.items() if response_id in ids}
        known = {response_id: task.result()[0].tokens for response_id, task in tasks.items() if task.done()}
        await self._cancel(list(tasks.values()))
        now, pace = time.monotonic(), self._tokens / self._seconds if self._seconds > 0 else 0.0
        elapsed = {response_id: now - self._issued_at.pop(response_id) for response_id in ids}
        estimates = {response_id: min(int(seconds * pace), self._longest) for response_id, seconds in elapsed.items()}
        return np.array([(estimates | known)[response_id] for response_id in ids], np.int64)

    async def _cancel(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            self._tasks.pop(task)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
