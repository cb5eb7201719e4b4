from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.verify.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{42}", "42"),
        (r"first \boxed{1}, then \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed{1} and then \boxed{2", None),
        (r"\boxed", None),
        ("", None),
        (r"so \boxed 5.", "5"),
        (r"$\boxed 12$", "12"),
        (r"$\boxed\frac{1}{2}$", r"\frac{1}{2}"),
        (r"put it into \boxed and \boxed{4}, as \boxed asks", "4"),
        (r"\boxed{5}, written as \boxed{}", "5"),
        (r"\boxed{ } and \boxed{}", ""),
        (r"<think>maybe \boxed{5}", None),
        (r"\boxed{4} <think>or \boxed{5}", "4"),
        (r"<think>maybe \boxed{4}</think> \boxed{5}", "5"),
        (r"<think>\boxed{4}</think> done", None),
        (r"\boxed{4}</think> \boxed{5} <think> \boxed{6}", "5"),
        (r"maybe \boxed{4} or \boxed{5}</think> it is \boxed{6}", "6"),
    ],
)
def test_the_last_closed_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@given(st.text(alphabet="ab{}\\ ", max_size=60), st.text(alphabet="abc 1+", max_size=10))
def test_whatever_comes_before_the_box_does_not_matter(before: str, answer: str) -> None:
    assert last_boxed(f"{before} \\boxed{{{answer}}} tail") == answer.strip()


def test_long_texts_are_read_in_linear_time() -> None:
    def cost(n: int) -> float:
        """CPU seconds, the best of three."""
        text = "{" * 2 * n + r"\boxed{" + "{" * n + "}" * n
        times = []
        for _ in range(3):
            begin = time.process_time()
            assert last_boxed(text) is None
            times.append(time.process_time() - begin)
        return min(times)

    assert cost(400_000) < 4 * 16 * cost(25_000), "16 times as long; a quadratic scan costs 256 times as much"
