"""Whether the verifier starts here and judges the known pairs of its self-test."""

from __future__ import annotations

from contextlib import closing

from nemo_ada.rules.finding import Findings, error, ok
from nemo_ada.verify.judge import make_judge
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.selftest import VerifierSelfTestError


def check_verifier() -> Findings:
    """math-verify judges known pairs and survives a hanging input."""
    try:
        with closing(make_judge(limits=VerifierLimits(workers=1))) as judge:
            judge.self_test()
    except VerifierSelfTestError as problem:
        yield error("verifier", str(problem))
        return
    except (ImportError, OSError, RuntimeError) as problem:
        yield error("verifier", f"math-verify could not be started: {problem}; install this project's dependencies")
        return
    yield ok("verifier", "the self-test's known pairs and its hanging answer were judged rightly")
