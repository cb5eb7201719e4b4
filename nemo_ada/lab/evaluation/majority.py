"""maj@k says whether the answer that most of k responses give is right.

Responses vote by the text of their answer, without case and spaces. So 1/2 and 0.5 are two answers. A response without
an answer, or one that was cut off and counts as wrong, does not vote. Where several answers have most votes, each is as
likely. Without a vote the result is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.judge import normalise_text


def read_vote(text: str, *, boxed: bool) -> str | None:
    r"""Return the answer of a response: its last \boxed{}, or its whole text."""
    answer = last_boxed(text) if boxed else text
    return "".join(normalise_text(answer).split()) or None if answer is not None else None


def compute_majority(votes: Sequence[tuple[str, bool]]) -> float:
    """Return the chance that the chosen answer is right. A vote is an answer and whether it is right."""
    by_answer: dict[str, list[bool]] = {}
    for answer, right in votes:
        by_answer.setdefault(answer, []).append(right)
    most = max(map(len, by_answer.values()), default=0)
    chosen = [sum(votes_for) / most for votes_for in by_answer.values() if len(votes_for) == most]
    return sum(chosen) / len(chosen) if chosen else 0.0
