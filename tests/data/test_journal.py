"""A journal after a kill: what was committed is there, and nothing else."""

from __future__ import annotations

import json

import pytest

from nemo_ada.data.journal import Journal, claim
from nemo_ada.errors import InvariantError, UserError


def test_an_uncommitted_tail_vanishes(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.commit([{"n": 1}, {"n": 2}], items=3, passed=2)
    with path.open("a") as file:
        file.write('{"n": 3}\n{"n": ')
    again = Journal(path)
    assert (again.items, again.passed, again.complete) == (3, 2, False)
    assert list(again.read()) == [{"n": 1}, {"n": 2}]
    again.commit([{"n": "é\u2028"}], items=1)
    again.finish()
    assert [record["n"] for record in Journal(path).read()] == [1, 2, "é\u2028"]
    with pytest.raises(InvariantError, match="is complete"):
        Journal(path).commit([], 0)


def test_a_journal_that_was_cut_or_damaged_is_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path).commit([{"n": 1}], items=1)
    path.write_text("")
    with pytest.raises(UserError, match="is damaged"):
        Journal(path)
    (tmp_path / "j.jsonl.state.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        Journal(path)


def test_a_folder_forgets_the_leftovers_of_killed_writes_only(tmp_path):
    claim(tmp_path / "set", {"k": 1})
    for name in (".card.json.4711", "dataset.jsonl", ".hidden"):
        (tmp_path / "set" / name).touch()
    claim(tmp_path / "set", {"k": 1})
    assert {path.name for path in (tmp_path / "set").iterdir()} == {"settings.json", "dataset.jsonl", ".hidden"}
    with pytest.raises(UserError, match="k: 1 -> 2"):
        claim(tmp_path / "set", {"k": 2})
    assert json.loads((tmp_path / "set" / "settings.json").read_text()) == {"k": 1}
