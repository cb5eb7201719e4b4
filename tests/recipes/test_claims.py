"""A number on a first page comes from data or names its file; a page that says another number fails here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nemo_ada.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes" / "benchmarks"))
import claims  # noqa: E402

PAGES = ("README.md", "recipes/guide/choosing.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_a_page_has_a_source(page: str) -> None:
    assert list(claims.problems(page, (ROOT / page).read_text(encoding="utf-8"), claims.claims())) == []


def test_a_number_without_a_source_is_found() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    entries = claims.claims()
    assert len(list(claims.problems("README.md", text + "\nIt is 3.7 times as fast.\n", entries))) == 1
    other = text.replace("+.030 ± .013", "+.040 ± .013")
    assert any("+.030" in line for line in claims.problems("README.md", other, entries))


def test_bases_as_the_sample_give_wider_intervals_than_seeds() -> None:
    where = "sudoku/four updates/single_value/area at equal responses"
    mean, half = claims.value(f"{where}:interval").split(" ± ")
    of_bases = claims.value(f"{where}:by_base").split(" ± ")
    assert of_bases[0] == mean
    assert float(of_bases[1]) > 5 * float(half)


def test_a_claim_about_a_row_that_nobody_has_is_refused() -> None:
    with pytest.raises(UserError, match="no such row"):
        claims.value("sudoku/four updates/magic/responses to 1:ratio")
