"""The picture of README.md shows the committed rows, on a light and on a dark page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import front_picture
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
T_OF_TWELVE = 2.200985  # quantile .975 of Student's t with eleven degrees of freedom


def lines_of(svg: str) -> dict[str, np.ndarray]:
    """Return name of a line -> its points."""
    found = re.findall(r'<g id="(\w+-\d)">\s*<path d="([^"]+)"', svg)
    return {name: np.array([float(word) for word in re.findall(r"-?[\d.]+", path)]) for name, path in found}


@pytest.mark.parametrize("theme", front_picture.THEMES)
def test_the_committed_picture_is_made_from_the_committed_rows(tmp_path: Path, theme: str) -> None:
    made = tmp_path / "made.svg"
    front_picture.draw(theme, [front_picture.panel(axis) for axis in front_picture.PANELS], made)
    committed = (front_picture.FIGURES / f"front_{theme}.svg").read_text(encoding="utf-8")
    mine, theirs = lines_of(made.read_text(encoding="utf-8")), lines_of(committed)
    assert mine.keys() == theirs.keys() and len(mine) == 8
    for name, points in mine.items():
        assert theirs[name] == pytest.approx(points, abs=0.5), name
    assert all(colour in committed for colour in front_picture.THEMES[theme][2].split())


@pytest.mark.parametrize("axis", front_picture.PANELS)
def test_lines_and_bands_come_out_of_the_raw_rows_by_another_way(axis: str) -> None:
    rows: dict[tuple[str, int], dict[str, list[float]]] = {}
    with (ROOT / "recipes/results/leaderboard.jsonl").open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["task"] in ("sudoku6", "sudoku6e") and line["updates"] == 4 and "points" in line:
                rows[line["method"], line["base"]] = line["points"]
    bases = sorted(base for method, base in rows if method == "grpo4")
    assert len(bases) == 12
    for method, drawn in front_picture.panel(axis).items():
        at = drawn.x[-1]  # the right end of the picture
        own, grpo = (
            [float(np.interp(at, rows[name, base][axis], rows[name, base]["accuracy"])) for base in bases]
            for name in (method, "grpo4")
        )
        assert drawn.mean[-1] == pytest.approx(sum(own) / 12)
        apart = [a - b for a, b in zip(own, grpo, strict=True)]
        assert drawn.half[-1] == pytest.approx(T_OF_TWELVE * float(np.std(apart, ddof=1)) / 12**0.5, rel=1e-5, abs=1e-9)


def test_other_rows_make_another_picture(tmp_path: Path) -> None:
    panels = [front_picture.panel(axis) for axis in front_picture.PANELS]
    line = panels[0]["balance"]
    panels[0] = panels[0] | {"balance": replace(line, mean=line.mean + 0.05)}
    front_picture.draw("light", panels, tmp_path / "made.svg")
    mine = lines_of((tmp_path / "made.svg").read_text(encoding="utf-8"))["balance-0"]
    theirs = lines_of((front_picture.FIGURES / "front_light.svg").read_text(encoding="utf-8"))["balance-0"]
    assert mine.shape != theirs.shape or np.abs(mine - theirs).max() > 1.0
