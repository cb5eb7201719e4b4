"""Arithmetic for language models: what the prompts hold, and which free-form answers count."""

from __future__ import annotations

from collections import Counter

import pytest

from nemo_ada.errors import UserError
from nemo_ada.tasks.arithmetic import KINDS, find_final_answer
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import ArithmeticSettings
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.verdict import Verdict
from tests.patience import PATIENCE

SIZES = {"train_prompts": 30, "heldout_prompts": 10}


@pytest.fixture(scope="module")
def task():
    built = build_task(ArithmeticSettings(problems={"sum_1": 1, "gcd": 1, "gsm_symbolic": 2}, shots=2, **SIZES))
    built._judge._math = MathVerifier(VerifierLimits(deadline_s=PATIENCE))  # a busy machine is no timeout here
    yield built
    built.close()


@pytest.mark.long
def test_every_kind_has_its_share_of_both_splits_behind_its_own_examples(task):
    splits = task.splits()
    for part, size in ((splits.train, 30), (splits.heldout, 10)):
        counts = Counter(prompt.entry["kind"] for prompt in part)
        assert len(part) == size and counts["gsm_symbolic"] == size // 2
        assert abs(counts["sum_1"] - counts["gcd"]) <= 1
    examples = {}
    for prompt in splits.train + splits.heldout:
        if prompt.entry["kind"] != "gsm_symbolic":
            *shots, asked = prompt.text.split("\n")
            examples.setdefault(prompt.entry["kind"], set()).add(tuple(shots))
            assert asked.endswith(" =") and prompt.answer not in asked.split("=")[1]
    assert {kind: {len(shots) for shots in found} for kind, found in examples.items()} == {"sum_1": {2}, "gcd": {2}}
    assert all(len(found) == 1 for found in examples.values()), "a kind's examples differ between prompts"
    ((shot, _),) = examples["sum_1"]
    expression, answer = shot.split(" = ")
    assert eval(expression) == int(answer)


def test_every_kind_can_be_made():
    task = build_task(ArithmeticSettings(problems=dict.fromkeys(KINDS, 1), train_prompts=16, heldout_prompts=8))
    assert {prompt.entry["kind"] for prompt in task.splits().train} == set(KINDS)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 7\n", "7"),
        ("5 - 12 is -7.", "-7"),
        ("4-3 = 1", "1"),
        ("The result is 1,234.50 apples", "1234.50"),
        (r"so \boxed{\frac{1}{2}} and not 3", r"\frac{1}{2}"),
        ("half of it: 3/6", "3/6"),
        ("no idea", None),
    ],
)
def test_the_final_answer_of_a_free_form_response(text, answer):
    assert find_final_answer(text) == answer


def test_answers_are_compared_by_value_and_only_finished_ones_count(task):
    prompt = task.splits().train[0]
    right = prompt.answer
    asked = [f" {right}", f"It is {right}.0.", rf"\boxed{{{right}}}", f"{right}1", "no idea", ""]
    labels = [verdict.label for verdict in score_many(task, [(prompt, text, True) for text in asked])]
    assert labels == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert score_many(task, [(prompt, f" {right}", False)]) == [Verdict(0.0)]


def test_what_cannot_be_made_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"task\.problems\.times_1: 604 different .* gives 100; lower its share"):
        build_task(ArithmeticSettings(problems={"times_1": 1}, train_prompts=500, heldout_prompts=100)).splits()
    with pytest.raises(UserError, match=r"set policy\.model_name=FOLDER"):
        _ = build_task(ArithmeticSettings()).max_prompt_tokens
    given = build_task(ArithmeticSettings(problems={"sum_1": 1}, **SIZES), tmp_path, CharTokenizer("0123456789+-= \n"))
    assert given.max_prompt_tokens == max(len(prompt.text) for prompt in given.splits().train + given.splits().heldout)
