"""Sample k responses per problem and judge them, for pass rates of a data set and for every evaluation.

The seed of a response depends only on (seed, problem, index). So a continued run, and a run in other chunks, asks for
the same responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_ada.data.problem import Problem
from nemo_ada.data.providers import MeasuredResponse, Request, ResponseProvider
from nemo_ada.errors import FailedResponsesError, UserError
from nemo_ada.tasks.prompting import PromptEncoder
from nemo_ada.verify.judge import Judge

REDRAWS = 3  # further responses per problem, in place of ones that the verifier failed on
MAX_FAILED_SHARE = 0.05
MIN_FOR_A_SHARE = 200  # with fewer responses, the share of failed ones does not stop a run


@dataclass(frozen=True, slots=True)
class Judged:
    """A response with its reward. Where the verifier failed, the reward is None and `cause` says why."""

    index: int
    seed: int
    response: MeasuredResponse
    reward: float | None
    cause: str | None

    def record(self, problem: Problem) -> dict[str, Any]:
        """One line of responses.jsonl."""
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
    """62 bits of a hash of (seed, problem, index)."""
    digest = hashlib.sha256(f"{seed}:{uid}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


class Measurement:
    """k judged responses per problem. Failures of the verifier are sampled again, at most REDRAWS times a problem.

    Raises FailedResponsesError where the verifier fails on more than 5 % of the responses.
    """

    def __init__(self, provider: ResponseProvider, encoder: PromptEncoder, judge: Judge, k: int, seed: int) -> None:
        if k < 1:
            raise UserError(f"k={k}: use at least one response per problem")
        self.provider, self.encoder, self.judge, self.k, self.seed = provider, encoder, judge, k, seed
        self._drawn = self._failed = 0

    def draw(self, problems: Sequence[Problem]) -> list[list[Judged]]:
        """Responses of each problem by index. There are more than k where some were sampled again."""
        prompts = [self.encoder.encode(problem.text) for problem in problems]
        drawn: list[list[Judged]] = [[] for _ in problems]
        missing = [self.k] * len(problems)
        for _ in range(REDRAWS + 1):
            asked = [
                (p, index)
                for p, own in enumerate(drawn)
                for index in range(len(own), min(len(own) + missing[p], self.k + REDRAWS))
            ]
            if not asked:
                break
            for (p, _index), judged in zip(asked, self._judged(problems, prompts, asked), strict=True):
                drawn[p].append(judged)
            missing = [self.k - sum(judged.reward is not None for judged in own) for own in drawn]
        if self._drawn >= MIN_FOR_A_SHARE and self._failed > MAX_FAILED_SHARE * self._drawn:
            raise FailedResponsesError(
                f"{self.judge.version} failed on {self._failed} of {self._drawn} responses "
                f"(at most {MAX_FAILED_SHARE:.0%} may); see `cause` in the journal"
            )
        return drawn

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
