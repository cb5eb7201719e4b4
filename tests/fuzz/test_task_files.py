"""Data files of the jsonl task: encodings, line ends, huge lines, wrong columns, damage.

A file gives a task whose every prompt and answer can be encoded, or a UserError that names the file; a bad line is left
out and counted by its number.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.tasks.jsonl import JsonlTask
from nemo_ada.tasks.settings import JsonlSettings
from tests.fuzz.harness import COUNTED, VALUES, attempt, cases, deadline

NAMES = st.sampled_from(["problem", "prompt", "question", "answer", "gt", "Problem", "x", ""])
FINE = [{"problem": f"{i}+{i}=", "answer": 2 * i} for i in range(30)]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@st.composite
def rows(draw):
    match draw(st.sampled_from(["fine", "fine", "values", "record", "text", "binary", "huge", "deep", "digits"])):
        case "fine":
            return json.dumps(draw(st.sampled_from(FINE))).encode()
        case "values":
            record = {"problem": draw(VALUES), "answer": draw(VALUES)}
        case "record":
            record = draw(st.dictionaries(NAMES, VALUES, max_size=4))
        case "text":
            return draw(st.text(max_size=40)).encode("utf-8", "surrogatepass")
        case "binary":
            return draw(st.binary(max_size=40))
        case "huge":
            return json.dumps({"problem": "1" * draw(st.sampled_from([1000, 200_000])), "answer": "1"}).encode()
        case "deep":
            return b'{"problem": ' + b"[" * draw(st.sampled_from([10, 100_000]))
        case "digits":
            return b'{"problem": "x", "answer": ' + b"9" * draw(st.sampled_from([10, 10_000])) + b"}"
    return json.dumps(record, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def files(draw):
    start = [json.dumps(row).encode() for row in FINE] if draw(st.booleans()) else []
    found = [*start, *draw(st.lists(rows(), max_size=8))]
    data = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b"\n\n"])).join(found)
    match draw(st.sampled_from(["no", "no", "no", "bom", "utf16", "utf32", "cut", "nul", "gzip"])):
        case "bom":
            return b"\xef\xbb\xbf" + data
        case "utf16" | "utf32" as name:
            return data.decode("utf-8", "replace").encode(f"utf-{name[3:]}", "replace")
        case "cut":
            return data[: draw(st.integers(0, len(data)))]
        case "nul":
            return data.replace(b"1", b"\0")
        case "gzip":
            return b"\x1f\x8b\x08" + data
    return data


@given(data=files(), verifier=st.sampled_from(["exact", "math"]), limit=st.sampled_from([1, 4, 256, 32_768]))
@cases(60)
def test_a_file_is_a_task_or_an_error_that_names_it(data, verifier, limit):
    COUNTED["task files"] += 1
    path = Path("data.jsonl")
    path.write_bytes(data)
    settings = JsonlSettings(path=str(path), verifier=verifier, max_prompt_tokens=limit)
    with deadline():
        task, message = attempt(lambda: JsonlTask(settings))
        splits, message = (None, message) if task is None else attempt(task.splits)
    if message is not None:
        assert "data.jsonl" in message or "character" in message
        assert message.isprintable(), "one line that any terminal shows"
        assert len(message) < 3000
        return
    for prompt in splits.train + splits.heldout:
        assert len(task.tokenizer.encode(prompt.text)) == len(prompt.text) <= limit
        prompt.text.encode("utf-8"), prompt.answer.encode("utf-8")
        if verifier == "exact":
            assert task.score(prompt, prompt.answer, True) == 1.0
    left_out = list(task.malformed)
    assert left_out == sorted(set(left_out))
    assert all(len(text) < 5000 for text in task.warnings())
