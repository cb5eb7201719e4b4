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
        (r"\boxed{4} <think>\boxed{5}</think> as I said", "4"),
        (r"\boxed{5 \text{ or } \boxed{3}}", r"5 \text{ or } 3"),
    ],
)
def test_the_last_closed_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


TOGETHER = [  # boxes that make one claim, and what they say
    (r"\boxed{3} and \boxed{5}", r"3\text{ and }5"),
    (r"\boxed{3}, \boxed{4}, and \boxed{5}", r"3, 4\text{ and }5"),
    (r"One root is \boxed{3} and the other root is \boxed{5}.", r"3\text{ and }5"),
    (r"$x=\boxed{3}$, $y=\boxed{4}$", "x=3, y=4"),
    (r"x=\boxed{3} and y=\boxed{4}", r"x=3\text{ and }y=4"),
    (r"either \boxed{3} or \boxed{5}", r"3\text{ or }5"),
    (r"\boxed{3}\text{ oder }\boxed{5}", r"3\text{ or }5"),
    (r"\boxed{3}或\boxed{5}", r"3\text{ or }5"),
    (r"It is \boxed{3} (or \boxed{5} if order matters).", r"3\text{ or }5"),
    (r"\boxed{3}, alternatively \boxed{5}", r"3\text{ or }5"),
    (r"It is \boxed{3}. It could be \boxed{5}.", r"3\text{ or }5"),
    (r"If n is even, \boxed{3}; if n is odd, \boxed{5}.", r"3\text{ or }5"),
    (r"If n is even it is \boxed{3}. If n is odd it is \boxed{5}.", r"3\text{ or }5"),
    (r"\boxed{3} if n is even, \boxed{5} otherwise", r"3\text{ or }5"),
    ("Case 1: \\boxed{3}\nCase 2: \\boxed{5}", r"3\text{ or }5"),
    ("(a) \\boxed{3}\n(b) \\boxed{5}", r"3\text{ or }5"),
    (r"\boxed{3} \boxed{5}", r"3\text{ or }5"),
    (r"\boxed{3}|\boxed{5}", "3 | 5"),
    (r"\boxed{5} = \boxed{7}", "5 = 7"),
    (r"\boxed{5}, i.e. \boxed{7}", "5 = 7"),
    (r"\boxed{5} or \boxed{5}", "5"),
    (r"It is not \boxed{3}", r"\text{not }3"),
]
APART = [  # the last box replaces what was said before
    r"First \boxed{3}. Wait: \boxed{5}.", r"first \boxed{3}, no: \boxed{5}", r"\boxed{3} and therefore \boxed{5}",
    r"\boxed{3} is wrong, \boxed{5} is right", r"not \boxed{3} but \boxed{5}", r"Step 1: \boxed{3}. Step 2: \boxed{5}.",
    r"\boxed{3}. Let me check if that works. It does not, so it is \boxed{5}", r"so \boxed{3}, then \boxed{5}",
    r"The sum is \boxed{3}. The product, which was asked for, is \boxed{5}",
    r"\boxed{3} or " + "so " * 200 + r"\boxed{5}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), [*TOGETHER, *((text, "5") for text in APART)])
def test_boxes_that_one_sentence_joins_are_one_claim(text: str, answer: str) -> None:
    assert last_boxed(text) == answer
    assert last_boxed(f"{text} \\boxed{{6") is None


@given(st.text(alphabet="ab{}\\ ", max_size=60), st.text(alphabet="abc 1+", max_size=10))
def test_whatever_comes_before_the_box_does_not_matter(before: str, answer: str) -> None:
    assert last_boxed(f"{before}. So \\boxed{{{answer}}} tail") == answer.strip()


def test_long_texts_are_read_in_linear_time() -> None:
    def cost(n: int) -> float:
        """CPU seconds, the best of three."""
        text = "{" * 2 * n + r"\boxed{" * n + "{" * n + "}" * n
        times = []
        for _ in range(3):
            begin = time.process_time()
            assert last_boxed(text) is None
            times.append(time.process_time() - begin)
        return min(times)

    assert cost(400_000) < 4 * 16 * cost(25_000), "16 times as long; a quadratic scan costs 256 times as much"
