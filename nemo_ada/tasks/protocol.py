"""A task: prompts, their splits, demonstrations for the base model, and a reward.

The rest of the package uses a task only through `Task`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify.verdict import Verdict


def canonical_text(text: str) -> str:
    """Two prompts are equal where this text is: Unicode NFC, single spaces, trimmed."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def content_id(task_name: str, text: str) -> str:
    """Sixteen hex digits of the task and the canonical text. The order of prompts does not matter."""
    return hashlib.sha256(f"{task_name}\0{canonical_text(text)}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem. text: the model reads it. answer: the correct one. entry: data for the verifier."""

    prompt_id: str
    text: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example. `answer_text` may be wrong on purpose (`nemo_ada.tasks.noise`)."""

    prompt_text: str
    answer_text: str


@dataclass(frozen=True, slots=True)
class Splits:
    """Three sets with no prompt in common: `train` for RL, `heldout` for evaluation, `supervision` for the base model.

    Raises InvariantError where a prompt (by canonical text) occurs twice, in one set or in two.
    """

    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    supervision: tuple[Demonstration, ...]

    def __post_init__(self) -> None:
        texts = [p.text for p in self.train + self.heldout] + [d.prompt_text for d in self.supervision]
        seen: set[str] = set()
        for text in map(canonical_text, texts):
            if text in seen:
                raise InvariantError(f"prompt {text!r} occurs twice in the splits")
            seen.add(text)


class Tokenizer(Protocol):
    """Text to the ids that a model reads, and back: a character tokenizer, or that of a model's folder."""

    @property
    def eos_id(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """Rows that the embedding needs."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a whole prompt. Raises ValueError with the reason where the text cannot be one."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def line_ends(self) -> tuple[int, ...]:
        """The ids whose text holds a line break."""
        ...

    def write_hf(self, folder: Path) -> None:
        """Write its files for `transformers.AutoTokenizer`."""
        ...


def longest_prompt(splits: Splits, tokenizer: Tokenizer) -> int:
    """Tokens of the longest prompt for training or evaluation. Raises UserError for one that has no tokens."""
    try:
        return max(len(tokenizer.encode(prompt.text)) for prompt in splits.train + splits.heldout)
    except UserError:
        raise
    except ValueError as reason:
        raise UserError(f"a prompt of the task cannot be read by the model's tokenizer: it {reason}") from None


class Task(Protocol):
    """A source of prompts with a verifier. Rewards are 0.0 or 1.0."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The one that the task was built with; else its own character tokenizer, which suits a base made here.

        Raises UserError where the task has none of its own.
        """
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Longest answer in tokens, end-of-sequence token included."""
        ...

    def splits(self) -> Splits: ...

    def score_many(self, responses: Sequence[tuple[Prompt, str, bool]]) -> list[Verdict]:
        """Labels of responses (prompt, decoded text, finished), in order, or the cause where the verifier failed.

        finished: the response ended by itself, not at the token limit.
        """
        ...

    def close(self) -> None:
        """End the verifier's processes if there are any. Idempotent."""
        ...
