"""What a figure is, before it is drawn: panels of lines, bars, ranges or shades, and the table of their values.

svg.py and png.py draw the same descriptions, page.py writes the table beside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Okabe and Ito's palette without its yellow, which white paper swallows; black is the ink colour of the page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PART_COLOURS = ("#56b4e9", "#e69f00", "#2cbf97", "#cc79a7", "#d9853b", "#9aa5b1")  # parts of bars, as in page.css
MARKERS = "osD^vPX"  # matplotlib's names; svg.py has the same shapes
DASHES = ((), (7, 3), (2, 2.5), (9, 3, 2, 3))  # with seven colours: 28 runs before a style comes again


def marker_of(run: int) -> int:
    """Which marker a run has: another one when its colour comes again."""
    return (run + run // len(COLOURS)) % len(MARKERS)


@dataclass(frozen=True, slots=True)
class Line:
    """One run in one panel; `labels` says where each point is ('step 5'). nan in y breaks the line.

    With a `trend` (rolling mean of y) that is the line, and y is drawn pale behind it.
    """

    run: int
    x: np.ndarray
    y: np.ndarray
    labels: Sequence[str]
    trend: np.ndarray | None = None

    @property
    def shown(self) -> np.ndarray:
        """What the line and its markers follow."""
        return self.y if self.trend is None else self.trend


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Curves over a common axis."""

    title: str
    x_label: str
    lines: Sequence[Line]
    y_range: tuple[float, float]
    ends: bool = False  # mark where each line starts and ends


@dataclass(frozen=True, slots=True)
class BarPanel:
    """One stacked bar per run; value_RK of run R and part K."""

    title: str
    x_label: str
    parts: Sequence[str]
    runs: Sequence[int]
    value_RK: np.ndarray
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """p50 to p95 of a duration, and the plan's prediction (nan without one)."""

    run: int
    p50: float
    p95: float
    planned_p50: float = float("nan")
    planned_p95: float = float("nan")


@dataclass(frozen=True, slots=True)
class RangePanel:
    """One range per run."""

    title: str
    x_label: str
    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class HeatPanel:
    """Shares of one run: share_BC of bin B (from below) and column C, from left_C to right_C; `labels` name columns."""

    title: str
    x_label: str
    y_label: str
    run: int
    bins: Sequence[str]
    left_C: np.ndarray
    right_C: np.ndarray
    share_BC: np.ndarray
    labels: Sequence[str]


# Upper ends of a heat map's shades, the same in all of them, so that panels can be compared
SHADES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


def shade(share_BC: np.ndarray) -> np.ndarray:
    """Which shade each share has; -1 for none at all."""
    return np.where(share_BC > 0, np.minimum(np.searchsorted(SHADES, share_BC), len(SHADES) - 1), -1)


Panel = LinePanel | BarPanel | RangePanel | HeatPanel


Row = tuple[int, Sequence[float | str]]  # run and values
NOT_RECORDED = "Not recorded by these runs."


@dataclass(frozen=True, slots=True)
class Table:
    """Values of a figure: one group of rows per run, numbers or texts."""

    columns: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts: columns, one row per run."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels with one caption and one table. Without panels the caption says what is missing."""

    key: str
    title: str
    caption: str
    panels: Sequence[Panel]
    table: Table


def text_of(value: float | str) -> str:
    """A value of a table or tooltip: four significant digits, thousands grouped."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """At most `count` + 1 round numbers within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A short label: 5e-5, 0.25, 300, 12k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return re.sub(r"e-0", "e-", f"{value:.4g}")


def span(values: Sequence[np.ndarray], *, zero: bool) -> tuple[float, float]:
    """The range of all finite values with some room; it starts at 0 if asked and nothing is negative."""
    finite = [array[np.isfinite(array)] for array in values]
    merged = np.concatenate(finite) if finite else np.empty(0)
    if not len(merged):
        return 0.0, 1.0
    low, high = float(merged.min()), float(merged.max())
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    if zero and low >= 0:
        return 0.0, high + (high * 0.06 or 1.0)
    return low - room, high + room
