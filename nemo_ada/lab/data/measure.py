"""Sample k responses per problem and judge them. Data preparation and every evaluation use it.

The seed of a response depends only on (seed, problem, index). So a continued run, and a run with other chunks or more
room in the engine, asks for the same responses.

The engine stays full: the next problem starts when a response has ended, not when a chunk has. Problems come back in
their order, so a few long responses hold back the ones behind them (at most AHEAD times what fits into the engine).
Responses are judged in a thread, while the engine goes on.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from nemo_ada.errors import FailedResponsesError, InvariantError, UserError
from nemo_ada.lab.data.problem import Problem
from nemo_ada.lab.data.providers import MeasuredResponse, Request, ResponseProvider
from nemo_ada.tasks.prompting import PromptEncoder
from nemo_ada.verify.judge import Judge
from nemo_ada.verify.verdict import MEMORY, TIMEOUT, Verdict

REDRAWS = 3  # further responses per problem, in place of ones that the verifier failed on
MAX_FAILED_SHARE = 0.05
MIN_FOR_A_SHARE = 200  # with fewer responses, the share of failed ones does not stop a run
AHEAD, LEAST_AHEAD = 16, 64
"""Problems that may be open: so many engines full of responses, and at least so many problems."""
OWN_LIMITS = (TIMEOUT, MEMORY)
"""Causes that lie in the answer itself: it took the verifier too long, or too much memory."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A response with its reward.

    Attributes:
        index: The number of the response of its problem, counted from 0.
        seed: The seed that it was sampled with.
        response: The text and its length.
        reward: The label. None where the verifier failed, and 0 where an answer that hits the verifier's limits counts
            as wrong.
        cause: Why the verifier gave no label.
    """

    index: int
    seed: int
    response: MeasuredResponse
    reward: float | None
    cause: str | None

    def record(self, problem: Problem) -> dict[str, Any]:
        """Return the line of responses.jsonl."""
        return {
            "id": problem.uid,
            "line": problem.line,
            "index": self.index,
            "seed": self.seed,
            "tokens": self.response.tokens,
            "finished": self.response.finished,
            "reward": self.reward,
            **({} if self.cause is None else {"cause": self.cause}),
            "text": self.response.text,
        }


def response_seed(seed: int, uid: str, index: int) -> int:
    """Return the seed of one response: 62 bits of a hash of seed, problem and index."""
    digest = hashlib.sha256(f"{seed}:{uid}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


@dataclass(frozen=True, slots=True)
class Question:
    """A problem to sample responses for.

    Attributes:
        problem: The problem.
        encoder: Makes the prompt.
        judge: Judges the responses.
        max_new_tokens: The longest response in tokens.
    """

    problem: Problem
    encoder: PromptEncoder
    judge: Judge
    max_new_tokens: int


@dataclass(slots=True, eq=False)
class _Open:
    """A problem whose responses are not all judged.

    Attributes:
        question: The problem and its judge.
        prompt: The token ids of the prompt.
        missing: The number of responses of this round that have not ended.
        responses: The responses that have ended, by index.
        judged: The responses that were judged, in the order of their index.
        done: Whether nothing more is sampled for it.
    """

    question: Question
    prompt: Sequence[int]
    missing: int
    responses: dict[int, MeasuredResponse] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    done: bool = False


class Measurement:
    """Draws k judged responses per problem.

    A response without a label is sampled again, at most REDRAWS times per problem. FailedResponsesError is raised where
    more than MAX_FAILED_SHARE of the responses have no label.

    Args:
        provider: The model.
        k: The number of responses per problem.
        seed: The seed of all responses.
        limits_are_wrong: Whether an answer that hits the verifier's limits counts as wrong. An evaluation must do so,
            because a second draw in its place would raise the score. Otherwise such an answer has no label.
    """

    def __init__(self, provider: ResponseProvider, k: int, seed: int, *, limits_are_wrong: bool) -> None:
        if k < 1:
            raise UserError(f"k={k}: use at least one response per problem")
        self.provider, self.k, self.seed, self.limits_are_wrong = provider, k, seed, limits_are_wrong
        self._drawn = self._failed = 0

    def draw(self, questions: Iterable[Question]) -> Iterator[list[Judged]]:
        """Yield the responses of each problem, sorted by index, in the order of the problems.

        There are more than k where some were sampled again.
        """
        with ThreadPoolExecutor(1, "judge") as thread:
            yield from _Stream(self, iter(questions), thread).run()

    def judged(self, batch: Sequence[_Open]) -> None:
        """Judge the new responses of these problems."""
        for judge in {id(entry.question.judge): entry.question.judge for entry in batch}.values():
            theirs = [entry for entry in batch if entry.question.judge is judge]
            new = [
                (entry, index) for entry in theirs for index in sorted(entry.responses) if index >= len(entry.judged)
            ]
            verdicts = judge.verdicts(
                [
                    (
                        entry.responses[index].text,
                        entry.question.problem.reference,
                        entry.responses[index].finished,
                    )
                    for entry, index in new
                ]
            )
            for (entry, index), verdict in zip(new, verdicts, strict=True):
                entry.judged.append(self._judged(entry, index, verdict))
        if self._drawn >= MIN_FOR_A_SHARE and self._failed > MAX_FAILED_SHARE * self._drawn:
            raise FailedResponsesError(
                f"{batch[0].question.judge.version} failed on {self._failed} of {self._drawn} responses "
                f"(at most {MAX_FAILED_SHARE:.0%} may); see `cause` in the journal"
            )

    def _judged(self, entry: _Open, index: int, verdict: Verdict) -> Judged:
        reward = 0.0 if self.limits_are_wrong and verdict.cause in OWN_LIMITS else verdict.label
        self._drawn += 1
        self._failed += reward is None
        seed = response_seed(self.seed, entry.question.problem.uid, index)
        return Judged(index, seed, entry.responses[index], reward, verdict.cause)


class _Stream:
    """The state of one pass over the problems: open ones, responses under way, responses at the judge."""

    def __init__(self, measurement: Measurement, questions: Iterator[Question], thread: ThreadPoolExecutor) -> None:
        self._measurement, self._questions, self._thread = measurement, questions, thread
        self._provider = measurement.provider
        self._room = max(LEAST_AHEAD, AHEAD * -(-self._provider.capacity // measurement.k))
        self._open: deque[_Open] = deque()
        self._ready: deque[tuple[_Open, int]] = deque()
        self._asked: dict[int, tuple[_Open, int]] = {}
        self._number = 0
        self._whole: list[_Open] = []  # with all responses of a round, and not judged
        self._judging: tuple[Future[None], list[_Open]] | None = None

    def run(self) -> Iterator[list[Judged]]:
        """Yield the responses of each problem. Where the provider fails, finished problems come before the error."""
        failure: Exception | None = None
        while True:
            try:
                if failure is None:
                    self._fill()
                idle = not self._asked
                for number, response in () if idle else self._provider.collect():
                    self._take(*self._asked.pop(number), response)
            except (UserError, InvariantError) as problem:
                failure = problem
                self._asked.clear()
                continue
            if idle and self._judging is None and not self._whole:
                break
            self._judge(wait=idle)
            while self._open and self._open[0].done:
                yield self._open.popleft().judged
        if failure is not None:
            raise failure

    def _fill(self) -> None:
        """Ask for responses until the provider is full. Those that replace failed ones come first."""
        while len(self._asked) < self._provider.capacity and (self._ready or self._next()):
            entry, index = self._ready.popleft()
            seed = response_seed(self._measurement.seed, entry.question.problem.uid, index)
            self._asked[self._number] = (entry, index)
            self._provider.submit(self._number, Request(entry.prompt, seed, entry.question.max_new_tokens))
            self._number += 1

    def _next(self) -> bool:
        """Open one more problem. Return False where there is none left, or where too many are open."""
        if len(self._open) >= self._room or (question := next(self._questions, None)) is None:
            return False
        entry = _Open(question, question.encoder.encode(question.problem.text), 0)
        self._open.append(entry)
        self._ask(entry, self._measurement.k)
        return True

    def _ask(self, entry: _Open, count: int) -> None:
        entry.missing = count
        self._ready.extend((entry, index) for index in range(len(entry.judged), len(entry.judged) + count))

    def _take(self, entry: _Open, index: int, response: MeasuredResponse) -> None:
        entry.responses[index] = response
        entry.missing -= 1
        if entry.missing == 0:
            self._whole.append(entry)

    def _judge(self, *, wait: bool) -> None:
        """Take the verdicts that are there, and give the judge the responses that ended in the meantime.

        wait: Whether to wait for the verdicts.
        """
        if self._judging is not None and (wait or self._judging[0].done()):
            future, batch = self._judging
            self._judging = None
            future.result()
            for entry in batch:
                self._settle(entry)
        if self._judging is None and self._whole:
            batch, self._whole = self._whole, []
            self._judging = (self._thread.submit(self._measurement.judged, batch), batch)

    def _settle(self, entry: _Open) -> None:
        """Ask again for responses without a label, or close the problem."""
        k = self._measurement.k
        lacking = k - sum(judged.reward is not None for judged in entry.judged)
        again = min(lacking, k + REDRAWS - len(entry.judged))
        if again > 0:
            self._ask(entry, again)
        else:
            entry.done = True
