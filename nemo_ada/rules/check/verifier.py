"""The self-test of the verifier that judges answers."""

from __future__ import annotations

from nemo_ada.rules.finding import Findings, error, ok
from nemo_ada.verify import MathVerifier, VerifierLimits, VerifierSelfTestError


def verifier() -> Findings:
    """math-verify judges known pairs and survives a hanging input."""
    try:
        with MathVerifier(VerifierLimits(workers=1)):
            pass  # it judges its known pairs when it starts
    except VerifierSelfTestError as problem:
        yield error("verifier", str(problem))
        return
    except (ImportError, OSError, RuntimeError) as problem:
        yield error("verifier", f"math-verify could not be started: {problem}; install this project's dependencies")
        return
    yield ok("verifier", "the self-test's known pairs and its hanging answer were judged rightly")
