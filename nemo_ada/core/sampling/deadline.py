"""Decides which waiting prompts are in time, for the cap on seconds (algorithm.md section 6).

Redraws for a first wave always pass. Under a cap on seconds other requests are granted while all responses after first
waves are expected to end in time together, with probability `seconds_quantile`. Each granted request books its risk
of being late (LatencyModel.late_risk). So the promise holds for the whole batch, whenever its waves were issued.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from nemo_ada.core.arrays import BoolArray, IntArray
from nemo_ada.core.sampling.budget import SECONDS
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.state import StepState


class Deadline:
    """Selects the requests of one batch that are in time."""

    def __init__(self, state: StepState, latency: LatencyModel) -> None:
        self._state, self._latency = state, latency
        self._cap = state.plan.budget.caps().get(SECONDS)
        self._booked = 0.0
        self._max_risk = float(-np.log(state.plan.budget.seconds_quantile))  # as compute_late_risk counts it

    def select_in_time(self, waiting: IntArray, elapsed: float, ranked: Callable[[IntArray], IntArray]) -> IntArray:
        """Leave out requests that are expected to end too late. Cut requests that would be late even alone.

        Args:
            waiting: prompts that wait.
            elapsed: seconds since the batch began.
            ranked: sorts prompts by the order in which they are served.
        """
        if self._cap is None:
            return waiting
        first = self._are_redraws(waiting)
        redraws, later = waiting[first], waiting[~first]
        load = self._state.in_flight + int(self._state.want_P[redraws].sum())
        alone = self._try_each(later, lambda size: self._within_risk(size, load, elapsed))
        self._state.cut(later[~alone], SECONDS.name)
        later = self._select_together(later[alone], load, elapsed, ranked)
        return np.sort(np.concatenate((redraws, later)))

    def book(self, prompts: IntArray, sizes: IntArray, elapsed: float) -> None:
        """Book the risk of requests that are issued now."""
        if self._cap is None or len(prompts) == 0:
            return
        later = int(sizes[~self._are_redraws(prompts)].sum())
        if later:
            load = self._state.in_flight + int(sizes.sum()) - later
            self._booked += self._compute_risk(later, load, elapsed)

    def _are_redraws(self, waiting: IntArray) -> BoolArray:
        """Find the prompts that wait to replace failures of a first wave."""
        state = self._state
        return np.asarray((state.wave_P[waiting] == 0) & (waiting < state.n_starting))

    def _try_each(self, waiting: IntArray, fits: Callable[[int], bool]) -> BoolArray:
        """Compute `fits(size)` for every request. It is evaluated once per size."""
        size_U, inverse_W = np.unique(self._state.want_P[waiting], return_inverse=True)
        return np.array([fits(size) for size in size_U.tolist()], np.bool_)[inverse_W]

    def _select_together(
        self, waiting: IntArray, load: int, elapsed: float, ranked: Callable[[IntArray], IntArray]
    ) -> IntArray:
        """Return the longest ranked prefix of requests whose joint risk is allowed."""
        want_P = self._state.want_P
        if len(waiting) == 0 or self._within_risk(int(want_P[waiting].sum()), load, elapsed):
            return waiting
        waiting = ranked(waiting)
        total_W = np.cumsum(want_P[waiting]).tolist()
        return waiting[: bisect_left(total_W, True, key=lambda size: not self._within_risk(size, load, elapsed))]

    def _within_risk(self, size: int, load: int, elapsed: float) -> bool:
        return self._booked + self._compute_risk(size, load, elapsed) <= self._max_risk

    def _compute_risk(self, size: int, load: int, elapsed: float) -> float:
        """Compute the risk that `size` responses beside `load` others are late.

        Until the latency model has seen a step, assume that a response lasts as long as the batch has lasted.
        """
        left = float(self._cap or 0.0) - elapsed
        return self._latency.compute_late_risk(size, load, left if self._latency.ready else left - elapsed)
