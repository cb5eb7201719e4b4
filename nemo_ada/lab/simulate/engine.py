"""A discrete-event model of a batching engine, and workloads for it (algorithm.md section 5).

One engine step gives one token to every running request, as continuous batching does. At most `slots` requests run, and
the others wait in the order of submission. On a GPU a decode step costs about the same at any batch below saturation.
So engine steps decide between schedulers, and settings can be compared in milliseconds instead of GPU hours.

Labels and lengths depend on (prompt, index) and never on time, so two settings see the same responses.
P prompts, N responses of a call.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import InvariantError

Draw = Callable[[IntArray, IntArray], tuple[FloatArray, IntArray]]
"""(prompt_N, index_N) -> (reward_N, tokens_N). A response has no label when its reward is not finite."""

NORMAL = NormalDist()
_LABEL_STREAM, _LENGTH_STREAM, _ANGLE_STREAM = 101, 102, 103  # none of them is a seeds.SeedStream


class DiscreteEventSource:
    """A ResponseSource whose clock counts engine steps, or seconds if steps have a duration.

    Attributes:
        steps: Engine steps so far.
        decoded: Tokens so far, with those of aborted responses.
    """

    def __init__(
        self, draw: Draw, *, slots: int | None = None, step_seconds: float = 1.0, row_seconds: float = 0.0
    ) -> None:
        """Make an engine without requests. A step of b requests takes step_seconds + row_seconds * b.

        Args:
            draw: Gives the rewards and lengths of responses.
            slots: Largest number of requests that run at once. None means that all run.
            step_seconds: Seconds of a step.
            row_seconds: Further seconds of a step for each running request.
        """
        self._draw = draw
        self._slots = slots
        self._step_seconds, self._row_seconds = step_seconds, row_seconds
        self._reward: dict[int, float] = {}
        self._length: dict[int, int] = {}
        self._started: dict[int, int] = {}  # running response -> step of its first token
        self._ends: list[tuple[int, int]] = []  # heap of (last step, response id), also of aborted responses
        self._queue: deque[int] = deque()
        self._seconds = 0.0
        self.steps = 0
        self.decoded = 0

    def submit(self, requests: Requests) -> None:
        """Queue the requests. They start with the next step if there is room."""
        if len(requests) == 0:
            return
        reward_N, tokens_N = self._draw(requests.prompt_N, requests.index_N)
        ids = requests.response_id_N.tolist()
        self._reward.update(zip(ids, reward_N.tolist(), strict=True))
        self._length.update(zip(ids, tokens_N.tolist(), strict=True))
        self._queue.extend(ids)
        self._admit()

    def poll(self, until: int | None = None) -> Outcomes:
        """Run the engine until at least one response ends, and not beyond step `until`.

        Raises:
            InvariantError: No request runs.
        """
        while self._ends and self._ends[0][1] not in self._started:
            heapq.heappop(self._ends)
        if not self._ends:
            raise InvariantError("poll of an engine that has no requests")
        end = self._ends[0][0] if until is None else min(self._ends[0][0], until)
        passed, running = end - self.steps, len(self._started)
        self.decoded += passed * running
        self._seconds += passed * (self._step_seconds + self._row_seconds * running)
        self.steps = end
        ids: list[int] = []
        while self._ends and self._ends[0][0] == end:
            response_id = heapq.heappop(self._ends)[1]
            if self._started.pop(response_id, None) is not None:
                ids.append(response_id)
        self._admit()
        reward_N = np.array([self._reward.pop(response_id) for response_id in ids], np.float64)
        tokens_N = np.array([self._length.pop(response_id) for response_id in ids], np.int64)
        return Outcomes(np.array(ids, np.int64), reward_N, tokens_N)

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Remove requests from the engine or the queue. Returns the tokens that each has generated [N]."""
        ids = response_id_N.tolist()
        tokens_N = np.array([self.steps - self._started.pop(i, self.steps) for i in ids], np.int64)
        for response_id in ids:
            del self._reward[response_id], self._length[response_id]
        if self._queue:
            gone = set(ids)
            self._queue = deque(i for i in self._queue if i not in gone)
            self._admit()
        return tokens_N

    def clock(self) -> float:
        """Engine steps so far, or their duration in seconds."""
        return self._seconds

    def _admit(self) -> None:
        room = len(self._queue) if self._slots is None else self._slots - len(self._started)
        for _ in range(min(room, len(self._queue))):
            response_id = self._queue.popleft()
            self._started[response_id] = self.steps
            heapq.heappush(self._ends, (self.steps + self._length[response_id], response_id))


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Lengths of responses, in tokens: log-normal, or as they were measured.

    Reasoning models have heavy tails. Most responses are short, and a few run to the limit. The log-normal's numbers
    have no meaning for measured lengths.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    median: Annotated[float, Bounds(ge=0.1, le=1e7)] = 20.0
    """Median length of correct responses before they are cut, tokens."""
    sigma: Annotated[float, Bounds(ge=0, le=10)] = 0.9
    """Standard deviation of the logarithm of the length (0.9: heavy tail)."""
    wrong_factor: Annotated[float, Bounds(ge=1e-3, le=1e3)] = 1.3
    """Wrong responses are longer by this factor."""
    max_new_tokens: Annotated[int, Bounds(ge=1, le=10_000_000)] = 400
    """Longer responses are cut to this length, tokens."""
    measured: tuple[int, ...] = ()
    """Measured lengths. A standard normal number chooses one by its quantile. Empty for the log-normal."""

    @property
    def mean_tokens(self) -> int:
        """Mean length of correct responses before they are cut, between 1 and max_new_tokens."""
        return min(max(1, round(self.median * math.exp(self.sigma**2 / 2))), self.max_new_tokens)

    def tokens(self, positive_N: BoolArray, normal_N: FloatArray) -> IntArray:
        """Lengths of responses [N], from their labels and standard normal numbers."""
        if self.measured:
            share_N, sorted_L = np.array([NORMAL.cdf(z) for z in normal_N]), np.sort(np.array(self.measured, np.int64))
            return np.asarray(sorted_L[np.minimum((share_N * len(sorted_L)).astype(np.int64), len(sorted_L) - 1)])
        scale_N = np.where(positive_N, self.median, self.median * self.wrong_factor)
        tokens_N = np.rint(scale_N * np.exp(self.sigma * normal_N))
        return np.asarray(np.clip(tokens_N, 1, self.max_new_tokens), np.int64)


@dataclass(frozen=True, slots=True)
class Workload:
    """Responses of one step. Every number is a hash of (seed, step, prompt, index) and does not depend on time.

    Attributes:
        pass_rate_P: Probability that a response to a prompt is correct.
        lengths: Distribution of the lengths.
        seed: Seed of the run.
        step: Training step.
        failed_share: Share of responses without a label (reward NaN).
    """

    pass_rate_P: FloatArray
    lengths: LengthModel = LengthModel()
    seed: int = 0
    step: int = 0
    failed_share: float = 0.0

    def draw(self, prompt_N: IntArray, index_N: IntArray) -> tuple[FloatArray, IntArray]:
        """Return rewards (0, 1 or NaN) and lengths of responses, both [N]. This is a `Draw`."""
        label_N = seeds.draw_uniform(self.seed, self.step, prompt_N, index_N, _LABEL_STREAM)
        radius_N = np.sqrt(
            -2.0 * np.log1p(-seeds.draw_uniform(self.seed, self.step, prompt_N, index_N, _LENGTH_STREAM))
        )
        angle_N = 2.0 * np.pi * seeds.draw_uniform(self.seed, self.step, prompt_N, index_N, _ANGLE_STREAM)
        if self.failed_share > 0.0:  # the upper end of the label's number fails; with failed_share = 0 no label changes
            failed_N = label_N >= 1.0 - self.failed_share
            label_N = label_N / (1.0 - self.failed_share)
        else:
            failed_N = np.zeros(len(label_N), np.bool_)
        positive_N = label_N < self.pass_rate_P[prompt_N]
        tokens_N = self.lengths.tokens(positive_N, radius_N * np.cos(angle_N))  # Box and Muller, 1958
        return np.where(failed_N, np.nan, positive_N.astype(np.float64)), tokens_N


def draw_beta_rates(prompts: int, a: float, b: float, seed: int) -> FloatArray:
    """Pass rates [P] of `prompts` prompts from Beta(a, b)."""
    return np.random.default_rng(seed).beta(a, b, prompts)
