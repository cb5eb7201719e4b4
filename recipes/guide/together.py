"""Writes the tables of together.md from together.yaml: `python recipes/guide/together.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE, ROWS = HERE / "together.md", HERE / "together.yaml"
MARKS = ("<!-- recipes/guide/together.py writes this -->\n", "<!-- up to here -->\n")
RAN = ("rehearsed", "tested")
STATES = (*RAN, "should work", "refused", "read only", "not together", "other trainers", "not there")


def on_main(row: Mapping[str, Any]) -> str:
    """The row's state on NeMo-RL's main."""
    return str(row.get("main") or ("should work" if row["v0.7.0"] in RAN else row["v0.7.0"]))


def evidence(row: Mapping[str, Any]) -> str:
    """What the last column says: the rehearsal, the tests, the refused overrides, and the remark."""
    parts = []
    if "command" in row:
        parts.append(f"{row['date']}: `{row['command'].removeprefix('nemo-ada ')}`")
    for test in row.get("tests", ()):
        path, _, name = test.partition("::")
        parts.append(f"`{name}` in `{path}`" if name else f"`{path}`")
    if "refuse" in row:
        parts.append(f"`{row['refuse'][0]}`")
    parts += [f"instead: {row['instead']}"] if "instead" in row else []
    parts += [row["why"]] if "why" in row else []
    return "; ".join(parts)


def tables() -> str:
    """All sections, as Markdown."""
    text = []
    for section in yaml.safe_load(ROWS.read_text(encoding="utf-8")):
        lines = [f"## {section['section']}\n", "| feature | v0.7.0 | main | evidence |", "|---|---|---|---|"]
        lines += [
            f"| {row['feature']} | {row['v0.7.0']} | {on_main(row)} | {evidence(row)} |" for row in section["rows"]
        ]
        text.append("\n".join(lines) + "\n")
    return "\n".join(text)


def page(old: str) -> str:
    """The page with new tables between the marks."""
    before, _, rest = old.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{tables()}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
