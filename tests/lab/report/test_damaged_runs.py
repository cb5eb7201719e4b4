"""Run directories with damage of every kind, found by search: the report never ends with a traceback.

Drawing takes a second per page, so only the search over records draws.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run

from nemo_ada.lab.report.run import read_usable
from tests.fuzz.harness import NASTY_JSON, cases, command

pytestmark = pytest.mark.long

FILES = ("metrics.jsonl", "evaluations.jsonl", "status.json", "config.yaml")
BROKEN = re.compile(r'\s(?:d|x|y|cx|cy|r|width|height|viewBox|transform)="[^"]*(?:nan|inf)', re.IGNORECASE)


def run_report(*words) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    ended = command(["report", *map(str, words)], "reports")
    return ended.code, ended.out + ended.err


def check(folder, *, figures: bool = False) -> str:
    """The command's promises; the page, or an empty text where nothing was usable."""
    out = folder.parent / "page.html"
    out.unlink(missing_ok=True)
    code, printed = run_report(folder, "--out", out, *([] if figures else ["--no-figures"]))
    assert "Traceback" not in printed
    if code == 2:
        assert not out.exists()
        return ""
    assert code == 0, printed
    html = out.read_text(encoding="utf-8")
    assert BROKEN.search(html) is None
    assert html.count("<script") == 0
    (run,) = read_usable([folder])[0]
    for note in run.notes:
        assert re.match(r"[a-z]+\.(jsonl|json|yaml)[: ]", note)
    assert html.count("<li>run: ") >= len(run.notes)
    assert len(re.findall(r"^note: run: ", printed, re.MULTILINE)) >= len(run.notes)
    return html


@pytest.fixture
def fresh(tmp_path):
    """Makes the same good run again and again."""
    good = make_run(tmp_path / "good", 6, every=3)

    def again():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return shutil.copytree(good, tmp_path / "run")

    return again


def mutated(data: bytes, draw) -> bytes:
    """One to three kinds of damage between two places."""
    for _ in range(draw(st.integers(1, 3))):
        a, b = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
        noise = draw(st.binary(max_size=30))
        whole = [data[:a], data[b:] + data[:a], data.decode("latin-1").encode("utf-16"), data.replace(b"\n", b"\r\n")]
        middles = [b"", noise, b"\n" + noise + b"\n", data[a:b] * 2, b"\0" * (b - a)]
        data = draw(st.sampled_from([*whole, *(data[:a] + middle + data[b:] for middle in middles)]))
    return data


@cases(8)
@given(st.data(), st.sampled_from(FILES))
def test_any_damage_to_the_bytes_of_a_file(fresh, undrawn, data, name):
    folder = fresh()
    path = folder / name
    path.write_bytes(mutated(path.read_bytes(), data.draw))
    check(folder)


@cases(2)  # the first one is always the plainest
@given(st.data())
def test_any_values_in_records(fresh, data):
    folder = fresh()
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        records = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for record in data.draw(st.lists(st.sampled_from(records), max_size=4, unique_by=id)):
            for key in data.draw(st.lists(st.sampled_from(sorted(record)), max_size=6, unique=True)):
                if data.draw(st.booleans()):
                    record[key] = data.draw(NASTY_JSON)
                else:
                    del record[key]
            record |= data.draw(st.dictionaries(st.one_of(st.text(max_size=9), PASSES), NASTY_JSON, max_size=3))
        (folder / name).write_text("\n".join(map(json.dumps, records)) + "\n")
    check(folder)


PASSES = st.sampled_from(
    ["val/pass@", "val/pass@x", "val/pass@0", "val/pass@1/../../../x", "val/accuracy", "val/pass@7"]
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\0" * 1000, "the first is line 1"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not UTF-8"),
        ('{"step": 1}\n'.encode("utf-16"), "UTF-16?"),
        (b'{"step": NaN}\n{"loss": 1}\n', "2, the first is line 1 (its step is 'nan')"),
    ],
)
def test_a_file_with_nothing_usable_ends_with_2_and_its_reason(tmp_path, content, said):
    folder = make_run(tmp_path / "run", 3)
    (folder / "metrics.jsonl").write_bytes(content)
    code, printed = run_report(folder, "--out", tmp_path / "page.html")
    assert code == 2 and "holds no usable step" in printed and said in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(("make", "said"), [
    (lambda path: None, "is no folder; name a run directory"),
    (lambda path: path.mkdir(), "does not exist; has the run made a step?"),
    (lambda path: path.write_text("x"), "is no folder; name a run directory"),
    (lambda path: (path / "metrics.jsonl").mkdir(parents=True), "does not exist; has the run made a step?"),
    (lambda path: make_run(path / "inside", 2), "name the runs in it, such as"),
])  # fmt: skip
def test_a_folder_that_is_no_run_ends_with_2_and_what_to_do(tmp_path, make, said):
    make(tmp_path / "run")
    code, printed = run_report(tmp_path / "run", "--out", tmp_path / "page.html")
    assert code == 2 and said in printed
    assert len(printed.splitlines()) == 1 and not (tmp_path / "page.html").exists()


def test_one_unusable_run_among_others_is_left_out_and_named(tmp_path, undrawn):
    good, bad, empty = make_run(tmp_path / "good", 3), make_run(tmp_path / "bad", 3), tmp_path / "empty"
    empty.mkdir()
    (bad / "metrics.jsonl").write_bytes(b"\xff\n\xfe\n")
    code, printed = run_report(good, bad, empty, "--out", tmp_path / "page.html", "--no-figures")
    assert code == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    for text in (html, printed):
        assert "damaged lines are left out: 2, the first is line 1 (not UTF-8)" in text
        assert re.search(r"left out: .*empty.metrics\.jsonl does not exist", text)
    assert run_report(good, tmp_path / "absent", "--out", tmp_path / "page.html")[0] == 2
