"""Whether a response is correct: math-verify in killable processes, with a hard deadline per answer.

This package does not import math-verify. It runs in the verifier's own processes (`server`).
"""

from __future__ import annotations

from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.messages import VerifierLimits
from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.selftest import VerifierSelfTestError
from nemo_ada.verify.verdict import CAUSES, CRASH, INVALID, MEMORY, TIMEOUT, Verdict

__all__ = [
    "CAUSES",
    "CRASH",
    "INVALID",
    "MEMORY",
    "TIMEOUT",
    "MathVerifier",
    "Verdict",
    "VerifierLimits",
    "VerifierSelfTestError",
    "last_boxed",
]
