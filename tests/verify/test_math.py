"""The real math-verify behind the pool: right, wrong, unreadable and endless answers.

No test measures time: answers that must end have a deadline of minutes, answers that must not end a short one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.selftest import VerifierSelfTestError
from nemo_ada.verify.verdict import INVALID, MEMORY, TIMEOUT, Verdict
from tests.patience import PATIENCE

RIGHT, WRONG = Verdict(1.0), Verdict(0.0)
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    """With the self-test, whose last pair is an endless answer."""
    with MathVerifier(VerifierLimits(PATIENCE, workers=2, memory_bytes=256 << 20)) as started:
        yield started


@pytest.mark.parametrize(
    ("response", "reference", "verdict"),
    [
        (r"\boxed{42}", "42", RIGHT),
        (r"\boxed{42}", "$42$", RIGHT),
        (r"\boxed{42}", r"the answer is \boxed{42}", RIGHT),
        (r"\boxed{0.5}", r"\frac{1}{2}", RIGHT),
        (r"\boxed{\dfrac12}", "1/2", RIGHT),
        (r"\boxed{x = 3}", "3", RIGHT),
        (r"\boxed{1,234}", "1234", RIGHT),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", RIGHT),
        (r"\boxed{\{2,1\}}", r"\{1,2\}", RIGHT),
        (r"\boxed{\text{(B)}}", "B", RIGHT),
        (r"\boxed{12 \text{ cm}}", "12", RIGHT),
        ("words " * 1_000_000 + r"\boxed{3}", "3", RIGHT),
        (r"\boxed{43}", "42", WRONG),
        (r"\boxed{-42}", "42", WRONG),
        (r"\boxed{(1,2]}", "(1,2)", WRONG),
        (r"\boxed{}", "42", WRONG),
        (r"\boxed{\frac{1}{}", "42", WRONG),
        ("42", "42", WRONG),
        (r"\boxed{42", "42", WRONG),
        (r"\boxed{nan}", "42", WRONG),
        (r"\boxed{42}", "", Verdict(None, INVALID)),
    ],
)
def test_known_answers(verifier: MathVerifier, response: str, reference: str, verdict: Verdict) -> None:
    assert verifier.submit(response, reference).result() == verdict


def test_a_hanging_answer_is_a_timeout_and_counts_as_one(verifier: MathVerifier) -> None:
    before = verifier.counts
    ends = verifier.verify_many([(r"\boxed{1}", "1"), ("no box", "1"), (r"\boxed{1}", "")])
    endless = verifier._wait_for_verdicts([(ENDLESS, "1")] * 2, 0.3)
    assert [*ends, *endless] == [RIGHT, WRONG, Verdict(None, INVALID), *[Verdict(None, TIMEOUT)] * 2]
    after = verifier.counts
    grown = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert grown == {"labelled": 2, INVALID: 1, TIMEOUT: 2}


def test_nested_and_long_answers_end_like_any_other(verifier: MathVerifier) -> None:
    huge = [rf"\boxed{{{'(' * 100_000}1{')' * 100_000}}}", rf"\boxed{{{'1+' * 200_000}1}}"]
    verdicts = verifier._wait_for_verdicts([(response, "1") for response in huge], 0.5)
    assert all(verdict.label in (None, 0.0) for verdict in verdicts)
    assert verifier.submit(r"\boxed{4}", "4").result() == RIGHT


def test_out_of_memory_inside_the_library_is_no_wrong_answer(verifier: MathVerifier) -> None:
    """math-verify compares inside `except Exception`: without our guard this would be label 0."""
    assert verifier.submit(r"\boxed{2^{2^{34}}}", "1").result() == Verdict(None, MEMORY)
    assert verifier.submit(r"\boxed{2}", "2").result() == RIGHT


@pytest.mark.long
@pytest.mark.parametrize("missing", [r"\%", r"\log", "pmatrix"])
def test_an_environment_whose_parser_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv("NEMO_ADA_TEST_PARSER_LACKS", missing)
    with pytest.raises(VerifierSelfTestError, match=re.escape(repr(missing)[1:-1])):
        MathVerifier(VerifierLimits(workers=1), scorer="tests.verify.scorers:without")


def test_while_an_answer_hangs_the_others_go_on(verifier: MathVerifier) -> None:
    """The last test of this verifier: closing it ends the answer."""
    (hanging,) = verifier._submit([(ENDLESS, "1")], 3600.0)
    others = verifier.verify_many([(rf"\boxed{{{i}}}", "7") for i in range(20)])
    assert others == [RIGHT if i == 7 else WRONG for i in range(20)]
    assert not hanging.done()
    verifier.close()
    assert hanging.cancelled()
