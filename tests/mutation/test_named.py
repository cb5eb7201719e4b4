"""The mutants of named*.json fit the code as it is, so that `make mutants-named` tries every one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for file in sorted(Path(__file__).parent.glob("named*.json")) for row in json.loads(file.read_text())]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_mutant_has_one_place_and_tests_that_exist(row):
    assert (ROOT / row["file"]).read_text(encoding="utf-8").count(row["old"]) == 1 and row["old"] != row["new"]
    assert row["tests"] and all((ROOT / test.partition("::")[0]).exists() for test in row["tests"])
