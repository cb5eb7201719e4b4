"""Draw k responses for problems and judge them: the pass rates of a data set, and every evaluation.

The seed of a response depends on (seed, problem, index) alone, so a run that is killed and continued, or split into
other chunks, asks for the same draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nemo_ada.data.judge import Judge
from nemo_ada.data.problem import Problem
from nemo_ada.data.prompting import PromptEncoder
from nemo_ada.errors import FailedResponsesError, UserError

REDRAWS = 3  # further responses that a problem gets in place of ones that could not be judged
MAX_FAILED_SHARE = 0.05
MIN_FOR_A_SHARE = 200  # responses before the share of failed ones can stop a run


@dataclass(frozen=True, slots=True)
class MeasuredResponse:
    """text without its stop token; tokens generated, stop token included; finished: ended by itself."""

    text: str
    tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One response to draw: token ids of the whole prompt, and the seed."""

    prompt: Sequence[int]
    seed: int


class ResponseProvider(Protocol):
    """A model that answers. `name` and `fingerprint` go into cards; nothing is started before the first request."""

    name: str
    fingerprint: str

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Responses in the order of the requests."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """A response with its reward, or (reward None) with the cause why the verifier gave none."""

    index: int
    seed: int
    response: MeasuredResponse
    reward: float | None
    cause: str | None

    def record(self, problem: Problem, *, text: bool) -> dict[str, Any]:
        """One line of responses.jsonl."""
        found: dict[str, Any] = {
            "id": problem.uid,
            "line": problem.line,
            "index": self.index,
            "seed": self.seed,
            "tokens": self.response.tokens,
            "finished": self.response.finished,
            "reward": self.reward,
        }
        if self.cause is not None:
            found["cause"] = self.cause
        if text:
            found["text"] = self.response.text
        return found


def response_seed(seed: int, uid: str, index: int) -> int:
    """62 bits of a hash of (seed, problem, index)."""
    digest = hashlib.sha256(f"{seed}:{uid}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


class Measurement:
    """k judged responses per problem; what the verifier failed on is drawn again, at most REDRAWS times a problem.

    Raises FailedResponsesError where more than 5 % of the responses could not be judged.
    """

    def __init__(self, provider: ResponseProvider, encoder: PromptEncoder, judge: Judge, k: int, seed: int) -> None:
        if k < 1:
            raise UserError(f"k={k}: at least one response per problem is needed")
        self.provider, self.encoder, self.judge, self.k, self.seed = provider, encoder, judge, k, seed
        self._drawn = self._failed = 0

    def draw(self, problems: Sequence[Problem]) -> list[list[Judged]]:
        """Responses of each problem by index; more than k where some were drawn again."""
        prompts = [self.encoder.encode(problem.text) for problem in problems]
        found: list[list[Judged]] = [[] for _ in problems]
        wanted = [self.k] * len(problems)
        for _ in range(REDRAWS + 1):
            asked = [
                (p, index)
                for p, drawn in enumerate(found)
                for index in range(len(drawn), min(len(drawn) + wanted[p], self.k + REDRAWS))
            ]
            if not asked:
                break
            for (p, _index), judged in zip(asked, self._judged(problems, prompts, asked), strict=True):
                found[p].append(judged)
            wanted = [self.k - sum(judged.reward is not None for judged in drawn) for drawn in found]
        self._check_failed()
        return found

    def _judged(
        self, problems: Sequence[Problem], prompts: Sequence[Sequence[int]], asked: Sequence[tuple[int, int]]
    ) -> list[Judged]:
        seeds = [response_seed(self.seed, problems[p].uid, index) for p, index in asked]
        requests = [Request(prompts[p], seed) for (p, _), seed in zip(asked, seeds, strict=True)]
        responses = self.provider.respond(requests)
        verdicts = self.judge.verdicts(
            [(r.text, problems[p].answer, r.finished) for (p, _), r in zip(asked, responses, strict=True)]
        )
        self._drawn += len(verdicts)
        self._failed += sum(verdict.label is None for verdict in verdicts)
        return [
            Judged(index, seed, response, verdict.label, verdict.cause)
            for (_, index), seed, response, verdict in zip(asked, seeds, responses, verdicts, strict=True)
        ]

    def _check_failed(self) -> None:
        if self._drawn >= MIN_FOR_A_SHARE and self._failed > MAX_FAILED_SHARE * self._drawn:
            raise FailedResponsesError(
                f"{self._failed} of {self._drawn} responses could not be judged by {self.judge.version} "
                f"(at most {MAX_FAILED_SHARE:.0%} may); see `cause` in the journal"
            )
