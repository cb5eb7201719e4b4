"""The picture of README.md shows the committed data, on a light and on a dark page."""

from __future__ import annotations

import re
from pathlib import Path

import front_picture
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def lines_of(svg: str) -> dict[str, np.ndarray]:
    """Return name of a line -> its points."""
    found = re.findall(r'<g id="(\w+-\d)">\s*<path d="([^"]+)"', svg)
    return {name: np.array([float(word) for word in re.findall(r"-?[\d.]+", path)]) for name, path in found}


@pytest.mark.parametrize("theme", front_picture.THEMES)
def test_the_committed_picture_is_made_from_the_committed_data(tmp_path: Path, theme: str) -> None:
    made = tmp_path / "made.svg"
    front_picture.draw(theme, (front_picture.zero_signal(), front_picture.accuracy()), made)
    committed = (front_picture.FIGURES / f"front_{theme}.svg").read_text(encoding="utf-8")
    mine, theirs = lines_of(made.read_text(encoding="utf-8")), lines_of(committed)
    assert mine.keys() == theirs.keys() and len(mine) == 6
    for name, points in mine.items():
        assert theirs[name] == pytest.approx(points, abs=0.5), name
    assert all(colour in committed for colour in front_picture.THEMES[theme][2].split())


def test_other_data_make_another_picture(tmp_path: Path) -> None:
    signal, accuracy = front_picture.zero_signal(), front_picture.accuracy()
    x, y = signal["ada_seq_lean"]
    front_picture.draw("light", (signal | {"ada_seq_lean": (x, y + 0.05)}, accuracy), tmp_path / "made.svg")
    mine = lines_of((tmp_path / "made.svg").read_text(encoding="utf-8"))["ada_seq_lean-0"]
    theirs = lines_of((front_picture.FIGURES / "front_light.svg").read_text(encoding="utf-8"))["ada_seq_lean-0"]
    assert mine.shape != theirs.shape or np.abs(mine - theirs).max() > 1.0
