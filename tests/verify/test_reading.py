r"""What the types of answers promise, for any numbers: order, multiplicity, ends, units; no last number of a text."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nemo_ada.verify.latex import tidy
from nemo_ada.verify.scoring import score_math

numbers = st.integers(-999, 999)
lists = st.lists(numbers, min_size=2, max_size=6)
spaces = st.sampled_from(["", " ", r"\ ", r"\,", "~", r"\;"])


def written(items: list[int], between: str = ",") -> str:
    return between.join(map(str, items))


@given(lists, st.randoms(use_true_random=False), st.sampled_from([",", ", ", ";", r"\text{ and }", ",\\ ", "，"]))
def test_a_list_is_equal_in_any_order_and_a_tuple_only_in_its_own(items: list[int], random, between: str) -> None:
    shuffled = random.sample(items, len(items))
    assume(between not in (",", "，") or all(len(str(item)) != 3 for item in shuffled[1:]))  # 1,100 is a number
    assert score_math(written(shuffled, between), written(items, ", ")) == 1.0
    assert score_math(f"({written(shuffled, ', ')})", f"({written(items, ', ')})") == float(shuffled == items)


@given(lists, st.data())
def test_a_list_counts_how_often_an_answer_occurs(items: list[int], data: st.DataObject) -> None:
    more = [*items, data.draw(st.sampled_from(items))]
    assert score_math(written(more, ", "), written(items, ", ")) == 0.0
    assert score_math(written(items, ", "), written(more, ", ")) == 0.0


@given(st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1]), st.booleans(), st.booleans(), st.booleans())
def test_an_interval_is_the_inequality_with_its_ends(ends: tuple[int, int], low: bool, high: bool, other: bool) -> None:
    a, b = ends
    interval = f"{'[' if low else '('}{a}, {b}{']' if high else ')'}"
    signs = [r"\le" if closed else "<" for closed in (low, high != other)]
    assert score_math(f"{a} {signs[0]} x {signs[1]} {b}", interval) == float(not other)
    turned = f"{b} {'>=' if high else '>'} x {'≥' if low else '>'} {a}"
    assert score_math(turned, interval) == 1.0
    assert score_math(f"{b}", interval) == score_math(f"{a}", interval) == 0.0


@given(st.integers(1, 9999), st.integers(1, 9999), st.integers(1, 50), st.booleans())
def test_a_ratio_is_equal_to_its_multiples_and_not_turned_round(a: int, b: int, times: int, turned: bool) -> None:
    parts = (b, a) if turned else (a, b)
    assert score_math(f"{times * parts[0]}:{times * parts[1]}", f"{a}:{b}") == float(not turned or a == b)


@given(st.integers(-99_999, 99_999), st.integers(0, 3), spaces)
def test_percent_is_its_number_and_its_hundredth(digits: int, places: int, space: str) -> None:
    value, hundredth = f"{Decimal(digits).scaleb(-places):f}", f"{Decimal(digits).scaleb(-places - 2):f}"
    for answer in (rf"{value}{space}\%", value, hundredth, rf"{value} \text{{ percent}}"):
        assert score_math(answer, rf"{value}\%") == 1.0
    assert score_math(rf"{hundredth}\%", rf"{value}\%") == float(digits == 0)


@given(st.integers(1, 999), st.lists(st.integers(0, 999), min_size=1, max_size=3), spaces.filter(bool))
def test_groups_of_three_digits_are_one_number(first: int, groups: list[int], space: str) -> None:
    whole = f"{first}" + "".join(f"{group:03d}" for group in groups)
    for separator in (space, ",", "{,}", r",\!"):
        assert score_math(f"{first}" + "".join(f"{separator}{group:03d}" for group in groups), whole) == 1.0
    assert score_math(f"{groups[-1]}", f"{first}{space}{groups[-1]:03d}") == 0.0


@given(st.integers(1, 999))
def test_a_leading_zero_has_no_thousands(digits: int) -> None:
    assert score_math(f"{digits:03d}", f"0,{digits:03d}") == 0.0
    assert score_math(f"0.{digits:03d}", f"0,{digits:03d}") == 1.0


@pytest.mark.parametrize("text", [
    r"\{{x \mid x \geq {}\}}", r"x \neq \pm {}", r"y = {}x.", r"\neq {}", "1 # 2 # {}", "0 & 1 & {}", r"\sqrt{{2 + {}",
    "f @ {}",
    r"n \equiv 1 \pmod {}", "a sum of more than {}", r"x \le {}", r"x \to {}", r"(1, {})", r"41 \\ {}",
])  # fmt: skip
@given(number=st.integers(2, 9999))
@settings(max_examples=15, deadline=None)
def test_no_text_is_paid_by_its_last_number(text: str, number: int) -> None:
    whole = text.format(number)
    assert score_math(str(number), whole) == score_math(whole, str(number)) == 0.0
    assert score_math(whole, whole) == score_math(f" {whole} ", f"{whole}.") == 1.0


@given(st.text(alphabet="\\{}()[]$^_,;:=<>|&#%~ 0123456789abix½√π°，．\u200b", max_size=80))
def test_a_text_is_tidy_after_once_and_equal_to_itself(text: str) -> None:
    assert tidy(tidy(text)) == tidy(text) or len(tidy(tidy(text))) < len(tidy(text))
    if tidy(text):
        assert score_math(text, text) == 1.0


def test_an_empty_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="is empty"):
        score_math("5", r" \text{ } ")
