"""Published layouts of multiple choice: the options become part of the prompt, and the reference a letter."""

from __future__ import annotations

import pytest

from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS, pair_of

ASKED = "Which number is even?"
OPTIONS = ["3", "4", "5", "7"]
LABELS = ["A", "B", "C", "D"]
SHOWN = f"{ASKED}\n\n(A) 3\n(B) 4\n(C) 5\n(D) 7"
LAYOUTS = {
    "MMLU": {"question": ASKED, "subject": "math", "choices": OPTIONS, "answer": 1},
    "MMLU-Pro": {"question": ASKED, "options": OPTIONS, "answer": "B", "answer_index": 1, "cot_content": ""},
    "ARC": {"id": "x", "question": ASKED, "choices": {"text": OPTIONS, "label": LABELS}, "answerKey": "B"},
    "OpenBookQA": {"question_stem": ASKED, "choices": {"text": OPTIONS, "label": LABELS}, "answerKey": "B"},
    "MedQA": {"question": ASKED, "answer": "4", "options": dict(zip(LABELS, OPTIONS, strict=True)), "answer_idx": "B"},
    "MedMCQA": {"question": ASKED, "opa": "3", "opb": "4", "opc": "5", "opd": "7", "cop": 1, "exp": "because"},
    "AQuA": {"question": ASKED, "options": ["A)3", "B)4", "C)5", "D)7"], "rationale": "...", "correct": "B"},
    "MathQA": {"Problem": ASKED, "options": "a ) 3 , b ) 4 , c ) 5 , d ) 7", "correct": "b", "Rationale": ""},
    "HellaSwag": {"ctx": ASKED, "endings": OPTIONS, "label": "1"},
    "AGIEval": {"passage": None, "question": ASKED, "options": ["(A)3", "(B)4", "(C)5", "(D)7"], "label": "B"},
    "CMMLU": {"Question": ASKED, "A": "3", "B": "4", "C": "5", "D": "7", "Answer": "B"},
    "option columns": {"problem": ASKED, "option_a": "3", "option_b": "4", "option_c": "5", "option_d": "7",
                       "answer": "B"},
    "text of the option": {"question": ASKED, "choices": OPTIONS, "answer": ["4"]},
    "JSON text": {"question": ASKED, "choices": '["3", "4", "5", "7"]', "answer": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_options_in_columns_are_part_of_the_prompt_and_the_reference_is_a_letter(name):
    pair = pair_of(LAYOUTS[name], PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == (SHOWN, "B")
    assert "options" in pair.layout


def test_options_that_count_from_one():
    record = {"goal": ASKED, "option1": "3", "option2": "4", "answer": "2"}
    assert pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).answer == "B"
    record = {"goal": ASKED, "sol1": "3", "sol2": "4", "label": 1}
    assert pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).answer == "A"


def test_options_that_the_prompt_has_are_not_written_twice():
    record = {"question": SHOWN, "choices": OPTIONS, "answer": "B"}
    assert pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).prompt == SHOWN


@pytest.mark.parametrize("options", [[], None, ["3"], ["3", "3"], "none", [{"x": 1}]])
def test_a_column_of_options_that_holds_none_leaves_an_open_question(options):
    pair = pair_of({"problem": ASKED, "options": options, "answer": "4"}, PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == (ASKED, "4")


def test_an_answer_that_is_no_option_leaves_an_open_question():
    pair = pair_of({"problem": ASKED, "options": OPTIONS, "answer": "42"}, PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == (ASKED, "42")


def test_two_numbers_that_are_called_a_and_b_are_no_options():
    record = {"a": 1, "b": 2, "problem": "a - a + 1?", "answer": "1"}
    assert pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).answer == "1"
