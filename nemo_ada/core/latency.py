"""An online model of how long responses take (algorithm.md sections 5 and 6).

Two facts are learned from finished responses and carried from step to step: the time per token as a line in the number
of responses in flight, t(b) = base + slope * b (on a GPU the slope is almost zero below saturation), and the recent
response lengths, as an empirical distribution. From these follow the time of a wave and the end of the first waves.

Times are in the source's clock (seconds, or engine steps in the discrete-event model).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class LatencyModel:
    """Predicts wave latencies from tokens in flight. State is small, exact and JSON-able."""

    def __init__(self, *, keep_lengths: int = 4096, decay: float = 0.9) -> None:
        """keep_lengths: recent response lengths kept; decay: weight of a step's timings after one more step."""
        self._keep = keep_lengths
        self._decay = decay
        self._lengths: IntArray = np.zeros(0, dtype=np.int64)
        self._sort_lengths()
        # weighted sums of 1, b, b^2, y, b*y with y = seconds per token and weight = tokens
        self._sums: FloatArray = np.zeros(5, dtype=np.float64)

    def _sort_lengths(self) -> None:
        self._sorted: IntArray = np.sort(self._lengths)
        distinct = np.unique(self._sorted)
        # at most 512 candidate lengths, always with the longest one
        self._candidates: IntArray = distinct[:: -max(1, len(distinct) // 512)][::-1]

    @property
    def ready(self) -> bool:
        """True once a whole step has been observed."""
        return len(self._lengths) > 0

    def observe(self, length_N: IntArray, tokens_M: IntArray, seconds_M: FloatArray, in_flight_M: FloatArray) -> None:
        """Learn from one step.

        length_N: lengths of an uncensored set of responses (nothing was dropped for being long).
        tokens_M, seconds_M, in_flight_M: of any responses that finished: their tokens, their time from issue to end,
        and the mean number of responses in flight meanwhile.
        """
        if len(length_N):
            self._lengths = np.concatenate([self._lengths, np.asarray(length_N, dtype=np.int64)])[-self._keep :]
            self._sort_lengths()
        timed = (tokens_M > 0) & (seconds_M > 0)
        if timed.any():
            w = tokens_M[timed].astype(np.float64)
            b, y = in_flight_M[timed], seconds_M[timed] / tokens_M[timed]
            sums = np.array([w.sum(), (w * b).sum(), (w * b * b).sum(), (w * y).sum(), (w * b * y).sum()])
            self._sums = self._decay * self._sums + sums

    def seconds_per_token(self, in_flight: float) -> float:
        """t(b), fitted by weighted least squares with base, slope >= 0; 0.0 before anything was observed."""
        s0, s1, s2, y0, y1 = self._sums
        if s0 <= 0:
            return 0.0
        spread = s0 * s2 - s1 * s1
        slope = (s0 * y1 - s1 * y0) / spread if spread > 1e-9 * s0 * s2 else 0.0
        slope = max(0.0, float(slope))
        base = (y0 - slope * s1) / s0
        if base < 0.0:
            base, slope = 0.0, float(y1 / s2) if s2 > 0 else 0.0
        return float(base + slope * in_flight)

    def length_quantile(self, level: float) -> int:
        """The `level` quantile of recent lengths, in tokens (an observed length, rounded up)."""
        if not self.ready:
            return 0
        position = int(np.ceil(level * len(self._sorted))) - 1
        return int(self._sorted[min(max(position, 0), len(self._sorted) - 1)])

    def wave_seconds(self, size: int, in_flight: float, level: float) -> float:
        """Time within which all `size` responses of a wave end with probability `level`, beside `in_flight` others."""
        length = self.length_quantile(level ** (1.0 / max(size, 1)))
        return length * self.seconds_per_token(in_flight + size)

    def remaining_seconds(self, elapsed_M: FloatArray, in_flight: float) -> float:
        """Median time until the last of M running responses ends, each of which has run for elapsed_M already.

        With S(l) the share of recent lengths above l, a response that is at token k ends within u more tokens with
        probability 1 - S(k + u) / S(k); the last of M ends within u with the product of these.
        """
        pace = self.seconds_per_token(in_flight)
        if not self.ready or pace <= 0.0 or len(elapsed_M) == 0:
            return 0.0
        total = len(self._sorted)
        progress_G, count_G = np.unique(np.floor(elapsed_M / pace), return_counts=True)
        longer_G = total - np.searchsorted(self._sorted, progress_G, side="right")
        known = longer_G > 0  # a response longer than any seen before may end at any moment
        if not known.any():
            return 0.0
        progress_G, count_G, longer_G = progress_G[known], count_G[known], longer_G[known]
        candidate_U = self._candidates[self._candidates > progress_G[0]] - progress_G[0]
        running_UG = total - np.searchsorted(self._sorted, candidate_U[:, None] + progress_G[None, :], side="right")
        ended_U = np.prod((1.0 - running_UG / longer_G) ** count_G, axis=1)
        return float(candidate_U[int(np.argmax(ended_U >= 0.5))]) * pace

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs; floats survive JSON exactly."""
        return {"lengths": self._lengths.tolist(), "sums": self._sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._lengths = np.asarray(state["lengths"], dtype=np.int64)
        self._sort_lengths()
        self._sums = np.asarray(state["sums"], dtype=np.float64)
