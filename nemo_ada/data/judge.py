"""Labels for responses and for reference answers, by the verifiers that training uses."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from nemo_ada import __version__
from nemo_ada.tasks.jsonl import normalised
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.ondemand import MathOnDemand
from nemo_ada.verify.verdict import Verdict

Verifier = Literal["math", "exact"]
Unfinished = Literal["wrong", "judged"]


class Judge:
    r"""`math`: the last \boxed{} by value, with math-verify in killable processes; `exact`: normalised strings.

    unfinished: a response that was cut off at its token limit is `wrong` (as in this project's training on a CPU), or
    `judged` like any other (as in the published evaluations; a box may stand before the cut).
    Labels are 0 or 1: part of a point counts as none.
    """

    def __init__(self, verifier: Verifier = "math", unfinished: Unfinished = "wrong") -> None:
        self.verifier, self.unfinished = verifier, unfinished
        self._math = MathOnDemand()

    @property
    def version(self) -> str:
        """Name and version, for cards."""
        return f"math-verify {version('math-verify')}" if self.verifier == "math" else f"exact (nemo-ada {__version__})"

    def shown(self, answer: str) -> str:
        """A perfect response: the reference answer as the verifier reads it."""
        return f"\\boxed{{{answer}}}" if self.verifier == "math" and last_boxed(answer) is None else answer

    def verdicts(self, responses: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """Verdicts of (text, reference answer, finished) in their order."""
        read = [finished or self.unfinished == "judged" for _, _, finished in responses]
        if self.verifier == "exact":
            return [
                Verdict(float(judge and normalised(text) == normalised(answer)))
                for judge, (text, answer, _) in zip(read, responses, strict=True)
            ]
        pairs = [(text, answer) for judge, (text, answer, _) in zip(read, responses, strict=True) if judge]
        judged = iter(self._math.verify_many(pairs))
        return [_whole(next(judged)) if judge else Verdict(0.0) for judge in read]

    def close(self) -> None:
        """End math-verify's processes; a later verdict starts them again."""
        self._math.close()


def _whole(verdict: Verdict) -> Verdict:
    return verdict if verdict.label is None else Verdict(float(verdict.label >= 1.0))
