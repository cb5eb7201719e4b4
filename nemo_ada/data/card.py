"""The card of a prepared data set: card.json for programs, README.md for people. Nothing in it depends on when, where
or in how many attempts it was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BINS = 16  # the published filters count out of 16 responses


@dataclass(slots=True)
class StageCount:
    """Inputs of a stage, what it kept, and what it left out by kind of reason."""

    name: str
    inputs: int = 0
    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one record of the stage's journal."""
        self.inputs += 1
        if "reason" in record:
            self.left_out[record["kind"]] += 1
        else:
            self.kept += 1

    def facts(self) -> dict[str, Any]:
        """For card.json."""
        return {"inputs": self.inputs, "kept": self.kept, "left_out": dict(sorted(self.left_out.items()))}


def histogram(rates: Iterable[float]) -> list[int]:
    """Problems at 0, 1, ..., 16 of 16 (the nearest sixteenth)."""
    counts = [0] * (BINS + 1)
    for rate in rates:
        counts[int(rate * BINS + 0.5)] += 1
    return counts


def readme(card: Mapping[str, Any]) -> str:
    """README.md."""
    stages: Mapping[str, Any] = card["stages"]
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        "  data_files: dataset.jsonl",
        "---",
        f"# {card['title']}",
        "",
        f"{card['problems']} problems. Columns: `problem` (bare text: the trainer applies the chat template, once), "
        "`answer` (reference), `id`, `line` (of the source)"
        + (", `pass_rate`, and what it was measured from." if card["histogram"] else "."),
        "",
        "Every input is in dataset.jsonl or, with stage and reason, in rejected.jsonl.",
        "",
        "| stage | inputs | kept | left out |",
        "|---|---|---|---|",
    ]
    for name, count in stages.items():
        why = ", ".join(f"{kind} {number}" for kind, number in count["left_out"].items()) or "-"
        lines.append(f"| {name} | {count['inputs']} | {count['kept']} | {why} |")
    if card["histogram"]:
        lines += ["", *_histogram(card["histogram"]["measured"], card["histogram"]["kept"])]
    lines += ["", "## Settings", ""]
    lines += [f"- {name}: {_shown(value)}" for name, value in card["settings"].items()]
    return "\n".join(lines) + "\n"


def _histogram(measured: Sequence[int], chosen: Sequence[int]) -> list[str]:
    rows = [
        f"| {sixteenths}/16 | {number} | {left} |"
        for sixteenths, (number, left) in enumerate(zip(measured, chosen, strict=True))
    ]
    return ["| pass rate (nearest) | measured | kept |", "|---|---|---|", *rows]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
    return "none" if value is None else str(value)
