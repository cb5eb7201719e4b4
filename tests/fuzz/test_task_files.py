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
from nemo_ada.tasks.protocol import score_many
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.verify.verdict import Verdict
from tests.fuzz.harness import COUNTED, VALUES, attempt, cases, deadline

NAMES = st.sampled_from(["problem", "prompt", "question", "answer", "gt", "Problem", "x", ""])
FINE = [{"problem": f"{i}+{i}=", "answer": 2 * i} for i in range(30)]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dumped(record):
    return json.dumps(record).encode()


LINES = st.one_of(
    st.sampled_from(FINE).map(dumped),
    st.sampled_from(FINE).map(dumped),
    st.fixed_dictionaries({"problem": VALUES, "answer": VALUES}).map(dumped),
    st.dictionaries(NAMES, VALUES, max_size=4).map(dumped),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=40),
    st.sampled_from([1000, 200_000]).map(lambda n: dumped({"problem": "1" * n, "answer": "1"})),
    st.sampled_from([10, 100_000]).map(lambda n: b'{"problem": ' + b"[" * n),
    st.sampled_from([10, 10_000]).map(lambda n: b'{"problem": "x", "answer": ' + b"9" * n + b"}"),
)


@st.composite
def files(draw):
    start = [dumped(row) for row in FINE] if draw(st.booleans()) else []
    lines = [*start, *draw(st.lists(LINES, max_size=8))]
    data = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b"\n\n"])).join(lines)
    damaged = [
        *[data] * 3,
        b"\xef\xbb\xbf" + data,
        data.decode("utf-8", "replace").encode("utf-16"),
        data.decode("utf-8", "replace").encode("utf-32"),
        data[: draw(st.integers(0, len(data)))],
        data.replace(b"1", b"\0"),
        b"\x1f\x8b\x08" + data,
    ]
    return draw(st.sampled_from(damaged))


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
            assert score_many(task, [(prompt, prompt.answer, True)]) == [Verdict(1.0)]
    left_out = list(task.malformed)
    assert left_out == sorted(set(left_out))
    assert all(len(text) < 5000 for text in task.warnings())
