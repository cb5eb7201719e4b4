"""Layouts of public data sets: the pair is found, and where it stood is said."""

from __future__ import annotations

import gzip
import json

import pytest

from nemo_ada.run.data_files import records
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS, pair_of

ASKED = [{"role": "user", "content": "What is 20+7?"}]
SYSTEM = {"role": "system", "content": "Think."}
LAYOUTS = {
    "ours": {"problem": "What is 20+7?", "answer": "27"},
    "verl": {"prompt": [SYSTEM, *ASKED], "reward_model": {"style": "rule", "ground_truth": "27"}, "ability": "math"},
    "verl, a list of one": {"prompt": ASKED, "reward_model": {"ground_truth": ["27"]}},
    "TRL": {"prompt": ASKED, "solution": r"<think>\boxed{3}</think> so \boxed{27}"},
    "R1-style tags": {"problem": "What is 20+7?", "solution": "<answer> 27 </answer>"},
    "OpenRLHF": {"input": ASKED, "label": "27"},
    "NeMo-Gym": {"responses_create_params": {"input": ASKED}, "expected_answer": "27", "agent_ref": {"name": "math"}},
    "parts": {"prompt": [{"role": "user", "content": [{"type": "text", "text": "What is 20+7?"}]}], "answer": "27"},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "What is 20+7?"}, {"from": "gpt", "value": r"Add: \boxed{27}"}]
    },
    "Skywork": {"prompt": ASKED, "reward_model": {"ground_truth": '["27"]'}},
    "JSON text": {"prompt": json.dumps(ASKED), "answer": "27"},
    "gsm8k": {"question": "What is 20+7?", "answer": "20+7=<<20+7=27>>27\n#### 27"},
    "nulls": {"problem": None, "prompt": " ", "question": "What is 20+7?", "answer": None, "gt": 27},
    "a column with a null": {"problem": "What is 20+7?", "answer": 27.0},
    "one element": {"problem": "What is 20+7?", "answer": ["27"]},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_question_and_its_answer_are_found(name):
    pair = pair_of(LAYOUTS[name], PROMPT_FIELDS, ANSWER_FIELDS)
    assert (pair.prompt, pair.answer) == ("What is 20+7?", "27")
    assert pair.system == ("Think." if name == "verl" else "")


def test_the_layout_is_said():
    said = {name: pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS).layout for name, record in LAYOUTS.items()}
    assert said["verl"] == "prompt 'prompt' (messages), reference 'reward_model.ground_truth'"
    assert said["ShareGPT"] == "prompt 'conversations' (messages), reference 'conversations' (its box)"
    assert said["gsm8k"] == "prompt 'question', reference 'answer' (after ####)"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": [*ASKED, {"role": "assistant", "content": "?"}, *ASKED], "answer": "1"}, "user, assistant, user"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"}, "a message that is list"),
        ({"problem": "p", "answer": ["1", "2"]}, "holds 2 answers"),
        ({"problem": "p", "reward_model": {"style": "rule"}}, "no answer field"),
        ({"problem": "p", "answer": None}, "its 'answer' is null"),
        ({"problem": "p", "answer": True}, "is bool"),
        ({"prompt": {"text": "p"}, "answer": "1"}, "is dict"),
    ],
)
def test_a_record_without_one_question_and_one_answer_is_refused_with_the_reason(record, reason):
    with pytest.raises(ValueError, match=reason):
        pair_of(record, PROMPT_FIELDS, ANSWER_FIELDS)


def test_a_field_may_be_a_dotted_path_and_a_column_with_that_name_comes_first():
    record = {"a": {"b": "nested", "c": "1"}, "a.b": "flat"}
    pair = pair_of(record, ["a.b"], ["a.c"])
    assert (pair.prompt, pair.answer, pair.columns) == ("flat", "1", ("a.b", "a"))


def test_interval_like_text_stays_text():
    assert pair_of({"problem": "p", "answer": "[5]"}, PROMPT_FIELDS, ANSWER_FIELDS).answer == "[5]"


def test_arrays_and_packed_files_are_read_as_lines_are(tmp_path):
    rows = [{"problem": f"p{n}", "answer": n} for n in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "lines.jsonl").write_text(lines)
    (tmp_path / "array.json").write_text(json.dumps(rows, indent=1))
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(lines)
    for name in ("lines.jsonl", "array.json", "packed.jsonl.gz"):
        assert list(records(tmp_path / name, pytest.fail)) == list(enumerate(rows, start=1)), name
    damaged: dict[int, str] = {}
    (tmp_path / "lines.jsonl").write_text('["a list"]\n' + lines)
    assert len(list(records(tmp_path / "lines.jsonl", damaged.__setitem__))) == 3 and list(damaged) == [1]
