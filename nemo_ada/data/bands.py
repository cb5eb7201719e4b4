"""Difficulty bands: which measured pass rates stay in a training set (recipes.md, "Data and evaluation")."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.errors import UserError

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PassRateBand:
    """Pass rates from low to high, both included, `low` left out where `above` is set."""

    name: str
    low: float
    high: float
    above: bool = True

    def holds(self, rate: float) -> bool:
        """Whether this pass rate stays."""
        return (rate > self.low if self.above else rate >= self.low - ROUNDING) and rate <= self.high + ROUNDING

    def __str__(self) -> str:
        return f"{self.low:g} {'<' if self.above else '<='} pass rate <= {self.high:g}"


NAMED = {
    band.name: band
    for band in (
        PassRateBand("v1", 0.0, 1.0),  # drop 0 of 16
        PassRateBand("v3", 0.0, 0.375),  # drop 0 of 16 and what is above 6 of 16
        PassRateBand("easy", 0.0, 0.313),  # 1 to 5 of 16
        PassRateBand("hard", 0.0, 0.125),  # 1 or 2 of 16
    )
}


def parse_band(text: str) -> PassRateBand:
    """A named band, or `low,high` (both included). Raises UserError for anything else."""
    if text in NAMED:
        return NAMED[text]
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        known = "; ".join(f"{name}: {band}" for name, band in NAMED.items())
        raise UserError(f"--band={text}: give a name ({known}) or two numbers such as 0.1,0.9") from None
    if not 0.0 <= low <= high <= 1.0:
        raise UserError(f"--band={text}: the numbers must be ordered and between 0 and 1, such as 0.1,0.9")
    return PassRateBand(text, low, high, above=False)
