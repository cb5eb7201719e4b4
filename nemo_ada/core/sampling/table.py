"""The responses of one step as columns. Memory is linear in the responses issued."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.exits import PoolView, sum_squared_deviations

IN_FLIGHT, DONE, FAILED, DROPPED = 0, 1, 2, 3


class ResponseTable:
    """One entry per issued response, in issue order. The position of an entry is the `response_id`.

    The last entry is never filled, so id -1 reads as a response in flight, for example as the last response of a prompt
    that has none (`StepState.tail_P`).

    Attributes:
        n: entries that are filled.
        prompt: position of the prompt in the step.
        index: issue order within the prompt.
        wave: number of the wave, from 0.
        state: IN_FLIGHT, DONE, FAILED or DROPPED.
        accepted: whether the response belongs to the pool.
        positive: whether the response is correct.
        reward: reward, once the response is DONE.
        tokens: generated tokens, once the response has ended.
        reserved: tokens that the budget has reserved for it.
        issued_at: time of the issue, by the source's clock.
        ended_at: time of the end, by the source's clock.
        load: integral over time of the responses in flight. It first covers the time until the issue, and later the
            response's own time.
    """

    def __init__(self, capacity: int) -> None:
        size = max(capacity, 16) + 1
        self.n = 0
        self.prompt = np.zeros(size, np.int64)
        self.index = np.zeros(size, np.int64)
        self.wave = np.zeros(size, np.int64)
        self.state = np.zeros(size, np.int8)
        self.accepted = np.zeros(size, np.bool_)
        self.positive = np.zeros(size, np.bool_)
        self.reward = np.zeros(size, np.float64)
        self.tokens = np.zeros(size, np.int64)
        self.reserved = np.zeros(size, np.int64)
        self.issued_at = np.zeros(size, np.float64)
        self.ended_at = np.zeros(size, np.float64)
        self.load = np.zeros(size, np.float64)

    def append(
        self, prompt_N: IntArray, index_N: IntArray, wave_N: IntArray, *, reserved: int, now: float, load: float
    ) -> IntArray:
        """Add responses in flight and return their ids."""
        start, stop = self.n, self.n + len(prompt_N)
        if stop >= len(self.prompt):
            self._grow(stop + 1)
        self.n = stop
        self.prompt[start:stop] = prompt_N
        self.index[start:stop] = index_N
        self.wave[start:stop] = wave_N
        self.reserved[start:stop] = reserved
        self.issued_at[start:stop] = now
        self.load[start:stop] = load
        return np.arange(start, stop, dtype=np.int64)

    def view(
        self, pos_P: IntArray, neg_P: IntArray, prompts: IntArray | None = None, ids: IntArray | None = None
    ) -> PoolView:
        """Show an exit rule the pools of some prompts. The responses of a step are many, so none is read until it asks.

        Args:
            pos_P: correct responses in the pool of each prompt of the step.
            neg_P: incorrect ones.
            prompts: positions of the prompts that the rule judges. None for all.
            ids: the responses of the pools. None for those that are accepted.
        """
        shown, count = slice(None) if prompts is None else prompts, len(pos_P)

        def columns(*names: str) -> list[Any]:
            pooled = np.flatnonzero(self.accepted[: self.n]) if ids is None else ids
            return [getattr(self, name)[pooled] for name in names]

        def squares() -> FloatArray:
            prompt_N, reward_N = columns("prompt", "reward")
            return sum_squared_deviations(prompt_N, reward_N, count)[shown]

        def tokens() -> IntArray:
            prompt_N, tokens_N = columns("prompt", "tokens")
            return np.bincount(prompt_N, tokens_N, count).astype(np.int64)[shown]

        def waves() -> IntArray:
            wave_P = np.zeros(count, np.int64)
            np.maximum.at(wave_P, *columns("prompt", "wave"))
            return wave_P[shown]

        return PoolView(pos_P[shown], neg_P[shown], squares, tokens, waves)

    def _grow(self, needed: int) -> None:
        size = max(needed, 2 * len(self.prompt))
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                grown = np.zeros(size, column.dtype)
                grown[: self.n] = column[: self.n]
                setattr(self, name, grown)
