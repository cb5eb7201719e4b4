"""A number on a first page comes from data or names its file; a page that says another number fails here."""

from __future__ import annotations

import json
from pathlib import Path

import claims
import numpy as np
import pytest

from nemo_ada.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "recipes/guide/choosing.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_a_page_has_a_source(page: str) -> None:
    assert list(claims.problems(page, (ROOT / page).read_text(encoding="utf-8"), claims.claims())) == []


def test_a_number_without_a_source_is_found() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    entries = claims.claims()
    assert len(list(claims.problems("README.md", text + "\nIt is 3.7 times as fast.\n", entries))) == 1
    other = text.replace("+.030 ± .007", "+.040 ± .007")
    assert any("+.030" in line for line in claims.problems("README.md", other, entries))


T_OF_TWELVE = 2.200985  # quantile .975 of Student's t with eleven degrees of freedom


def gains(method: str, axis: str) -> list[float]:
    """Read the raw table anew: accuracy over a cost less GRPO's on the same base model, up to the common cost."""
    found: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
    with (ROOT / "recipes/results/leaderboard.jsonl").open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["task"] in ("sudoku6", "sudoku6e") and "points" in line and line["updates"] == 4:
                points = line["points"]
                found.setdefault(line["method"], {})[line["base"]] = (points[axis], points["accuracy"])
    values = []
    for base, mine in found[method].items():
        other = found["grpo4"][base]
        grid = np.linspace(0.0, min(mine[0][-1], other[0][-1]), 2001)
        values.append(float((np.interp(grid, *mine) - np.interp(grid, *other)).mean()))
    return values


@pytest.mark.parametrize(
    ("method", "axis"),
    [("balance", "responses"), ("single_value", "responses"), ("single_value", "prompts"),
     ("value4", "responses"), ("dapo", "responses"), ("balance", "updates")],
)  # fmt: skip
def test_a_gain_of_the_first_page_comes_out_of_the_raw_table_by_another_way(method: str, axis: str) -> None:
    own = np.array(gains(method, axis))
    assert len(own) == 12
    mean, half = claims.value(f"sudoku, twelve bases/four updates/{method}/area at equal {axis}:interval").split(" ± ")
    assert float(mean) == pytest.approx(own.mean(), abs=0.0011)
    assert float(half) == pytest.approx(T_OF_TWELVE * own.std(ddof=1) / 12**0.5, abs=0.0011)


def test_a_claim_about_a_row_that_nobody_has_is_refused() -> None:
    with pytest.raises(UserError, match="no such row"):
        claims.value("sudoku/four updates/magic/accuracy:mean")
