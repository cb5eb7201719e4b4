r"""Self-test: the installed verifier must judge known pairs as expected.

It catches upgrades that turn all rewards to 0 before the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_ada.errors import UserError
from nemo_ada.verify.verdict import TIMEOUT, Verdict


class VerifierSelfTestError(UserError):
    """The verifier misjudges a known pair. Rewards of this installation cannot be trusted."""


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A response, its reference, and the expected verdict."""

    response: str
    reference: str
    expected: Verdict


RIGHT, WRONG = Verdict(1.0), Verdict(0.0)

KNOWN_PAIRS: tuple[KnownPair, ...] = (
    KnownPair(r"so the answer is \boxed{42}.", "42", RIGHT),
    KnownPair(r"first \boxed{41}, no: \boxed{42}", "42", RIGHT),
    KnownPair(r"\boxed{\frac{1}{2}}", "0.5", RIGHT),
    KnownPair(r"\boxed{1+\sqrt{2}}", r"\sqrt{2}+1", RIGHT),
    KnownPair(r"\boxed{\{3,1,2\}}", r"\{1,2,3\}", RIGHT),
    KnownPair(r"\boxed{43}", "42", WRONG),
    KnownPair(r"\boxed{-\frac{1}{2}}", r"\frac{1}{2}", WRONG),
    KnownPair("the answer is 42", "42", WRONG),
)
# Takes hours of big-integer arithmetic.
HANGING = KnownPair(r"\boxed{9^{9^{9^{9}}}}", "1", Verdict(None, TIMEOUT))


def check(pairs: Sequence[KnownPair], verdicts: Sequence[Verdict]) -> None:
    """Compare verdicts with the expected ones.

    Raises:
        VerifierSelfTestError: a verdict is not the expected one.
    """
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if verdict != pair.expected:
            raise VerifierSelfTestError(
                f"verifier self-test: response {pair.response!r} with reference {pair.reference!r} gave {verdict}, "
                f"expected {pair.expected}; check the versions of math-verify, latex2sympy2-extended and "
                f"antlr4-python3-runtime, and verifier.memory_bytes"
            )
