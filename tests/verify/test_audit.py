"""References that a verifier cannot compare are counted by kind; usual ones are not."""

from __future__ import annotations

import pytest

from nemo_ada.verify.audit import count_kinds, describe_kinds
from nemo_ada.verify.judge import make_judge

pytestmark = pytest.mark.long

FOUND = {
    "\x08oxed{5}": "control",
    "\x0crac{1}{2}": "control",
    "\text{cm}": "control",
    "He sold 3. So it is 5": "rationale",
    "x" * 201: "rationale",
    "5 or 6": "several",
    "the set of all good numbers": "prose",
}
USUAL = [
    "27", "28\\%", r"\frac \pi4 + 2 - \sqrt2", "1,2,3", "(1,2)", "[2,5)", r"x \ge 0", "y = 7x.", "2:3", "10:30", "(C)",
    r"\{1,2\}", r"\text{no solution}", "x>1 or x<0", "5 \\text{ cm}", r"\begin{pmatrix}1&0\\2&x\end{pmatrix}", "1\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def judge():
    judge = make_judge()
    yield judge
    judge.close()


def test_kinds_of_references(judge):
    assert {text: judge.find_doubt(text) for text in FOUND} == FOUND
    assert [text for text in USUAL if judge.find_doubt(text)] == []


def test_exact_takes_any_text_but_control_characters():
    exact = make_judge("exact")
    assert exact.audit(enumerate(FOUND)) == {"control": {"count": 3, "line": list(FOUND.values()).index("control")}}


def test_counts_name_the_first_line():
    counts = count_kinds([(1, None), (3, "prose"), (7, "several"), (9, "prose")])
    assert counts == {"prose": {"count": 2, "line": 3}, "several": {"count": 1, "line": 7}}
    assert "first in line 3" in describe_kinds(counts)[0]
