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
from nemo_ada.verify.verdict import MEMORY, TIMEOUT, Verdict

Watch = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, and how many there are."""
BATCH = 64  # responses that are judged and kept together
MAX_FAILED_SHARE = 0.05
MIN_FOR_A_SHARE = 200  # with fewer responses, the share of failed ones does not stop a command
OWN_LIMITS = (TIMEOUT, MEMORY)
"""Causes that lie in the answer itself: it took the verifier too long, or too much memory."""


def watch_nothing(_name: str, _done: int, _total: int) -> None:
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


def compute_seed(seed: int, uid: str, index: int) -> int:
    """Return the seed of one response: 62 bits of a hash of seed, problem and index. vLLM takes a signed one of 64."""
    digest = hashlib.sha256(f"{seed}:{uid}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One response that is asked for.

    Attributes:
        question: The question.
        index: The number of the response among those of its question, counted from 0.
        seed: The seed of the response.
    """

    question: Question
    index: int
    seed: int

    @property
    def is_kept(self) -> bool:
        """Whether the file of the question has this response already."""
        return (self.question.problem.uid, self.index) in self.question.responses.done

    def request(self) -> Request:
        """Return what the model is asked."""
        prompt = self.question.encoder.encode(self.question.problem.text)
        return Request(prompt, self.seed, self.question.max_new_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A draw and the response that the model gave."""

    draw: Draw
    response: MeasuredResponse

    @property
    def question(self) -> Question:
        """The question of the draw."""
        return self.draw.question


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

    def draw(self, questions: Sequence[Question], watch: Watch = watch_nothing) -> None:
        """Draw what the files of these questions lack. What ended before an error is kept."""
        draws = [self._draw_of(question, index) for question in questions for index in range(self._drawing.k)]
        missing = [draw for draw in draws if not draw.is_kept]
        done, waiting = len(draws) - len(missing), list[Drawn]()
        watch("responses", done, len(draws))
        if not missing:
            return
        # One thread judges while the model goes on, because both take about as long: a batch is handed over as soon as
        # the one before it is judged, so that no more than two batches wait where the judge is the slower one.
        with ThreadPoolExecutor(1) as judging:
            judged = judging.submit(self._keep, [])
            try:
                for ended in self._provider.respond((draw, draw.request()) for draw in missing):
                    waiting += [Drawn(draw, response) for draw, response in ended]
                    if len(waiting) >= BATCH:
                        batch, waiting = waiting, []
                        judged.result()
                        judged = judging.submit(self._keep, batch)
                        watch("responses", done := done + len(batch), len(draws))
            finally:  # also after an error of the model, so that the next command does not draw these again
                judged.result()
                self._keep(waiting)
        watch("responses", len(draws), len(draws))

    def _draw_of(self, question: Question, index: int) -> Draw:
        return Draw(question, index, compute_seed(self._drawing.seed, question.problem.uid, index))

    def _keep(self, batch: Sequence[Drawn]) -> None:
        """Judge responses and write them down, those of each file together."""
        by_file: dict[int, list[Drawn]] = {}
        for drawn in batch:
            by_file.setdefault(id(drawn.question.responses), []).append(drawn)
        for of_one_file in by_file.values():
            self._keep_in_one_file(of_one_file)

    def _keep_in_one_file(self, batch: Sequence[Drawn]) -> None:
        judge, responses = batch[0].question.judge, batch[0].question.responses
        verdicts = judge.verdicts(
            [
                (
                    drawn.response.text,
                    drawn.question.problem.reference,
                    drawn.response.finished,
                    drawn.question.problem.text,
                )
                for drawn in batch
            ]
        )
        new = [self._record(drawn, verdict) for drawn, verdict in zip(batch, verdicts, strict=True)]
        responses.add(new)
        self._drawn += len(new)
        self._failed += sum(record["reward"] is None for record in new)
        if self._drawn >= MIN_FOR_A_SHARE and self._failed > MAX_FAILED_SHARE * self._drawn:
            raise FailedResponsesError(
                f"{judge.version} failed on {self._failed} of {self._drawn} responses (at most "
                f"{MAX_FAILED_SHARE:.0%} may); see `cause` in {responses.path}"
            )

    def _record(self, drawn: Drawn, verdict: Verdict) -> Record:
        """Return the line of a response in its file."""
        # An evaluation counts an answer that no verifier could read in time as wrong, because the answer is the cause.
        is_wrong = self._limits_are_wrong and verdict.cause in OWN_LIMITS
        return {
            "id": drawn.question.problem.uid,
            "line": drawn.question.problem.line,
            "index": drawn.draw.index,
            "seed": drawn.draw.seed,
            "tokens": drawn.response.tokens,
            "finished": drawn.response.finished,
            "reward": 0.0 if is_wrong else verdict.label,
            **({} if verdict.cause is None else {"cause": verdict.cause}),
            "text": drawn.response.text,
        }
