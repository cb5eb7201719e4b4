"""Input files with damage of every kind, found by search: `nemo-ada data` never ends with a traceback."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_ada.lab.data.problem import compute_problem_id
from tests.fuzz.harness import NASTY_JSON, cases, command

BOM = b"\xef\xbb\xbf"

NAMES = st.sampled_from(["problem", "prompt", "question", "answer", "gt", "id", "\ud800", "x", ""])
LINES = st.one_of(
    st.dictionaries(NAMES, NASTY_JSON, max_size=4).map(lambda record: json.dumps(record).encode()),
    st.fixed_dictionaries({"problem": st.text(min_size=1, max_size=9), "answer": NASTY_JSON}).map(
        lambda record: json.dumps(record).encode()
    ),
    NASTY_JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=30),
    st.sampled_from(
        [b"", b"\r", b"[" * 50_000, b'{"problem": ' + b"9" * 5000 + b"}", BOM, b'{"problem": "a", "a', b"nul"]
    ),
)


def run(*words) -> tuple[int, str]:
    """Exit code and what was printed."""
    ended = command([str(word) for word in words], "data sets")
    return ended.code, ended.out + ended.err


def prepare(source, out, *more) -> tuple[int, str]:
    return run("data", "prepare", source, "--out", out, "--verifier", "exact", *more)


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def check(folder, data: bytes) -> str:
    """The promises for one JSONL file; what was printed."""
    source, out = folder / "input.jsonl", folder / "set"
    shutil.rmtree(out, ignore_errors=True)
    source.write_bytes(data)
    code, printed = prepare(source, out)
    assert code in (0, 2), printed
    wanted = [n for n, line in enumerate(data.removeprefix(BOM).split(b"\n"), start=1) if line.strip()]
    kept = records(out / "dataset.jsonl") if code == 0 else []
    rejected = records(out / "rejected.jsonl")
    assert sorted(record["line"] for record in kept + rejected) == wanted
    assert all(record["stage"] and record["reason"] and len(record.get("excerpt", "")) <= 200 for record in rejected)
    if code == 0:
        card = json.loads((out / "card.json").read_text(encoding="utf-8"))
        assert card["problems"] == len(kept) > 0
        assert card["stages"]["read"]["inputs"] == len(wanted)
    else:
        assert "no problem is left" in printed
    return printed


@pytest.mark.long
@cases(20)
@given(st.lists(LINES, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans())
@example([], b"\n", False, False)
@example([], b"\n", True, True)
def test_any_lines(tmp_path, lines, end, bom, closed):
    check(tmp_path, (BOM if bom else b"") + end.join(lines) + (end if closed else b""))


@pytest.mark.parametrize(("data", "said"), [
    (b'{"problem": NaN, "answer": 1}', "its 'problem' is nan, not text or a finite number"),
    (b'{"problem": "a", "answer": 1e999}', "its 'answer' is inf"),
    (b'{"problem": [{"role": "user"}], "answer": 1}', "its 'problem' has a message that is NoneType, not text"),
    (b'{"\\ud800": 1}', "no prompt field; it has ?, and none of responses_create_params.input, problem, prompt"),
    (b'{"problem": ' + b"7" * 5000 + b', "answer": 1}', "a number with thousands of digits"),
    ('{"problem": "a", "answer": 1}'.encode("utf-16"), "UTF-16?"),
    (b"[" * 200_000, "nested too deeply"),
    (b"problem,answer\n1+1,2\n", "not JSON"),
])  # fmt: skip
def test_why_a_line_is_refused(tmp_path, data, said):
    check(tmp_path, data)
    assert said in records(tmp_path / "set" / "rejected.jsonl")[0]["reason"]


@pytest.mark.parametrize(
    "line",
    [b"{", b"[1]", b'{"pass_rate": 0.5}', b'{"id": "x"}', b'{"problem": 3, "pass_rate": 0.5}',
     b'{"id": "x", "pass_rate": "half"}', b'{"id": "x", "pass_rate": true}', b'{"id": "x", "pass_rate": NaN}',
     b'{"id": ["x"], "pass_rate": 0.5}'],
)  # fmt: skip
def test_a_line_of_pass_rates_that_cannot_be_used_is_named(tmp_path, line):
    source, rates = tmp_path / "input.jsonl", tmp_path / "rates.jsonl"
    source.write_text('{"problem": "a", "answer": 1}\n')
    rates.write_bytes(BOM + json.dumps({"id": compute_problem_id("a"), "pass_rate": 0.25}).encode() + b"\n" + line)
    code, printed = prepare(source, tmp_path / "set", "--pass-rates", rates)
    assert code == 2 and "rates.jsonl cannot be used" in printed


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    code, printed = prepare(tmp_path / "folder.jsonl", tmp_path / "set")
    assert code == 2 and "folder.jsonl holds no data file" in printed
    code, printed = prepare(tmp_path / "input\\[/b].jsonl", tmp_path / "set")
    assert code == 2 and "[/b].jsonl" in printed
    strange = tmp_path / "[red]in[" / "b]put.jsonl"
    strange.parent.mkdir()
    strange.write_text('{"problem": "a", "answer": 1}\n')
    code, printed = prepare(strange, tmp_path / "[" / "red] set")
    assert code == 0 and "[/red] set: 1 problems" in printed.replace("\n", "")


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"benchmarks": 3}', '{"benchmarks": {"a": {}}, "settings": {}}', '"x"']
)
def test_a_damaged_evaluation_is_a_mistake_of_one_line(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    code, printed = run("eval", "compare", tmp_path, tmp_path)
    assert code == 2 and "holds no complete evaluation" in printed and len(printed.splitlines()) == 1
