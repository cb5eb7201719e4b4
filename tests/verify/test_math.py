"""The real math-verify behind the pool: right, wrong, unreadable and endless answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nemo_ada.verify import INVALID, MEMORY, TIMEOUT, MathVerifier, Verdict, VerifierLimits

RIGHT, WRONG = Verdict(1.0), Verdict(0.0)
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"
DEADLINE_S = 1.5


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with MathVerifier(VerifierLimits(deadline_s=DEADLINE_S, workers=2)) as started:
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
    assert verifier.submit(response, reference).result(60) == verdict


def test_a_hanging_answer_costs_its_deadline_and_nothing_else(verifier: MathVerifier) -> None:
    begin = time.monotonic()
    hanging = verifier.submit(ENDLESS, "1")
    others = verifier.verify_many([(rf"\boxed{{{i}}}", "7") for i in range(100)])
    others_s = time.monotonic() - begin
    assert hanging.result(60) == Verdict(None, TIMEOUT)
    assert others == [RIGHT if i == 7 else WRONG for i in range(100)]
    assert others_s < DEADLINE_S, "the other worker went on"
    assert time.monotonic() - begin < DEADLINE_S + 2


def test_six_hundred_answers_of_which_one_percent_hang(verifier: MathVerifier) -> None:
    pairs = [(ENDLESS, "1") if i % 100 == 0 else (rf"\boxed{{{i}}}", str(i + i % 2)) for i in range(600)]
    begin = time.monotonic()
    verdicts = verifier.verify_many(pairs)
    took = time.monotonic() - begin
    expected = [Verdict(None, TIMEOUT) if i % 100 == 0 else RIGHT if i % 2 == 0 else WRONG for i in range(600)]
    assert verdicts == expected
    assert took < 6 * (DEADLINE_S + 1) / 2 + 15, "six deadlines over two workers, and the rest"


def test_a_long_queue_eats_no_deadline(verifier: MathVerifier) -> None:
    begin = time.monotonic()
    hanging = [verifier.submit(ENDLESS, "1") for _ in range(4)]
    last = verifier.submit(r"\boxed{5}", "5")
    assert last.result(60) == RIGHT
    assert [future.result(60) for future in hanging] == [Verdict(None, TIMEOUT)] * 4
    assert time.monotonic() - begin < 2 * DEADLINE_S + 2.5, "two deadlines one after the other, and two replacements"


def test_out_of_memory_inside_the_library_is_no_wrong_answer() -> None:
    """math-verify compares inside `except Exception`: without our guard this would be label 0."""
    with MathVerifier(VerifierLimits(deadline_s=20, workers=1, memory_bytes=256 << 20), self_test=False) as small:
        assert small.submit(r"\boxed{2^{2^{34}}}", "1").result(60) == Verdict(None, MEMORY)
        assert small.submit(r"\boxed{2}", "2").result(60) == RIGHT


def test_huge_inputs_end_like_any_other(verifier: MathVerifier) -> None:
    verdicts = verifier.verify_many(
        [
            ("words " * 1_000_000 + r"\boxed{3}", "3"),
            (rf"\boxed{{{'(' * 100_000}1{')' * 100_000}}}", "1"),
            (rf"\boxed{{{'1+' * 200_000}1}}", "1"),
            (r"\boxed{4}", "4"),
        ]
    )
    assert verdicts[0] == verdicts[3] == RIGHT
    assert all(verdict.label in (None, 0.0) for verdict in verdicts[1:3])
    assert all(verdict.label == 0.0 or verdict.cause is not None for verdict in verdicts[1:3])


def test_counts_name_every_cause(verifier: MathVerifier) -> None:
    before = verifier.counts
    verifier.verify_many([(r"\boxed{1}", "1"), ("no box", "1"), (r"\boxed{1}", ""), (ENDLESS, "1")])
    after = verifier.counts
    grown = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert grown == {"labelled": 2, INVALID: 1, TIMEOUT: 1}
