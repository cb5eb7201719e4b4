"""The JSONL task: bad lines are skipped by number, a useless file is an error, splits do not depend on their order."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.json_lines import parse_line
from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.lines import pair_of
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.verify.judge import normalise_text
from nemo_ada.verify.verdict import INVALID, Verdict

SAMPLE = Path(__file__).parents[2] / "recipes" / "data" / "chain_sum.jsonl"


def write(path: Path, *rows: object) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def sums(n: int) -> list[dict[str, Any]]:
    return [{"problem": f"{i}+1=", "answer": i + 1} for i in range(n)]


def load(path: Path, **options: Any) -> JsonlTask:
    return JsonlTask(JsonlSettings(path=str(path), **options))


@pytest.mark.parametrize(
    ("prompt_field", "answer_field"), [("problem", "answer"), ("prompt", "gt"), ("question", "answer")]
)
def test_the_usual_field_names_are_found(tmp_path: Path, prompt_field: str, answer_field: str) -> None:
    rows = [{prompt_field: f"{i}=", answer_field: str(i)} for i in range(20)]
    splits = load(write(tmp_path / "a.jsonl", *rows)).splits()
    assert (len(splits.train), len(splits.heldout), len(splits.supervision)) == (8, 2, 10)
    assert all(p.text == p.answer + "=" for p in splits.train + splits.heldout)
    assert all(d.prompt_text == d.answer_text + "=" for d in splits.supervision)


def test_other_field_names_and_a_suffix_can_be_set(tmp_path: Path) -> None:
    rows = [{"in": f"{i}", "out": i} for i in range(20)]
    task = load(write(tmp_path / "a.jsonl", *rows), prompt_fields=("in",), answer_fields=("out",), prompt_suffix=" -> ")
    assert all(p.text == f"{p.answer} -> " for p in task.splits().train)


def test_bad_lines_are_skipped_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = [{"answer": "3"}, {"problem": "x", "answer": None}, {"problem": " ", "answer": "1"}]
    bad = ["{", "[1]", *empty, "", '{"a": 1e}']
    path = write(tmp_path / "a.jsonl", *sums(20), *bad)
    with path.open("ab") as file:
        file.write(b'{"problem": "\xff", "answer": "1"}\n')
    with caplog.at_level(logging.WARNING):
        reasons = load(path).malformed
    assert list(reasons) == [21, 22, 23, 24, 25, 27, 28]  # 26 is blank, which is no fault
    assert "7 line(s), malformed: line 21: not JSON" in caplog.text and "and 2 more" in caplog.text


def test_repeated_conflicting_and_overlong_prompts_are_left_out_and_told(tmp_path: Path) -> None:
    extra = [
        {"problem": " 3+1=", "answer": "4 "},  # line 21: the same prompt and answer, up to white space
        {"problem": "3+1=", "answer": "5"},  # line 22: another answer
        {"problem": "1" * 30 + "=", "answer": "1"},  # line 23: too long
    ]
    task = load(write(tmp_path / "a.jsonl", *sums(20), *extra), max_prompt_tokens=10)
    assert (task.repeated, task.conflicting, task.overlong) == ([21], [22], [23])
    splits = task.splits()
    answers = {p.text: p.answer for p in splits.train + splits.heldout}
    answers |= {d.prompt_text: d.answer_text for d in splits.supervision}
    assert len(answers) == 20
    assert answers["3+1="] == "4"
    assert task.max_prompt_tokens == 5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is no file"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"x\ny\n", "no line that can be used"),
        (b'{"text": "a"}\n', "it has text"),
        (b"[" * 100_000, "line 1"),
    ],
)
def test_a_useless_file_is_an_error_that_names_it_and_what_works(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        JsonlTask(JsonlSettings(path=str(path)))
    message = str(caught.value)
    assert message.startswith("task.path") and str(path) in message and says in message and "\n" not in message


def test_too_few_prompts_are_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"max_prompt_tokens=2 leaves out every prompt.*the shortest has 4"):
        load(write(tmp_path / "a.jsonl", *sums(20)), max_prompt_tokens=2)
    with pytest.raises(UserError, match="has 2 different prompts, too few"):
        load(write(tmp_path / "a.jsonl", *sums(2))).splits()


def test_the_split_depends_on_the_seed_and_not_on_the_line_order(tmp_path: Path) -> None:
    rows = sums(200)
    shuffled = random.Random(1).sample(rows, len(rows))
    one = load(write(tmp_path / "a.jsonl", *rows)).splits()
    two = load(write(tmp_path / "b.jsonl", *shuffled)).splits()
    other = load(tmp_path / "a.jsonl", seed=1).splits()
    assert [p.prompt_id for p in one.heldout] == [p.prompt_id for p in two.heldout]
    assert one.supervision == two.supervision
    assert {p.text for p in one.heldout} != {p.text for p in other.heldout}
    bare = load(tmp_path / "a.jsonl", supervision_fraction=0).splits()
    assert (len(bare.train), len(bare.heldout), bare.supervision) == (180, 20, ())


def test_exact_scoring_ignores_case_width_and_white_space_only(tmp_path: Path) -> None:
    rows = [{"problem": f"capital {i}?", "answer": "New  York"} for i in range(10)]
    task = load(write(tmp_path / "a.jsonl", *rows))
    prompt = task.splits().train[0]
    right, wrong = ("New York", " new york ", "\uff2eew York"), ("", "NewYork", "New York City", "York")
    assert score_many(task, [(prompt, text, True) for text in right + wrong]) == [Verdict(1.0)] * 3 + [Verdict(0.0)] * 4
    assert score_many(task, [(prompt, text, False) for text in right]) == [Verdict(0.0)] * 3
    assert normalise_text("Ａ  b\n") == "a b"


@pytest.mark.long
def test_math_scoring_compares_values_and_a_failure_is_no_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_verify")
    rows = [{"problem": f"half, {i}?", "answer": "1/2"} for i in range(10)]
    task = load(write(tmp_path / "a.jsonl", *rows), verifier="math")
    splits = task.splits()
    prompt, shown = splits.train[0], splits.supervision[0].answer_text
    responses = [(prompt, text, end) for text in (r"\boxed{0.25}", r"so \boxed{2/4}", shown) for end in (True, False)]
    assert [v.label for v in score_many(task, responses)] == [0, 0, 1, 0, 1, 0]
    task.close()
    assert len(task.tokenizer.encode(shown)) + 1 == task.max_new_tokens
    monkeypatch.setattr(task._judge, "submit", lambda *_response: Verdict(None, INVALID))
    assert score_many(task, [(prompt, r"\boxed{0.5}", True)]) == [Verdict(None, INVALID)]


def test_token_limits_and_charset_follow_the_data(tmp_path: Path) -> None:
    task = load(write(tmp_path / "a.jsonl", *sums(20), {"problem": "ÄB=", "answer": "-1000"}))
    assert (task.max_prompt_tokens, task.max_new_tokens) == (5, 6)
    assert task.tokenizer.decode(task.tokenizer.encode("ÄB=")) == "ÄB="
    assert load(tmp_path / "a.jsonl", max_new_tokens=50).max_new_tokens == 50


def test_the_checked_in_sample_is_what_its_script_writes() -> None:
    task = load(SAMPLE)
    assert sum(map(len, (s := task.splits(), s.train, s.heldout, s.supervision)[1:])) == 2000 and not task.warnings()
    assert SAMPLE.stat().st_size < 200 * 1024
    assert task.tokenizer.vocab_size == 64
    for prompt in task.splits().train:
        assert eval(prompt.text.removesuffix("=")) == int(prompt.answer)
    namespace: dict[str, Any] = {"__name__": "sample", "__file__": str(SAMPLE.parents[1] / "make_jsonl_sample.py")}
    exec(Path(namespace["__file__"]).read_text(encoding="utf-8"), namespace)
    assert "\n".join(namespace["lines"]()) + "\n" == SAMPLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("number", "text"),
    [("1e22", "1" + "0" * 22), ("1e-7", "0.0000001"), ("5", "5"), ("5.0", "5"), ("-2.5", "-2.5"), ("1e3", "1000")],
)
def test_a_json_number_becomes_its_digits(number: str, text: str) -> None:
    record = parse_line(f'{{"problem": "p", "answer": {number}}}'.encode())
    assert pair_of(record, ["problem"], ["answer"]).answer == text
