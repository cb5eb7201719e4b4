"""Draw k responses per problem, judge them and keep them. Data preparation and every evaluation use it.

The seed of a response depends only on (seed, problem, index). So a continued command, and one with more room in the
engine, asks for the same responses. Each is kept in a file as soon as it is judged. A command that was killed draws
only what its files lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

from nemo_ada.config.parsing import Size
from nemo_ada.core.schema import STRICT
from nemo_ada.errors import FailedResponsesError
from nemo_ada.lab.data.kept import Responses
from nemo_ada.lab.data.problem import Problem
from nemo_ada.lab.data.providers import MeasuredResponse, Request, ResponseProvider
from nemo_ada.run.json_lines import Record
from nemo_ada.tasks.prompting import ModelTokenizer
from nemo_ada.verify.judge import Judge
from nemo_ada.verify.verdict import MEMORY, TIMEOUT

Watch = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, and how many there are."""
BATCH = 64  # responses that are judged and kept together
MAX_FAILED_SHARE = 0.05
MIN_FOR_A_SHARE = 200  # with fewer responses, the share of failed ones does not stop a command
OWN_LIMITS = (TIMEOUT, MEMORY)
"""Causes that lie in the answer itself: it took the verifier too long, or too much memory."""


def silent(_name: str, _done: int, _total: int) -> None:
    """Say nothing: a Watch for callers that want no progress."""


@dataclass(frozen=True)
class SamplingSpec:
    """Which responses are drawn."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    k: Size
    """Responses per problem."""
    seed: int = 0
    """Seed of the responses."""
    max_prompts: Size | None = None
    """Only the first N problems of each benchmark."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A problem to draw responses for.

    Attributes:
        problem: The problem.
        encoder: Makes the prompt.
        judge: Judges the responses.
        max_new_tokens: The longest response in tokens.
        responses: Keeps them.
    """

    problem: Problem
    encoder: ModelTokenizer
    judge: Judge
    max_new_tokens: int
    responses: Responses


def response_seed(seed: int, uid: str, index: int) -> int:
    """Return the seed of one response: 62 bits of a hash of seed, problem and index."""
    digest = hashlib.sha256(f"{seed}:{uid}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


Asked = tuple[Question, int]
"""A question, and the number of one of its responses, counted from 0."""


class Measurement:
    """Draws k judged responses per problem.

    A response without a label stays without one. FailedResponsesError is raised where more than MAX_FAILED_SHARE of the
    responses have none.

    Args:
        provider: The model.
        drawing: The number of responses per problem, and their seed.
        limits_are_wrong: Whether an answer that hits the verifier's limits counts as wrong, as an evaluation must count
            it. Otherwise such an answer has no label.
    """

    def __init__(self, provider: ResponseProvider, drawing: SamplingSpec, *, limits_are_wrong: bool) -> None:
        self._provider, self._drawing, self._limits_are_wrong = provider, drawing, limits_are_wrong
        self._drawn = self._failed = 0

    def draw(self, questions: Sequence[Question], watch: Watch = silent) -> None:
        """Draw what the files of these questions lack. What ended before an error is kept."""
        asked = [(one, index) for one in questions for index in range(self._drawing.k)]
        missing = [(one, index) for one, index in asked if (one.problem.uid, index) not in one.responses.done]
        done, waiting = len(asked) - len(missing), list[tuple[Asked, MeasuredResponse]]()
        watch("responses", done, len(asked))
        if not missing:
            return
        with ThreadPoolExecutor(1) as judging:  # the model goes on while responses are judged
            judged = judging.submit(self._keep, [])
            try:
                for ended in self._provider.respond((one, self._request(*one)) for one in missing):
                    waiting += ended
                    if len(waiting) >= BATCH:
                        batch, waiting = waiting, []
                        judged.result()
                        judged = judging.submit(self._keep, batch)
                        watch("responses", done := done + len(batch), len(asked))
            finally:
                judged.result()
                self._keep(waiting)
        watch("responses", len(asked), len(asked))

    def _request(self, question: Question, index: int) -> Request:
        prompt = question.encoder.encode(question.problem.text)
        seed = response_seed(self._drawing.seed, question.problem.uid, index)
        return Request(prompt, seed, question.max_new_tokens)

    def _keep(self, batch: Sequence[tuple[Asked, MeasuredResponse]]) -> None:
        """Judge responses and write them down, those of each file together."""
        for responses in {id(one.responses): one.responses for (one, _), _ in batch}.values():
            own = [((one, index), answer) for (one, index), answer in batch if one.responses is responses]
            judge = own[0][0][0].judge
            verdicts = judge.verdicts(
                [(a.text, one.problem.reference, a.finished, one.problem.text) for (one, _), a in own]
            )
            new: list[Record] = []
            for ((one, index), answer), verdict in zip(own, verdicts, strict=True):
                reward = 0.0 if self._limits_are_wrong and verdict.cause in OWN_LIMITS else verdict.label
                new.append(
                    {
                        "id": one.problem.uid,
                        "line": one.problem.line,
                        "index": index,
                        "seed": response_seed(self._drawing.seed, one.problem.uid, index),
                        "tokens": answer.tokens,
                        "finished": answer.finished,
                        "reward": reward,
                        **({} if verdict.cause is None else {"cause": verdict.cause}),
                        "text": answer.text,
                    }
                )
            responses.add(new)
            self._drawn += len(new)
            self._failed += sum(record["reward"] is None for record in new)
            if self._drawn >= MIN_FOR_A_SHARE and self._failed > MAX_FAILED_SHARE * self._drawn:
                raise FailedResponsesError(
                    f"{judge.version} failed on {self._failed} of {self._drawn} responses (at most "
                    f"{MAX_FAILED_SHARE:.0%} may); see `cause` in {responses.path}"
                )
