"""What a response says outside its thoughts, in the formats of templates and of vLLM's reasoning parsers."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path

import pytest

from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.thoughts import parts_outside_thoughts

FORMATS = [  # a thought and an answer
    ("<think>{}</think>", "{}"),
    ("<thinking>\n{}\n</thinking>\n", "<answer>{}</answer>"),
    ("<thought>{}</thought>", "{}"),
    ("<reasoning>{}</reasoning>", "{}"),
    ("<inner_monologue>{}</inner_monologue>", "{}"),
    ("[THINK]{}[/THINK]", "{}"),
    ("◁think▷{}◁/think▷", "{}"),
    ("<seed:think>{}<seed:cot_budget_reflect>20 tokens</seed:cot_budget_reflect></seed:think>", "{}"),
    ("<mm:think>{}</mm:think>", "{}"),
    ("<ifm|think_fast>{}</ifm|think_fast>", "{}"),
    ("<|begin_of_thought|>{}<|end_of_thought|>", "<|begin_of_solution|>{}<|end_of_solution|>"),
    ("<｜begin▁of▁thinking｜>{}<｜end▁of▁thinking｜>", "{}"),
    ("<|START_THINKING|>{}<|END_THINKING|>", "<|START_RESPONSE|>{}<|END_RESPONSE|>"),
    ("<|plamo:begin_think:plamo|>{}<|plamo:end_think:plamo|>", "{}"),
    ("<|open|>think<|sep|>{}<|close|>think<|sep|>", "<|open|>response<|sep|>{}<|close|>response<|sep|>"),
    ("<|content_thinking|>{}<|end_message|><|message_model|>", "<|content_text|>{}<|end_message|>"),
    ("to=self<|message|>{}<|eom|>", "<|start|>assistant<|message|>{}<|eot|>"),
    ("<|channel|>analysis<|message|>{}<|end|>", "<|start|>assistant<|channel|>final<|message|>{}<|return|>"),
    ("<|channel>thought\n{}<channel|>", "{}"),
    ("analysisWe know {}", "assistantfinal{}"),  # the same as gpt-oss without its special tokens
    ("<|im_start|>think\n{}", "<|im_start|>answer\n{}"),
    ("Here is my thought process: {} ", "Here is my response: {}"),
    ("```thinking\n{}\n```\n", "{}"),
    ("````thinking\n```python\n1\n```\n{}\n````\n", "{}"),
    ("~~~reasoning\n{}\n~~~\n", "{}"),
    ("<details>\n<summary>My reasoning</summary>\n{}\n</details>\n", "{}"),
    ("Here are my reasoning steps:\n{}", "[BEGIN FINAL RESPONSE]\n{}\n[END FINAL RESPONSE]"),
]


@pytest.mark.parametrize(("thought", "answer"), FORMATS, ids=[thought[:24] for thought, _ in FORMATS])
def test_a_box_in_a_thought_is_no_answer(thought: str, answer: str) -> None:
    inside = thought.format(r"perhaps \boxed{3}")
    assert last_boxed(inside + answer.format(r"it is \boxed{5}")) == "5"
    assert last_boxed(inside + answer.format("I do not know")) is None
    assert last_boxed(inside.partition("{3}")[0] + "{3}") is None, "a thought without an end has no answer"
    assert last_boxed(r"\boxed{5} " + thought.format("let me check") + "Yes.") in ("5", None)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("no thought", ["no thought"]),
        ("a<think>b</think>c<think>d</think>e", ["a", "c", "e"]),
        ("a<think>b", ["a"]),
        ("```python\na\n```\nb", ["```python\na\n```\nb"]),  # a block that is no thought, and its end
        ("a</think>b", ["b"]),  # it began in the prompt
        ("a<think>b<reflection>c</reflection>d</think>e", ["a", "e"]),
        ("<think>a<think>b</think>c</think>d", ["d"]),
        ("x<y, [a,b] and <b>z</b>", ["x<y, [a,b] and <b>z</b>"]),
        ("[Reasoning]\na", ["[Reasoning]\na"]),  # a heading
        ("analysis of the cases", ["analysis of the cases"]),
    ],
)
def test_what_is_said_is_what_stands_outside(text: str, parts: list[str]) -> None:
    assert parts_outside_thoughts(text) == parts


def test_every_tag_of_vllms_reasoning_parsers_is_known() -> None:
    """Read in the source of the vLLM that is installed: a tag that a later version brings fails here."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    root = Path(spec.submodule_search_locations[0])
    tags = set()
    for source in [*root.glob("reasoning/*.py"), *root.glob("parser/*.py")]:
        for literal in re.findall(r"""["'](\S{3,60})["']""", source.read_text(encoding="utf-8")):
            if re.fullmatch(r"[<\[◁]\|?[^\s{}<>()]*(?:think|reason|thought)[^\s{}<>()]*[>\]▷]", literal, re.IGNORECASE):
                tags.add(literal)
    assert {"<think>", "</think>", "<|START_THINKING|>"} <= tags
    assert [tag for tag in sorted(tags) if parts_outside_thoughts(f"a{tag}b") == [f"a{tag}b"]] == []


def test_long_texts_are_read_in_linear_time() -> None:
    def cost(n: int) -> float:
        """CPU seconds, the best of three."""
        text = "<think" * n + "< think <|a" * n
        times = []
        for _ in range(3):
            begin = time.process_time()
            assert parts_outside_thoughts(text) == [text]
            times.append(time.process_time() - begin)
        return min(times)

    assert cost(80_000) < 4 * 16 * cost(5_000), "16 times as long; a quadratic scan costs 256 times as much"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<plan>\boxed{3}</plan> It is \boxed{5}", "5"),
        (r"[PLAN]\boxed{3}[/PLAN]\boxed{5}", "5"),
        (r"<plan>\boxed{3}</plan>", "3"),
        (r"<answer>\boxed{3}</answer> or \boxed{5}", r"3\text{ or }5"),
        (r"<p>\boxed{3} and</p><p>\boxed{5}</p>", r"3\text{ and }5"),
    ],
)
def test_a_tag_of_any_name_before_the_answer_holds_a_thought(text: str, answer: str) -> None:
    assert last_boxed(text) == answer
