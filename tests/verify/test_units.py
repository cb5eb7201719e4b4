"""What stands behind a number: any noun counts, a short list changes it, and two units agree or are converted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.verify.scoring import score_math
from nemo_ada.verify.units import unit

# No list of the package has these.
nouns = st.sampled_from([
    "dozens of eggs", "years ago",
    "clips", "zorbs", "paper cranes", "cans of blue paint", "Valentine's Day cards", "kids who don't swim", "S'mores",
    "pens and pencils", "fourth grade boys", "tune-ups", "Blumen", "élèves", "книги", "more pages", "ice cream cones",
    "pairs of shoes", "down jackets", "trips to school", "lemons per basket", "years old", "total legs", "pink ones",
])  # fmt: skip
changes = st.sampled_from([
    "million", "thousand", "dozen", "squared", "cubed", "halves", "thirds", "hundred", "less", "fewer pages", "below",
    "below zero", "loss", "off", "down", "in debt", "or more", "or so", "or less", "to six", "and a half", "at least",
    "is wrong", "not", "maybe", "minus one", "and six", "times 2", "couples", "(guess)", "n",
])  # fmt: skip


@given(
    st.integers(2, 9999), nouns, st.sampled_from([r"{} \text{{ {} }}", r"{}\text{{{}}}", "{} {}", r"{}~\mathrm{{{}}}"])
)
def test_any_noun_behind_a_number_is_what_was_counted(number: int, noun: str, form: str) -> None:
    assert score_math(form.format(number, noun), str(number)) == 1.0
    assert score_math(form.format(number + 1, noun), str(number)) == 0.0
    assert score_math(str(number), form.format(number, noun)) == 1.0


@given(st.integers(3, 9999), changes, st.sampled_from([r"{} \text{{ {} }}", r"{}\text{{{}}}", "{} {}"]))
def test_words_that_change_a_number_make_another_answer(number: int, word: str, form: str) -> None:
    assert score_math(form.format(number, word), str(number)) == 0.0
    assert score_math(f"{number} xyz", str(number)) == score_math(f"{number}ab", str(number)) == 0.0, "a product"


@pytest.mark.parametrize(
    ("answer", "prompt"),
    [
        (r"7 \text{ dozens}", "How many dozens of eggs are left?"),
        (r"7 \text{ pairs}", "How many pairs of shoes does she own?"),
        (r"7 \text{ quarters}", "She pays with coins. How many quarters does she have?"),
        (r"7 \text{ fewer}", "How many fewer apples has he?"),
        (r"7 \text{ below}", "How many degrees below zero was it?"),
        ("7 less", "How much less does it cost?"),
    ],
)
def test_a_word_that_the_problem_asks_for_changes_nothing(answer: str, prompt: str) -> None:
    assert score_math(answer, "7") == 0.0
    assert score_math(answer, "7", prompt=prompt) == 1.0
    assert score_math(answer.replace("7", "8"), "7", prompt=prompt) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"3\text{ lions}", r"3\text{ tigers}", 0), (r"3\text{ old lions}", r"3\text{ lions}", 1),
        (r"5\text{ cm}", r"5\text{ apples}", 0), (r"5\text{ kg of rice}", r"5000\text{ g}", 1),
        (r"20\text{ N}", r"20\text{ kg m/s}^2", 1), (r"5\text{ W}", r"5\text{ J/s}", 1),
        (r"5\text{ V}", r"5\text{ A}", 0),
        (r"4\ \text{J}/(\text{kg}\cdot\text{K})", r"4\ \text{J kg}^{-1}\text{K}^{-1}", 1),
        (r"500\ \mu\text{C}", r"0.5\text{ mC}", 1), (r"3\text{ mC}", r"3\text{ MC}", 0),
        (r"5\text{ m below}", r"5\text{ m}", 0), (r"5\text{ m below}", r"5\text{ m below}", 1),
        (r"20\%\text{ off}", r"20\%", 1), (r"7\text{ in}", r"7\text{ inches}", 1),
        (r"7\text{ in}^2", r"7\text{ in}^3", 0),
    ],
)  # fmt: skip
def test_units_of_both_sides_agree(one: str, other: str, same: int) -> None:
    assert score_math(one, other) == score_math(other, one) == same


@pytest.mark.parametrize("text", ["(cm", "m)", "/(g", "5", "", "x", "cm + 1"])
def test_what_is_no_unit_is_none(text: str) -> None:
    assert unit(text, spaced=False) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3:00", "15:00", 1), ("3:00 AM", "15:00", 0), ("3:00 PM", "15:00", 1), ("3:00", "3:00 PM", 1),
        ("12:30", "12:30 AM", 1), ("12:30", "0:30", 1), ("12:30 PM", "0:30", 0), ("12:30 AM", "0:30", 1),
        ("13:00", "1:00 AM", 0), ("noon", "12:00 PM", 1), ("midnight", "0:00", 1), ("3:01", "15:00", 0),
    ],
)  # fmt: skip
def test_a_time_without_its_half_of_the_day_fits_both(one: str, other: str, same: int) -> None:
    assert score_math(one, other) == score_math(other, one) == same
