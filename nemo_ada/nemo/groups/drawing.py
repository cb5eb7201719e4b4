"""Draws the prompt groups of the loops that draw ahead: NeMo-RL's trajectory collector and its single controller.

A group draws waves until its session has enough, while the learner trains. The groups of one training step share its
budget (core/sampling/budget.py). All groups of a process run in one event loop, so sessions and ledgers need no lock.

Weights change while groups are drawn. A wave starts only while no refit is under way, under the version of that moment,
which the pool keeps. So waves of one pool may come from different versions.

An error of a response ends the group, and its other responses are cancelled. A response without a verdict is no error,
and the session draws another one. A group that takes longer than `budget.max_group_seconds` is given up. It keeps its
complete waves, or has placeholder rows.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import GroupLedger, StepLedger, Use
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.schedulers import run_sampling_async
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.nemo.groups.rows import GroupRows
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.requests import InFlight, Respond
from nemo_ada.nemo.rollouts.response import Response
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import read_shaped_rewards

WAIT_SECONDS = 1.0  # the interval at which a group without new responses checks its time limit
GATE_SECONDS = 0.02  # the interval at which a group asks whether a refit in another thread has ended


Stop = Callable[[], Awaitable[None]]
"""Asks the engine to stop the requests of a group whose responses were dropped."""


class Groups:
    """What the groups of a run share: ledgers, the version of the weights, and the gate of refits.

    Attributes:
        settings: settings of the run.
        sampler: the run's sampler.
        rows: it selects the rows of a group.
        running: number of responses in flight.
        gate: closed during a refit. None before it is known.
    """

    def __init__(
        self,
        settings: NemoSettings,
        sampler: AdaSampler,
        version: Callable[[], int],
        *,
        first: int = 0,
        rounds: int = 1,
    ) -> None:
        """Prepare for a run.

        Args:
            settings: settings of the run.
            sampler: the run's sampler.
            version: returns the version of the engine's weights. Steps below it have been trained.
            first: number of the first step. The weights of version v are those that step v + `first` starts from.
            rounds: training steps that share a number in the seeds, as the updates of one synchronous step do.
        """
        self.settings, self.sampler, self.rows = settings, sampler, GroupRows(settings, sampler)
        self._version, self._first, self._rounds = version, first, rounds
        self._ledgers: dict[int, StepLedger] = {}
        self._numbers: dict[int, int] = {}  # ticket of a group that failed -> its number
        self._drawn: dict[int, GroupLedger] = {}  # by the tickets of groups that wait for their step
        self._ended = asyncio.Condition()
        self.gate: asyncio.Event | threading.Event | None = None
        self.running = 0

    @property
    def version(self) -> int:
        """Version of the weights of a response that starts now."""
        return self._version()

    async def enter(self, responses: int) -> None:
        """Wait until no refit is under way, and count responses that start now."""
        self.running += responses  # before the look at the gate, so that a refit that begins now waits for them
        while self.gate is not None and not self.gate.is_set():
            self.running -= responses  # the refit waits for those that run, and these wait for the refit
            await (self.gate.wait() if isinstance(self.gate, asyncio.Event) else asyncio.sleep(GATE_SECONDS))
            self.running += responses

    async def wait(self) -> None:
        """Wait until another group ends, or for a moment."""
        async with self._ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), WAIT_SECONDS)

    def seeds(self, target: int, number: int) -> tuple[int, int]:
        """Return step and number of a group in the seeds. `rounds` steps are numbered as one synchronous step."""
        return target // self._rounds + self._first, target % self._rounds * self.settings.prompts + number

    def ledger(self, target: int) -> StepLedger:
        """Return the ledger of a step, and forget those of trained steps."""
        if target not in self._ledgers:
            version = self._version()
            self._ledgers = {step: ledger for step, ledger in self._ledgers.items() if step >= version}
            self._ledgers[target] = self.sampler.step_ledger(self.settings.prompts)
        return self._ledgers[target]

    def restore(self, target: int, group: Mapping[str, Any]) -> None:
        """Book a group that an earlier attempt of the run has drawn.

        Args:
            target: step that trains on the group.
            group: description of the group (step.py).
        """
        use = Use()  # of a prompt that is too long
        if group["pool"] is not None:
            use = GroupPool.from_dict(group["pool"]).result.use
        self.ledger(target).restore(group["number"], use)

    def forget(self, ticket: int) -> None:
        """Forget a group that is not drawn again."""
        self._drawn.pop(ticket, None)

    def drop(self, target: int, ticket: int) -> None:
        """Give up a group whose retries have failed. Its step closes without it."""
        if ticket in self._numbers:
            self.ledger(target).restore(self._numbers.pop(ticket), Use())
        self.forget(ticket)

    async def draw_group(
        self, prompts: Prompts, respond: Respond, target: int, *, ticket: int, redrawn: bool, stop: Stop | None = None
    ) -> tuple[Drawing, GroupPool | None, Any]:
        """Draw the group of a prompt.

        Args:
            prompts: the prompt.
            respond: draws one response.
            target: step that trains on the group, from 0.
            ticket: position of the prompt in the queue. A group that was drawn before did not reach the buffer, and is
                undone.
            redrawn: whether an earlier attempt of the run had begun this group and did not finish it.
            stop: see `Stop`. None where the rollouts end the engine's requests themselves.

        Returns:
            The responses, the pool, and the n rows with the columns of step.py. The pool is None for a prompt that is
            too long.
        """
        drawn = self._drawn.pop(ticket, None)
        if drawn is not None:
            drawn.abandon()
            self._numbers[ticket] = drawn.number
        ledger = self.ledger(target).start(self._numbers.pop(ticket, None))
        drawing, pool = Drawing(respond, self, stop), None
        try:
            step, uid = self.seeds(target, ledger.number)
            if prompts.ids:
                result = await drawing.run(self.sampler.group_session(step, ledger, uid))
                if self.settings.gym and len(result.response_id_N):  # labels are those of the rewards before shaping
                    result = replace(result, reward_N=read_shaped_rewards(result, drawing))
                versions = {row: version + self._first for row, version in drawing.versions.items()}
                gave_up = drawing.gave_up
                pool = self.rows.make_pool(prompts, result, versions, step=step, redrawn=redrawn, gave_up=gave_up)
        except BaseException:  # it keeps its number for its next attempt
            ledger.abandon()
            self._numbers[ticket] = ledger.number
            raise
        else:
            ledger.end()
            self._drawn[ticket] = ledger
        finally:
            async with self._ended:
                self._ended.notify_all()
        batch = self.rows.make_batch(prompts, drawing, pool, number=ledger.number)
        return drawing, pool, batch


class Drawing:
    """The responses of one group.

    Attributes:
        responses: the responses.
        versions: version of the weights of each response, by response_id.
        gave_up: whether the time limit was reached.
    """

    def __init__(self, respond: Respond, groups: Groups, stop: Stop | None = None) -> None:
        """Prepare a group.

        Args:
            respond: draws one response.
            groups: what the groups of the run share.
            stop: see `Stop`.
        """
        self._groups, self._stop = groups, stop
        self._news = asyncio.Event()
        self.responses = InFlight(respond, groups.settings.longest, self._news.set)
        self._began: float | None = None
        self._paused = 0.0
        self.versions: dict[int, int] = {}
        self.gave_up = False

    async def run(self, session: SamplingSession) -> SamplingResult:
        """Draw until the session has enough. It cancels what still runs, whatever ends it."""
        try:
            return await run_sampling_async(session, self, stop_check=lambda: "give_up" if self._runs_late() else None)
        finally:
            self._groups.running -= len(self.responses)
            await self.responses.cancel()

    def response(self, response_id: int) -> Response:
        """Return a response that was reported."""
        return self.responses.done[response_id]

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    async def wait(self) -> None:
        """Wait until another group has ended, because a budget that is shared serves earlier groups first."""
        await self._groups.wait()

    def _runs_late(self) -> bool:
        """Return True once, when the group takes too long. Time spent in refits does not count."""
        if self._began is None or self.gave_up:
            return False
        limit = self._groups.settings.ada.budget.max_group_seconds
        self.gave_up = time.monotonic() - self._began - self._paused > limit
        return self.gave_up

    async def submit(self, requests: Requests) -> None:
        """Start responses, once no refit is under way."""
        asked = time.monotonic()
        await self._groups.enter(len(requests))
        now = time.monotonic()
        if self._began is None:
            self._began = now
        else:
            self._paused += now - asked
        self.versions.update(dict.fromkeys(requests.response_id_N.tolist(), self._groups.version))
        self.responses.start(requests)

    async def poll(self) -> Outcomes:
        """Wait for a response, or for a moment. Report all that have finished, and raise the error of one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), WAIT_SECONDS)
        self._news.clear()
        found = await self.responses.take()
        self._groups.running -= len(found)
        return found

    async def abort(self, response_id_N: IntArray) -> IntArray:
        """Stop responses and return how many tokens each had generated."""
        tokens_N, running = await self.responses.drop(response_id_N)
        self._groups.running -= len(tokens_N)
        if running and self._stop is not None:
            await self._stop()
        return tokens_N
