r"""Numbers are compared as numbers: by the real verifier, on pairs of an answer and a reference of known verdict."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.verify.numbers import TOLERANCE, number
from nemo_ada.verify.pool import MathVerifier, VerifierLimits, bound_answer
from nemo_ada.verify.verdict import Verdict
from tests.patience import PATIENCE

RIGHT = [
    ("4.5e33", r"4.5\times 10^{33}"), (r"4.5\times 10^{33}", "4.5e33"), ("4.5E+33", "4.5e33"), ("45e32", "4.5e33"),
    (r"4.5 \cdot 10^{33}", "4.5e33"), ("4.5*10^33", "4.5e33"), ("4500000000000000000000000000000000", "4.5e33"),
    ("1e-7", "1e-7"), ("10^{-7}", "1e-7"), ("0.0000001", "1e-7"), (r"\frac{1}{10000000}", "1e-7"),
    (r"1 \times 10^{-7}", "1e-7"), ("6.67e-11", "6.67e-11"), (r"6.67\times 10^{-11}", "6.67e-11"),
    (r"x = 6.72e-5", "6.72e-5"), (r"6.72 \cdot 10^{-5} \text{ m}", "6.72e-5"), ("0.0000672", "6.72e-5"),
    (r"\(6.72\times10^{-5}\)", "6.72e-5"), ("-1.6e-19", r"-1.6\times 10^{-19}"), ("-2e-19", "-2e-19"),
    ("10^{22}", "10000000000000000000000"), ("1e22", "10000000000000000000000"), ("1e22", "1e22"), ("42.0", "42"),
    ("+42", "42"), ("1,234", "1234"), (r"1{,}234{,}567", "1234567"), ("1,234.5", "1234.5"), (".5", "0.5"),
    ("0.50", "0.5"), (r"\frac{1}{2}", "0.5"), ("1/2", "0.5"), (r"\dfrac{1}{2}", "0.5"), (r"\frac{1}{3}", "0.333333"),
    ("0.333333", "1/3"), ("0.666667", r"\frac{2}{3}"), (r"\frac{2}{4}", r"\frac{1}{2}"), (r"-\frac{1}{2}", "-0.5"),
    (r"\pi", "3.14159"),
    (r"\sqrt{2}", "1.414214"), ("0.0", "0"), ("x = 42", "42"), ("40+2 = 42", "42"), (r"\frac{84}{2} = 42", "42"),
    (r"\frac{1}{3} = 0.333", "0.333"), ("204_5", "204_5"), ("204_{5}", "204_5"), ("54_{10}", "204_5"), ("204", "204_5"),
    ("1a_{16}", "26_{10}"), ("$42$", "42"), ("42.", "42"), (r"\frac{\pi}{10^9}", r"\frac{\pi}{10^{9}}"),
    (r"12 \text{ cm}", "12"), ("2e", "2e"), (r"e^{3}", "e^3"),
]  # fmt: skip
WRONG = [
    ("2e-19", "1e-19"), (r"2\times 10^{-19}", "1e-19"), ("1e-19", "2e-19"), ("-1e-19", "1e-19"), ("0", "1e-19"),
    ("1e-19", "0"), (r"\frac{2}{10^{19}}", r"\frac{1}{10^{19}}"), (r"2\cdot 10^{-19}", r"\frac{1}{10^{19}}"),
    (r"\frac{\pi}{10^{9}}", r"\frac{2\pi}{10^{9}}"), ("0.0000002", r"\frac{1}{10000000}"), ("4.6e33", "4.5e33"),
    ("4.5e32", "4.5e33"), ("4.5", "4.5e33"), ("1e7", "1e-7"), ("6.68e-11", "6.67e-11"), ("6.672e-11", "6.67e-11"),
    ("6.7e-5", "6.72e-5"), ("6.72e-6", "6.72e-5"), ("6.72", "6.72e-5"), (r"6.72 \cdot 10^{-6} \text{ m}", "6.72e-5"),
    ("1234.6", "1234.5"), ("1234.51", "1234.5"), ("0.333", r"\frac{1}{3}"), ("0.5001", "0.5"), ("3.14", "3.14159"),
    ("42.0000004", "42"), ("41.99999999", "42"), ("10000000000000000000001", "10000000000000000000000"),
    ("1.0000001e22", "10000000000000000000000"), ("0.9999999999", "1"), (r"\frac{1}{1000001}", r"\frac{1}{1000000}"),
    ("204_5", "204_6"), ("204_{6}", "204_5"), ("205_5", "204_5"), ("54_{10}", "204_6"), ("41 = 42", "42"),
    ("x = 41 = 42", "42"), ("42 = 43 = 42", "42"), ("1 = 0.5", "0.5"), ("x = 41", "42"), ("4.5e33", "4.5e3"),
    ("-42", "42"), ("1/3", "0.34"), ("1,234", "1.234"), (r"\sqrt{2}", "1.4142"), ("1e-400", "0"),
]  # fmt: skip


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with MathVerifier(VerifierLimits(PATIENCE, workers=2), self_test=False) as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize(("pairs", "label"), [(RIGHT, 1.0), (WRONG, 0.0)], ids=["right", "wrong"])
def test_numbers_are_compared_by_value(verifier: MathVerifier, pairs: list[tuple[str, str]], label: float) -> None:
    verdicts = verifier.verify_many([(rf"\boxed{{{answer}}}", reference) for answer, reference in pairs])
    assert [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict != Verdict(label)] == []


@given(st.integers(1, 999_999), st.integers(-300, 300), st.sampled_from(["e", "E"]))
def test_e_notation_is_the_value_it_writes(digits: int, exponent: int, letter: str) -> None:
    read = number(f"{digits}{letter}{exponent}")
    assert read is not None and read.value == Fraction(digits) * Fraction(10) ** exponent


@given(st.integers(100_000, 999_999), st.integers(-300, 300), st.integers(-100_000, 100_000))
def test_decimals_of_six_digits_differ_where_their_digits_do(digits: int, exponent: int, off: int) -> None:
    """At every size: a unit in the sixth digit is never less than the tolerance, ten of them are always more."""
    a, b = number(f"{digits}e{exponent}"), number(f"{digits + off}e{exponent}")
    assert a is not None and b is not None
    assert a.equals(b) == b.equals(a) == (abs(off) <= TOLERANCE * max(digits, digits + off))


def test_an_endless_power_of_ten_is_not_computed_here() -> None:
    assert number("1e999999999") is None and number(r"10^{9999}") is None and number("9" * 5000) is None


def test_a_box_that_is_far_longer_than_its_reference_is_wrong_without_the_grader(verifier: MathVerifier) -> None:
    """The scorer cannot even start on it: one such answer would cost its whole deadline, seconds of a core."""
    verifier.close()
    with MathVerifier(VerifierLimits(PATIENCE, workers=1), scorer="no.such:module", self_test=False) as lone:
        assert lone.verify_many([(r"\boxed{" + "(" * 1_000_000 + "}", "1")]) == [Verdict(0.0)]
        assert lone.verify_many([(r"\boxed{" + "1" * bound_answer("1") + "}", "1")])[0].label is None
    reference = "1" * 5000
    assert bound_answer(reference) > len(reference)
