"""An online model of how long responses take (algorithm.md sections 5 and 6).

It learns two things from finished responses and keeps them from step to step:

1. The time of a response: start + length * t(b), with t(b) = base + slope * b and b the number of responses in flight.
   `start` is the cost of the prompt. On a GPU the slope is almost zero below saturation.
2. The empirical distribution of recent response lengths.

Together they predict whether responses end in time. Times are in the source's clock (seconds, or engine steps in the
discrete-event model).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray

START_GAIN = 0.5  # `start` must halve the squared error to be used, because length and load are correlated


class LatencyModel:
    """Predicts when waves end. Its state is small, exact, and can be written as JSON."""

    def __init__(self, *, keep_lengths: int = 4096, decay: float = 0.9) -> None:
        """Begin without data.

        Args:
            keep_lengths: number of recent response lengths that are kept.
            decay: weight of a step's timings after one more step.
        """
        self._keep = keep_lengths
        self._decay = decay
        self._lengths: IntArray = np.zeros(0, dtype=np.int64)
        self._sort_lengths()
        # second moments of (1, b, 1 / length, seconds per token)
        self._moments: FloatArray = np.zeros((4, 4), dtype=np.float64)
        self._base = self._slope = self._start = 0.0

    def _sort_lengths(self) -> None:
        self._sorted: IntArray = np.sort(self._lengths)

    @property
    def ready(self) -> bool:
        """Whether a whole step has been observed."""
        return len(self._lengths) > 0

    def observe(self, tokens_N: IntArray, seconds_N: FloatArray, in_flight_N: FloatArray) -> None:
        """Learn from one step.

        Args:
            tokens_N: tokens of finished responses, from a set of which no response was dropped for its length.
            seconds_N: their time from issue to end.
            in_flight_N: mean number of responses in flight during that time.
        """
        if len(tokens_N):
            self._lengths = np.concatenate([self._lengths, np.asarray(tokens_N, dtype=np.int64)])[-self._keep :]
            self._sort_lengths()
        timed = (tokens_N > 0) & (seconds_N > 0)
        if timed.any():
            length = tokens_N[timed].astype(np.float64)
            # seconds per token = base + slope * b + start / length, each response weighted by its tokens
            columns = np.stack([np.ones(len(length)), in_flight_N[timed], 1.0 / length, seconds_N[timed] / length])
            self._moments = self._decay * self._moments + (columns * length) @ columns.T
            self._fit()

    def _fit(self) -> None:
        """Fit base, slope and start >= 0 by weighted least squares. `start` is used only if the line fits badly."""
        line, line_error = self._solve((0, 1))
        full, full_error = self._solve((0, 1, 2))
        needed = full_error < START_GAIN * line_error and line_error > 1e-9 * self._moments[3, 3]
        self._base, self._slope, self._start = full if needed else line

    def _solve(self, columns: tuple[int, ...]) -> tuple[tuple[float, float, float], float]:
        """Find the best non-negative solution on some columns, by trying which of them are zero.

        Returns:
            The solution and its squared error.
        """
        gram, target, total = self._moments[:3, :3], self._moments[:3, 3], float(self._moments[3, 3])
        best, best_error = (0.0, 0.0, 0.0), total
        for size in range(1, len(columns) + 1):
            for chosen in combinations(columns, size):
                part = np.linalg.pinv(gram[np.ix_(chosen, chosen)]) @ target[list(chosen)]
                if (part < 0.0).any():
                    continue
                solution = np.zeros(3)
                solution[list(chosen)] = part
                error = float(total - 2.0 * solution @ target + solution @ gram @ solution)
                if error < best_error:
                    best, best_error = (float(solution[0]), float(solution[1]), float(solution[2])), error
        return best, best_error

    def predict_seconds_per_token(self, in_flight: float) -> float:
        """Predict t(b) = base + slope * b. It is 0.0 before anything was observed."""
        return self._base + self._slope * in_flight

    def get_length_quantile(self, level: float) -> int:
        """Return the `level` quantile of recent lengths, in tokens. It is an observed length, rounded up."""
        if not self.ready:
            return 0
        position = int(np.ceil(level * len(self._sorted))) - 1
        return int(self._sorted[min(max(position, 0), len(self._sorted) - 1)])

    def compute_late_risk(self, size: int, in_flight: float, seconds: float) -> float:
        """Compute the risk that some of `size` responses, issued now, do not end in time.

        The risk is -log of the probability that all of them end in time. Independent risks add up. Waves of risks r_1,
        r_2, ... are all in time with probability exp(-(r_1 + r_2 + ...)).

        Args:
            size: responses that are issued now.
            in_flight: other responses in flight.
            seconds: time in which they must end.
        """
        pace = self.predict_seconds_per_token(in_flight + size)
        tokens = (seconds - self._start) / pace if pace > 0.0 else np.inf
        ended = int(np.searchsorted(self._sorted, tokens, side="right"))
        if seconds < 0.0 or (ended == 0 and self.ready):
            return np.inf
        return size * float(np.log(len(self._sorted) / ended)) if ended else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs. Floats survive JSON exactly."""
        return {"lengths": self._lengths.tolist(), "moments": self._moments.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._lengths = np.asarray(state["lengths"], dtype=np.int64)
        self._sort_lengths()
        self._moments = np.asarray(state["moments"], dtype=np.float64)
        self._fit()
