r"""Self-test: the installed verifier must judge known pairs as expected.

It catches upgrades that turn all rewards to 0 before the first step, and an environment whose parser cannot read what
answers are written with: percent, degrees, roots, logarithms, complex numbers, Greek letters, equations, matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

from nemo_ada.errors import UserError
from nemo_ada.verify.verdict import TIMEOUT, Verdict


class VerifierSelfTestError(UserError):
    """The verifier misjudges a known pair. Rewards of this installation cannot be trusted."""


RIGHT, WRONG = Verdict(1.0), Verdict(0.0)

KnownPair = tuple[str, str, Verdict]
"""A response, its reference, and the expected verdict."""

KNOWN_PAIRS: tuple[KnownPair, ...] = (
    (r"so the answer is \boxed{42}.", "42", RIGHT),
    (r"first \boxed{41}, no: \boxed{42}", "42", RIGHT),
    (r"\boxed{\frac{1}{2}}", "0.5", RIGHT),
    (r"\boxed{1+\sqrt{2}}", r"\sqrt{2}+1", RIGHT),
    (r"\boxed{\{3,1,2\}}", r"\{1,2,3\}", RIGHT),
    (r"\boxed{28\%}", r"28\%", RIGHT),
    (r"\boxed{0.28}", r"28\%", RIGHT),
    (r"\boxed{\sin 30^\circ}", r"\frac12", RIGHT),
    (r"\boxed{\log_2 8}", "3", RIGHT),
    (r"\boxed{(1+i)^2}", "2i", RIGHT),
    (r"\boxed{2\gamma}", r"\gamma+\gamma", RIGHT),
    (r"\boxed{2x - y + 1 = 0}", "y = 2x + 1", RIGHT),
    (r"\boxed{\begin{pmatrix} 1 & 2\\ 0 & \frac{3}{6}\end{pmatrix}}", r"\begin{pmatrix}1&2\\0&0.5\end{pmatrix}", RIGHT),
    (r"\boxed{2\le x<5}", "[2,5)", RIGHT),
    (r"\boxed{43}", "42", WRONG),
    (r"\boxed{27}", r"28\%", WRONG),
    (r"\boxed{5}", r"x \neq \pm 5", WRONG),
    (r"\boxed{1,1,2}", "1,2,2", WRONG),
    (r"\boxed{2x - y - 1 = 0}", "y = 2x + 1", WRONG),
    (r"\boxed{-\frac{1}{2}}", r"\frac{1}{2}", WRONG),
    ("the answer is 42", "42", WRONG),
)
# Takes hours of big-integer arithmetic.
HANGING: KnownPair = (r"\boxed{9^{9^{9^{9}}}}", "1", Verdict(None, TIMEOUT))


def check_verdicts(pairs: Sequence[KnownPair], verdicts: Sequence[Verdict], problem: str = "") -> None:
    """Compare verdicts with the expected ones.

    Args:
        pairs: the pairs.
        verdicts: what the verifier says of them.
        problem: why there was no worker, where there was none.

    Raises:
        VerifierSelfTestError: a verdict is not the expected one.
    """
    for (response, reference, expected), verdict in zip(pairs, verdicts, strict=True):
        if verdict != expected:
            versions = "check the versions of math-verify, latex2sympy2-extended and antlr4-python3-runtime"
            raise VerifierSelfTestError(
                f"verifier self-test: response {response!r} with reference {reference!r} gave {verdict}, "
                f"expected {expected}; {problem or f'{versions}, and verifier.memory_bytes'}"
            )
