"""A file with every kind of line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def messy_lines() -> list[str]:
    """60 sums of rising difficulty, and between them one of each thing that can be wrong."""
    lines = [json.dumps({"problem": f"{n}+{n % 7}=", "answer": str(n + n % 7)}) for n in range(60)]
    for place, line in (
        (3, "{broken"),
        (10, '["a list"]'),
        (11, ""),
        (20, '{"answer": "1"}'),
        (21, '{"problem": "  ", "answer": "1"}'),
        (30, '{"problem": "7+7=", "answer": "\\ud800"}'),
        (40, '{"problem": "  5+5=\\n", "answer": 10}'),
        (41, '{"problem": "5+5=", "answer": 11}'),
        (45, '{"question": "100000+200000=", "gt": 300000}'),
        (46, '{"problem": "1\\u0000+1=", "answer": "2"}'),
        (50, '{"problem": "1+1=", "answer": null}'),
    ):
        lines.insert(place, line)
    return lines


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    path = tmp_path / "messy.jsonl"
    path.write_text("\n".join(messy_lines()) + "\n", encoding="utf-8")
    return path
