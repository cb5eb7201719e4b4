"""What a task is: prompts, their splits, demonstrations for the base model, and a reward.

Everything else in the package sees a task only through `Task`; what a prompt means and who verifies it stays here.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nemo_ada.errors import InvariantError
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.verdict import Verdict


def canonical_text(text: str) -> str:
    """The text that decides whether two prompts are the same prompt: Unicode NFC, runs of white space made one
    space, trimmed.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def content_id(task_name: str, text: str) -> str:
    """Sixteen hex digits that depend on the task and the canonical text only, so they survive reordering and
    resuming.
    """
    return hashlib.sha256(f"{task_name}\0{canonical_text(text)}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem: what the model reads (`text`), what is right (`answer`) and what its verifier needs (`entry`)."""

    prompt_id: str
    text: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example. `answer_text` may be wrong on purpose: see `nemo_ada.tasks.noise`."""

    prompt_text: str
    answer_text: str


@dataclass(frozen=True, slots=True)
class Splits:
    """Three sets with no prompt in common: `train` for RL, `heldout` for evaluation, `supervision` for the base model.

    Raises InvariantError where a prompt (by canonical text) occurs twice, within a set or across two of them.
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


class ScoringFailedError(RuntimeError):
    """A response has no reward because the verifier failed, for a `cause` of `nemo_ada.verify.CAUSES`."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the verifier gave no label: {cause}")
        self.cause = cause


class Task(Protocol):
    """A source of prompts with a verifier. Rewards are 0.0 or 1.0."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> CharTokenizer: ...

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Tokens that an answer may take, its end-of-sequence token included."""
        ...

    def splits(self) -> Splits: ...

    def score(self, prompt: Prompt, text: str, finished: bool) -> float:
        """Reward of a response's decoded `text`; `finished` says that it ended by itself, not at the token limit.

        Raises ScoringFailedError where the verifier failed.
        """
        ...

    def score_many(self, responses: Sequence[tuple[Prompt, str, bool]]) -> list[Verdict]:
        """Labels of (prompt, text, finished) triples in their order, or the cause where the verifier failed.

        The same labels as `score`, and faster where answers are verified in several processes.
        """
        ...

    def close(self) -> None:
        """End the verifier's processes, if there are any. Idempotent."""
        ...
