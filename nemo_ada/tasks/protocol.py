"""The protocol of a task: prompts, their splits, demonstrations for the base model, and labels.

The rest of the package uses a task only through `Task`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_ada.errors import InvariantError
from nemo_ada.verify.verdict import Verdict


def make_canonical(text: str) -> str:
    """Return the text in Unicode NFC, trimmed and with single spaces. Two prompts are equal when these texts are."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def make_content_id(task_name: str, text: str) -> str:
    """Return a prompt's id: 16 hex digits of a hash of the task's name and the canonical text."""
    return hashlib.sha256(f"{task_name}\0{make_canonical(text)}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem.

    Attributes:
        prompt_id: Id from `make_content_id`.
        text: What the model reads.
        answer: The correct answer.
        entry: Data for the verifier.
    """

    prompt_id: str
    text: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example.

    Attributes:
        prompt_text: What the model reads.
        answer_text: What it learns to write. It may be wrong on purpose (`nemo_ada.tasks.noise`).
    """

    prompt_text: str
    answer_text: str


@dataclass(frozen=True, slots=True)
class Splits:
    """Three sets that share no prompt.

    Attributes:
        train: Prompts for RL.
        heldout: Prompts for evaluation.
        supervision: Demonstrations for the base model.

    Raises:
        InvariantError: A prompt (by canonical text) occurs twice, in one set or in two.
    """

    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    supervision: tuple[Demonstration, ...]

    def __post_init__(self) -> None:
        texts = [p.text for p in self.train + self.heldout] + [d.prompt_text for d in self.supervision]
        seen: set[str] = set()
        for text in map(make_canonical, texts):
            if text in seen:
                raise InvariantError(f"prompt {text!r} occurs twice in the splits")
            seen.add(text)


class Tokenizer(Protocol):
    """Converts text to the ids that a model reads, and back. It is a character tokenizer or a model's own."""

    @property
    def eos_id(self) -> int:
        """The id that ends a response."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end a response, `eos_id` first."""

    @property
    def pad_id(self) -> int:
        """The id that fills rows."""

    @property
    def vocab_size(self) -> int:
        """Number of rows that the embedding needs."""

    def encode(self, text: str) -> list[int]:
        """Ids of a whole prompt. Raises ValueError with the reason when the text cannot be a prompt."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return text of these ids."""

    def line_ends(self) -> tuple[int, ...]:
        """Return the ids whose text contains a line break."""

    def write_hf(self, folder: Path) -> None:
        """Write the tokenizer's files for `transformers.AutoTokenizer`."""


class Task(Protocol):
    """Prompts with a verifier. Labels are 0.0 or 1.0, or between them where the task grades responses."""

    @property
    def name(self) -> str:
        """Name of the task in its settings."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the task was built with, else a character tokenizer for base models of this package.

        Raises:
            UserError: The task was built without a tokenizer and needs a model's.
        """

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""

    @property
    def max_new_tokens(self) -> int:
        """Longest answer in tokens, with the end-of-sequence token."""

    def splits(self) -> Splits:
        """Return the prompts for training and evaluation, and the demonstrations."""

    def submit(self, prompt: Prompt, text: str, finished: bool) -> Verdict | Future[Verdict]:
        """Start to label one response.

        Args:
            prompt: The prompt.
            text: The decoded response.
            finished: Whether the response ended by itself and not at the token limit.

        Returns:
            The verdict where that takes no time, else a future. It has a label, or the cause where the verifier failed.
        """

    def close(self) -> None:
        """End the verifier's processes if there are any. The next `submit` starts them again."""


def score_many(task: Task, responses: Sequence[tuple[Prompt, str, bool]]) -> list[Verdict]:
    """Label responses (prompt, text, finished), in order. The task judges them side by side."""
    started = [task.submit(*response) for response in responses]
    return [one.result() if isinstance(one, Future) else one for one in started]
