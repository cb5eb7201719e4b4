r"""Labels 0 or 1 for responses: by value with math-verify, or as normalised text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from nemo_ada import __version__
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.verdict import Verdict

Verifier = Literal["math", "exact"]
Unfinished = Literal["wrong", "judged"]


def normalised(answer: str) -> str:
    """An answer as `exact` compares it: Unicode NFKC, case folded, single spaces, trimmed."""
    return " ".join(unicodedata.normalize("NFKC", answer).casefold().split())


class Judge:
    r"""`math` compares the last \boxed{} by value, in killable processes. `exact` compares normalised text.

    unfinished: how responses count that were cut off at the token limit. `wrong`: as in this project's CPU training.
    `judged`: like any other, as in the published evaluations (a box may stand before the cut).
    A score between 0 and 1 counts as 0. Processes start with the first answer, and again with the first after `close`.
    """

    def __init__(self, verifier: Verifier = "math", unfinished: Unfinished = "wrong") -> None:
        self.verifier, self.unfinished = verifier, unfinished
        self._math: MathVerifier | None = None

    @property
    def version(self) -> str:
        """Name and version, for cards."""
        return f"math-verify {version('math-verify')}" if self.verifier == "math" else f"exact (nemo-ada {__version__})"

    def shown(self, answer: str) -> str:
        """A perfect response: the reference answer, in a box for `math`."""
        return f"\\boxed{{{answer}}}" if self.verifier == "math" and last_boxed(answer) is None else answer

    def verdicts(self, responses: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """Verdicts of (text, reference answer, finished), in order."""
        read = [finished or self.unfinished == "judged" for _, _, finished in responses]
        pairs = [(text, answer) for judge, (text, answer, _) in zip(read, responses, strict=True) if judge]
        judged = iter(self._judge(pairs) if pairs else [])
        return [next(judged) if judge else Verdict(0.0) for judge in read]

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        if self.verifier == "exact":
            return [Verdict(float(normalised(text) == normalised(answer))) for text, answer in pairs]
        self._math = self._math or MathVerifier()
        verdicts = self._math.verify_many(pairs)
        return [v if v.label is None else Verdict(float(v.label >= 1.0)) for v in verdicts]

    def close(self) -> None:
        """End math-verify's processes. A later verdict starts them again."""
        if self._math is not None:
            self._math.close()
            self._math = None
