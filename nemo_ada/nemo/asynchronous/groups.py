"""Draws prompt groups inside NeMo-RL's trajectory collector. Each group has a session and a thread.

The collector starts a thread for each prompt. It draws waves until the group's session has enough, while the learner
trains. The groups of one training step share its budget (core/sampling/budget.py). Sessions only keep books, under one
lock. The lock is free while a group waits for the engine.

Weights change while groups are drawn. A wave starts only when the collector allows it (not during a refit), under the
version of that moment, which the pool keeps. So waves of one pool may come from different versions.

A group that takes longer than `budget.max_group_seconds` is given up. It keeps its complete waves, or has placeholder
rows. Its requests are cancelled. The engine stops them, too, unless another group draws for the same prompt. NeMo-Gym's
servers cannot stop a rollout. Such a rollout goes on and nobody reads its result. It may ask the engine during a refit,
as every response does with NeMo-RL's updates in flight.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.budget import GroupLedger
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.nemo import metrics as own_metrics
from nemo_ada.nemo.groups.ledgers import StepLedgers
from nemo_ada.nemo.groups.prompt_queue import REDRAWN
from nemo_ada.nemo.groups.rows import GroupRows
from nemo_ada.nemo.gym.actor import SILENT_SECONDS
from nemo_ada.nemo.gym.source import GymSource
from nemo_ada.nemo.rollouts.batches import outcomes
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.requests import AsyncSource, SampleRollout
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import mean_prompt_length, shaped_rewards

WAIT_SECONDS = 1.0  # the interval at which a group without new responses checks its time limit


class GroupRollouts:
    """Draws the groups of one collector. It is safe to use from many threads.

    Attributes:
        changed: the lock of all sessions. It is notified when a group ends.
    """

    def __init__(
        self, settings: NemoSettings, rollout: SampleRollout, may_start: threading.Event, version: Callable[[], int]
    ) -> None:
        """Prepare to draw groups.

        Args:
            settings: settings of the run.
            rollout: NeMo-RL's `run_sample_multi_turn_rollout`, or its `run_async_nemo_gym_rollout` over NeMo-Gym.
            may_start: an event that is cleared during a refit.
            version: returns the version of the engine's weights.
        """
        self._settings, self._rollout, self._may_start, self._version = settings, rollout, may_start, version
        self._sampler = settings.sampler()
        self._rows = GroupRows(settings, self._sampler)
        self.changed = threading.Condition()
        self._ledgers = StepLedgers(self._sampler, settings.prompts, version)
        self._prompts: Counter[tuple[int, ...]] = Counter()  # token ids of the prompts that are drawn now
        self._running = 0
        self._count_lock = threading.Lock()

    # budget -----------------------------------------------------------------------------------------------------------

    def restore(self, pool: GroupPool | None, target: int, number: int) -> None:
        """Book a group that an earlier attempt has drawn, with the arguments of `StepLedgers.restore`."""
        with self.changed:
            self._ledgers.restore(pool, target, number)

    # responses in flight ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version of the weights of a response that starts now."""
        return self._version()

    @property
    def running(self) -> int:
        """Number of responses in flight."""
        with self._count_lock:
            return self._running

    def count(self, change: int) -> None:
        """Add `change` to the number of responses in flight."""
        with self._count_lock:
            self._running += change

    def enter(self, responses: int) -> float:
        """Wait until no refit is under way, and count responses that start now. Returns the seconds of the wait."""
        began = time.monotonic()
        while True:
            self._may_start.wait()
            self.count(responses)  # before the check, so that a refit that begins now waits for them
            if self._may_start.is_set():
                return time.monotonic() - began
            self.count(-responses)

    def alone(self, prompt: tuple[int, ...]) -> bool:
        """Return whether no other group draws for a prompt with these tokens."""
        return self._prompts[prompt] <= 1

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Within the block other groups' sessions may go on."""
        self.changed.release()
        try:
            yield
        finally:
            self.changed.acquire()

    def wait(self) -> None:
        """Wait until another group ends, or for a moment."""
        self.changed.wait(WAIT_SECONDS)

    # a group ----------------------------------------------------------------------------------------------------------

    def draw(self, call: RolloutCall, batch: Any, target: int) -> tuple[Any, dict[str, Any]]:
        """Draw the group of a prompt.

        Args:
            call: arguments of the rollout.
            batch: n equal rows of the prompt.
            target: step that trains on the group.

        Returns:
            The n rows and NeMo-RL's metrics of the group.
        """
        gym = self._settings.gym
        prompts = Prompts(batch, self._settings.group, whole=False, gym=gym)
        tokens = [tuple(token for turn in log for token in turn["token_ids"].tolist()) for log in prompts.logs]
        with self.changed:
            ledger = self._ledgers.of(target).start()
            self._prompts.update(tokens)
        kind = _GymGroupSource if gym else _GroupSource
        source = kind(call, prompts, self._rollout, self._settings, self)
        try:
            pool = self._sample(source, prompts, ledger, target, bool(batch[REDRAWN][0])) if prompts.ids else None
        finally:
            source.close()
            with self.changed:
                self._prompts -= Counter(tokens)  # this also removes prompts with a count of 0
                ledger.end()
                self.changed.notify_all()
        return self._rows_of(prompts, source, pool, ledger.number, batch["length"])

    def _sample(
        self, source: _GroupSource, prompts: Prompts, ledger: GroupLedger, target: int, redrawn: bool
    ) -> GroupPool:
        with self.changed:
            session = self._sampler.group_session(target, ledger)
            result = run_sampling(session, source, stop_check=source.late, wait=self.wait)
        if self._settings.gym and len(result.response_id_N):  # labels are those of the rewards before NeMo-RL's shaping
            result = replace(result, reward_N=shaped_rewards(result, source))
        return self._rows.pool(prompts, result, source.versions, step=target, redrawn=redrawn, gave_up=source.gave_up)

    def _rows_of(
        self, prompts: Prompts, source: _GroupSource, pool: GroupPool | None, number: int, length_R: Any
    ) -> tuple[Any, dict[str, Any]]:
        batch = self._rows.of(prompts, source, pool, number=number)
        ids = [] if pool is None else pool.result.response_id_N.tolist()
        responses = [source.response(row) for row in ids]
        tokens_N = np.array([response.tokens for response in responses] or [0])
        metrics: dict[str, Any] = source.reported | {
            "mean_gen_tokens_per_sample": float(tokens_N.mean()),
            "max_gen_tokens_per_sample": float(tokens_N.max()),
            "truncation_rate": float(np.mean([response.truncated for response in responses] or [False])),
            "mean_prompt_length": mean_prompt_length(prompts, responses, length_R),
        }
        if pool is not None:  # NeMo-RL averages what the groups of a step report
            metrics |= own_metrics.mean_reward(pool.result)
        return batch, metrics


class _GroupSource(AsyncSource):
    """The source of one group. It is an AsyncSource with a time limit, and other groups use the same engine.

    Attributes:
        versions: version of the weights of each response, by response_id.
        gave_up: whether the time limit was reached.
    """

    patience = WAIT_SECONDS

    def __init__(
        self, call: RolloutCall, prompts: Prompts, rollout: SampleRollout, settings: NemoSettings, all_: GroupRollouts
    ) -> None:
        super().__init__(call, prompts, rollout, settings.longest)
        self._all, self._limit = all_, settings.ada.budget.max_group_seconds
        self._began: float | None = None
        self._paused = 0.0
        self.versions: dict[int, int] = {}
        self.gave_up = False

    def late(self) -> Literal["give_up"] | None:
        """Return "give_up" once, when the group takes too long. Time spent in refits does not count."""
        if self._began is None or self.gave_up:
            return None
        self.gave_up = time.monotonic() - self._began - self._paused > self._limit
        return "give_up" if self.gave_up else None

    def submit(self, requests: Requests) -> None:
        with self._all.unlocked():
            waited = self._all.enter(len(requests))
        if self._began is None:
            self._began = time.monotonic()
        else:
            self._paused += waited
        version = self._all.version
        self.versions.update(dict.fromkeys(requests.response_id_N.tolist(), version))
        super().submit(requests)

    def poll(self) -> Outcomes:
        with self._all.unlocked():
            found = super().poll()
        self._all.count(-len(found))
        return found

    def abort(self, response_id_N: IntArray) -> IntArray:
        self._all.count(-len(response_id_N))
        with self._all.unlocked():
            return super().abort(response_id_N)

    def _silence(self) -> Outcomes:
        return outcomes([], [])

    def _shared(self, prompt: int, still: set[int]) -> bool:
        return not self._all.alone(tuple(self._prompt_tokens(prompt))) or super()._shared(prompt, still)

    def close(self) -> None:
        """End every task and the thread.

        The other groups use the engine, too, and a hanging verifier keeps its thread busy. So this waits for neither.
        """
        left = list(self._issued_at)
        self._all.count(-len(left))
        self._in_loop(self._cancel(left))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _GymGroupSource(_GroupSource, GymSource):
    """The source of one group over NeMo-Gym, whose servers are looked at while they are silent."""

    def _silence(self) -> Outcomes:
        self._silent += self.patience
        if self._silent >= SILENT_SECONDS:
            self._silent = 0.0
            self._check()
        return super()._silence()

    def _shared(self, prompt: int, still: set[int]) -> bool:
        return True  # the engine's requests are those of Gym's agents
