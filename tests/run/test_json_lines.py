"""The one reader of JSON-lines files: it counts lines as an editor does and says what is wrong with each."""

from __future__ import annotations

import pytest

from nemo_ada.run.json_lines import DamagedLine, read_records

CONTENT = b'\xef\xbb\xbf{"a": 1}\n\n{"b": 2}\r\n[1]\n\xff\nnull\n' + b"[" * 100_000 + b'\n{"a": "1\x002"}\n{"c": 3'


def test_objects_come_with_their_line_numbers_and_damage_with_its_reason(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(CONTENT)
    for source in (path, CONTENT):
        damaged = {}
        assert list(read_records(source, on_damage=damaged.__setitem__)) == [(1, {"a": 1}), (3, {"b": 2})]
        assert list(damaged) == [4, 5, 6, 7, 8, 9]
        assert damaged[4] == "a JSON list, not an object" and damaged[5] == "not UTF-8"
        assert damaged[7] == "nested too deeply" and damaged[8].startswith("holds NUL bytes")


def test_damage_is_an_error_where_nobody_asks_for_it():
    with pytest.raises(DamagedLine, match="line 4: a JSON list"):
        list(read_records(CONTENT))
