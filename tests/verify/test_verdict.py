from __future__ import annotations

import math

import pytest

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify import CAUSES, TIMEOUT, MathVerifier, Verdict, VerifierLimits


@pytest.mark.parametrize(
    ("label", "cause"), [(None, None), (1.0, TIMEOUT), (None, "tired"), (math.nan, None), (2.0, None)]
)
def test_a_verdict_is_a_label_or_a_known_cause(label: float | None, cause: str | None) -> None:
    with pytest.raises(InvariantError):
        Verdict(label, cause)


def test_every_cause_makes_a_verdict_without_label() -> None:
    assert [Verdict(None, cause).label for cause in CAUSES] == [None] * 4


@pytest.mark.parametrize(
    ("key", "value"),
    [("deadline_s", 0.0), ("deadline_s", math.nan), ("workers", 0), ("memory_bytes", 1000), ("answers_per_worker", 0)],
)
def test_a_senseless_limit_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"verifier.{key}="):
        VerifierLimits(**{key: value})  # type: ignore[arg-type]


def test_a_scorer_without_a_function_name_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"package\.module:function"):
        MathVerifier(scorer="os.path")
