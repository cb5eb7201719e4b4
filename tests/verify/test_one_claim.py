r"""An answer has one value: no answer equals two references that differ. No label is needed to test that.

Parts of one answer are taken as references. An answer that offered alternatives would equal more than one of them. A
choice with what it stands for, such as (D) 27 or D = 27, is one answer in two spellings, and is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_ada.verify.judge import normalise_text
from nemo_ada.verify.latex import tidy
from nemo_ada.verify.reading import readings
from nemo_ada.verify.scoring import score_math
from nemo_ada.verify.words import Choice

PAIRS = Path(__file__).with_name("pairs.jsonl").read_text(encoding="utf-8").splitlines()
Grader = Callable[[str, str], float]


def exact(answer: str, reference: str) -> float:
    return float(normalise_text(answer) == normalise_text(reference))


GRADERS: dict[str, Grader] = {"math": score_math, "exact": exact}


def paid(grade: Grader, answer: str, references: list[str]) -> list[str]:
    """The references that an answer equals, of which none equals another one."""
    kept: list[str] = []
    if names_a_choice(answer):
        return []
    for reference in references:
        if not tidy(reference) or grade(answer, reference) < 1:
            continue
        if all(grade(other, reference) < 1 and grade(reference, other) < 1 for other in kept):
            kept.append(reference)
    return kept


def names_a_choice(answer: str) -> bool:
    return any(isinstance(one, Choice) and one.meaning for one in readings(tidy(answer)))


CASES = int(os.environ.get("NEMO_ADA_FUZZ_CASES", "50"))  # always the same, unless more are asked for
PLAIN = st.one_of(
    st.integers(-300, 999).map(str),
    st.decimals(0, 999, places=1, allow_nan=False).map(str),
    st.fractions(0, 20, max_denominator=12).map(lambda value: rf"\frac{{{value.numerator}}}{{{value.denominator}}}"),
    st.sampled_from("ABCDEFGHxyabn"),
    st.sampled_from([r"\text{yes}", r"\text{no}", r"\text{odd}", r"\text{even}", r"\text{Monday}", "True", "False"]),
    st.sampled_from([r"\emptyset", r"\mathbb{R}", r"\infty", r"\pi", r"\sqrt{2}", "2x", "x^2", "a+1", "b+1", "x+C"]),
)
DRESSED = st.sampled_from(["{}", r"\{{{}\}}", "({}, 1)", "[{}, 1000]", r"{} \text{{ cm}}", r"{}\%", "({})", r"\${}"])
JOINTS = st.sampled_from(
    ["=", r"\equiv ", r"\approx ", r"\text{ or }", r"\text{ and }", ", ", "; ", " / ", r"\lor ", r"\Rightarrow ",
     r"\to ",
     r"\\", r"\quad ", " ", " or ", r"\text{ so } x = ", r"\text{ not }", r"\text{ (or }", r"\ne ", "<", "|", " = x = ",
     r"\text{, maybe }", r"\iff ", r"\cup ", r"\pm ", " vs. ", "  -> "]
)  # fmt: skip
BEFORE = st.sampled_from(
    ["", "x = ", r"\text{Answer: }", r"x \in ", r"\approx ", "f(x) = ", "AB = ", r"\text{either }", "("]
)


@given(st.lists(PLAIN, min_size=2, max_size=6, unique=True), DRESSED, JOINTS, BEFORE)
@example([str(i) for i in range(200)], r"\{{{}\}}", " = ", "x = ")
@example([str(500 + i) for i in range(-5, 6)], "{}", " = ", "500.0 = ")
@example(["A", "B", "C", "D"], "{}", "=", "x=")
@example(["A", "B"], "({})", " ", "")
@example(["358", "38.0", "193", r"\infty", "170.4"], r"\${}", "|", "f(x) = ")
@example(["3", r"\infty", "4.5"], "{}", "|", "")
@settings(max_examples=CASES, deadline=None, derandomize="NEMO_ADA_FUZZ_CASES" not in os.environ)
def test_parts_that_differ_are_not_both_paid(values: list[str], dressed: str, joint: str, before: str) -> None:
    sides = [dressed.format(value) for value in values]
    answer = before + joint.join(sides)
    for name, grade in GRADERS.items():
        assert len(found := paid(grade, answer, [*sides, *values])) <= 1, (name, answer, found)


@pytest.mark.parametrize(
    "answer",
    [r"x = " + " = ".join(rf"\{{{i}\}}" for i in range(200)), "500.0 = " + " = ".join(map(str, range(495, 506))),
     "x=A=B=C=D", "(A) B", "(A)(B)", r"\text{(A) and (B)}", "x=(1,2)=(3,4)", "x=a+1=b+1", "1.5 = 1.51",
     r"x=5 \Rightarrow x=6"],
)  # fmt: skip
def test_a_chain_whose_sides_differ_is_paid_for_none_of_them(answer: str) -> None:
    parts = re.split(r"\\Rightarrow| and |=|(?<=\)) ?(?=[(A-Z])", answer.replace(r"\text", ""))
    assert [part for part in parts if part.strip(" {}x") and score_math(answer, part.strip(" {}"))] == []


def _parts(answer: str) -> list[str]:
    """Everything in an answer that could be an answer of its own."""
    between = re.split(
        r"=|,|;|\\text\{[^{}]*\}|\\(?:approx|or|and|quad|cup|iff)(?![a-z])|\bor\b|\band\b|:|\\\\|\s", answer
    )
    atoms = re.findall(r"-?\d+(?:\.\d+)?|[A-Z]\b|\([^()]*\)|\[[^\[\]]*\]|\\\{.*?\\\}", answer)
    found = [part.strip(" $.{}()") for part in between] + atoms
    return [*dict.fromkeys(part for part in found if part and len(part) < 60)]


@pytest.mark.long
def test_no_published_answer_is_paid_for_two_of_its_parts() -> None:
    twice = []
    for answer in dict.fromkeys(json.loads(line)["answer"] for line in PAIRS):
        if len(found := paid(score_math, answer, _parts(answer))) > 1:
            twice.append((answer, found))
    assert twice == []
