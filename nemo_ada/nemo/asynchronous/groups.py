"""Draws prompt groups inside NeMo-RL's trajectory collector, whose threads wait for them (nemo/groups/drawing.py).

The requests of a group that is given up are cancelled. The engine stops them, too, unless another group draws for the
same prompt. NeMo-Gym's servers cannot stop a rollout. Such a rollout goes on and nobody reads its result. It may ask
the engine during a refit, as every response does with NeMo-RL's updates in flight.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from nemo_ada.nemo.groups.drawing import Groups
from nemo_ada.nemo.groups.prompt_queue import REDRAWN, TICKET
from nemo_ada.nemo.gym.source import GymResponder
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.requests import Responder
from nemo_ada.nemo.rollouts.verdicts import Verdicts
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import pool_metrics

T = TypeVar("T")


class GroupRollouts(Groups):
    """Draws the groups of one collector, in an event loop that has a thread of its own."""

    def __init__(
        self,
        settings: NemoSettings,
        rollout: Callable[..., Any],
        may_start: threading.Event,
        version: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Prepare to draw groups.

        Args:
            settings: settings of the run.
            rollout: NeMo-RL's `run_sample_multi_turn_rollout`, or its `run_async_nemo_gym_rollout` over NeMo-Gym.
            may_start: an event that is cleared during a refit.
            version: returns the version of the engine's weights.
            failed: gets the error of a group, in a thread.
        """
        super().__init__(settings, settings.sampler(), version)
        self._rollout, self.gate, self._failed = rollout, may_start, failed
        self._prompts: Counter[tuple[int, ...]] = Counter()  # token ids of the prompts that are drawn now
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Verdicts(self._loop))
        threading.Thread(target=self._loop.run_forever, name="nemo-ada-groups", daemon=True).start()

    def draw(self, call: RolloutCall, batch: Any, target: int) -> Future[tuple[Any, dict[str, Any]]]:
        """Draw the group of a prompt.

        Args:
            call: arguments of the rollout.
            batch: n equal rows of the prompt.
            target: step that trains on the group.

        Returns:
            A future of the n rows and NeMo-RL's metrics of the group.
        """
        return asyncio.run_coroutine_threadsafe(self._report_error(self._draw(call, batch, target)), self._loop)

    async def _report_error(self, work: Awaitable[T]) -> T:
        """Await the work. Its error ends the run, because the thread that waits for it may only print it."""
        try:
            return await work
        except Exception as error:
            await asyncio.to_thread(self._failed, error)
            raise

    async def _draw(self, call: RolloutCall, batch: Any, target: int) -> tuple[Any, dict[str, Any]]:
        gym, ticket = self.settings.gym, int(batch[TICKET][0])
        prompts = Prompts(batch, self.settings.group, whole=False, gym=gym)
        responder = (GymResponder if gym else Responder)(call, prompts, self._rollout)
        tokens = [tuple(prompts.tokens(prompt)) for prompt in range(len(prompts.ids))]

        async def stop() -> None:
            alone = [list(prompt) for prompt in tokens if self._prompts[prompt] <= 1]
            await asyncio.to_thread(responder.engine.stop, alone)

        self._prompts.update(tokens)
        try:
            drawing, pool, rows = await self.draw_group(
                prompts,
                responder.respond,
                target,
                ticket=ticket,
                redrawn=bool(batch[REDRAWN][0]),
                stop=None if gym else stop,  # the engine's requests are those of Gym's agents
            )
        finally:
            self._prompts -= Counter(tokens)  # this also removes prompts with a count of 0
        self.forget(ticket)  # an error on the way to the buffer ends the run
        result = None if pool is None else pool.result
        joined = responder.joined(list(drawing.responses.samples.values()))  # NeMo-RL averages them over the groups
        return rows, joined | pool_metrics(prompts, drawing, result, batch["length"])
