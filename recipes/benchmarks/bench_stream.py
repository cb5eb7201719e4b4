"""What an evaluation gains when its engine stays full over the borders of chunks. A simulation, under a minute.

    python recipes/benchmarks/bench_stream.py

The engine of the simulation has a number of slots. A response takes as many steps as it has tokens (lognormal, median
600, at most 4,096) and its slot is free afterwards. Both ways draw the same responses: "chunks" waits for all responses
of 16 problems before it asks for the next ones, as `nemo-ada eval` did before; "stream" is `Measurement.draw`. Printed:
steps of both, and their ratio.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from measure import measure

from nemo_ada.lab.data.measure import Measurement, Question
from nemo_ada.lab.data.problem import Problem, problem_id
from nemo_ada.lab.data.providers import MeasuredResponse, Request
from nemo_ada.verify.judge import Judge

CHUNK = 16
MEDIAN, SIGMA, LONGEST = 600, 0.8, 4096


class SimulatedEngine:
    """Responses of random length. steps: of the engine so far."""

    name, fingerprint = "simulated", "0" * 16

    def __init__(self, slots: int) -> None:
        self.capacity, self.steps = slots, 0
        self._ends: list[tuple[int, int, int]] = []

    def submit(self, number: int, request: Request) -> None:
        """Its length depends on its seed only."""
        tokens = min(LONGEST, math.ceil(MEDIAN * math.exp(random.Random(request.seed).gauss(0.0, SIGMA))))
        heapq.heappush(self._ends, (self.steps + tokens, number, tokens))

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Go on to the next end of a response."""
        self.steps, number, tokens = heapq.heappop(self._ends)
        return [(number, MeasuredResponse("1", tokens, tokens < LONGEST))]

    def close(self) -> None:
        """It holds nothing."""


class _NoTokens:
    name = "none"

    def encode(self, text: str) -> list[int]:
        return [0] * len(text)


def questions(count: int) -> list[Question]:
    """Problems whose text does not matter."""
    judge = Judge("exact")
    texts = [f"problem {n}" for n in range(count)]
    return [Question(Problem(problem_id(t), n, t, "1"), _NoTokens(), judge, LONGEST) for n, t in enumerate(texts, 1)]


def steps(asked: Sequence[Question], k: int, slots: int, chunk: int | None) -> int:
    """Engine steps for k responses to each problem. chunk: problems between two waits (None: no waits)."""
    engine = SimulatedEngine(slots)
    measurement = Measurement(engine, k, 0, limits_are_wrong=True)
    for start in range(0, len(asked), chunk or len(asked)):
        for _ in measurement.draw(asked[start : start + (chunk or len(asked))]):
            pass
    return engine.steps


def main() -> None:
    """A table in Markdown."""
    print("| problems | k | slots | steps, chunks | steps, stream | ratio |\n|---|---|---|---|---|---|")
    for problems, k, slots in ((500, 4, 256), (500, 32, 256), (500, 4, 1024), (500, 32, 1024), (1500, 1, 256)):
        asked = questions(problems)
        chunks, stream = steps(asked, k, slots, CHUNK), steps(asked, k, slots, None)
        print(f"| {problems} | {k} | {slots} | {chunks:,} | {stream:,} | {chunks / stream:.1f} |")


if __name__ == "__main__":
    measure(main)
