r"""Labels 0 or 1 for responses: by value with math-verify, or as normalised text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any, Literal

from nemo_ada import __version__
from nemo_ada.verify.audit import kind_of
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.verdict import Verdict

Verifier = Literal["math", "exact"]
Unfinished = Literal["wrong", "judged"]


_MARKS = 30  # accents on one letter that are read; Unicode's own limit for text in a stream


def normalised(answer: str) -> str:
    """Return an answer as `exact` compares it: Unicode NFKC, case folded, single spaces, trimmed.

    Python orders the accents on one letter in quadratic time. No letter keeps more than 30 here.
    """
    if not answer.isascii():
        answer = _few_marks(answer)
    return " ".join(unicodedata.normalize("NFKC", answer).casefold().split())


def _few_marks(text: str) -> str:
    kept, run = [], 0
    for char in text:
        run = run + 1 if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) else 0
        if run <= _MARKS:
            kept.append(char)
    return "".join(kept)


class Judge:
    r"""Labels responses.

    `math` compares the last \boxed{} by value, in processes that can be killed. `exact` compares normalised text.
    Processes start with the first answer, and again with the first after `close`.

    Args:
        verifier: `math` or `exact`.
        unfinished: how responses count that were cut off at the token limit. `wrong` is the rule of this project's CPU
            training. `judged` treats them like any other response, as the published evaluations do. (A box may stand
            before the cut.)
    """

    as_it_is = False
    """Whether it takes references that are no text."""

    def __init__(self, verifier: Verifier = "math", unfinished: Unfinished = "wrong") -> None:
        self.verifier, self.unfinished = verifier, unfinished
        self._math: MathVerifier | None = None

    @property
    def version(self) -> str:
        """Name and version, for cards."""
        return f"math-verify {version('math-verify')}" if self.verifier == "math" else f"exact (nemo-ada {__version__})"

    def shown(self, answer: Any) -> str:
        """Return a correct response: the reference answer, in a box for `math`."""
        return f"\\boxed{{{answer}}}" if self.verifier == "math" and last_boxed(answer) is None else answer

    def verdicts(self, responses: Sequence[tuple[str, Any, bool]]) -> list[Verdict]:
        """Return the verdicts of (text, reference answer, finished), in order."""
        read = [finished or self.unfinished == "judged" for _, _, finished in responses]
        pairs = [(text, answer) for judge, (text, answer, _) in zip(read, responses, strict=True) if judge]
        judged = iter(self._judge(pairs) if pairs else [])
        return [next(judged) if judge else Verdict(0.0) for judge in read]

    def audit(self, references: Sequence[str]) -> list[str | None]:
        """Return for each reference the kind of `audit.KINDS` that it is of, or None. `exact` takes any text."""
        if self.verifier == "exact":
            return [kind if (kind := kind_of(text)) == "control" else None for text in references]
        return [kind_of(text) for text in references]

    def submit(self, text: str, answer: Any, finished: bool) -> Verdict | Future[Verdict]:
        """Start to judge one response. Returns its verdict where that takes no time, else a future."""
        if not (finished or self.unfinished == "judged"):
            return Verdict(0.0)
        if self.verifier == "exact":
            return self._exact(text, answer)
        return self._started().submit(text, answer)

    def _judge(self, pairs: Sequence[tuple[str, Any]]) -> list[Verdict]:
        if self.verifier == "exact":
            return [self._exact(text, answer) for text, answer in pairs]
        return self._started().verify_many(pairs)

    def _started(self) -> MathVerifier:
        self._math = self._math or MathVerifier()
        return self._math

    @staticmethod
    def _exact(text: str, answer: str) -> Verdict:
        return Verdict(float(normalised(text) == normalised(answer)))

    def close(self) -> None:
        """End math-verify's processes. A later verdict starts them again."""
        if self._math is not None:
            self._math.close()
        self._math = None
