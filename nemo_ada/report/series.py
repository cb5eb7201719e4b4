"""What a figure of the report is, and how records become its lines: means over blocks of steps, and rolling means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 100
TREND = 9  # points of the rolling mean; a line with less than twice as many points has none
AXES = {  # what a run pays for (algorithm.md section 11)
    "step": "training steps",
    "total/responses": "responses drawn",
    "total/tokens": "generated tokens",
    "total/rows": "update rows",
    "total/live_rows": "update rows with non-zero advantage",
    "total/seconds": "seconds (without evaluation)",
}
NOT_RECORDED = "Not recorded by these runs."
Row = tuple[int, Sequence[float | str]]  # run and values


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a figure. `draw` gets matplotlib's axes and the runs' names; `summary` is read aloud."""

    title: str
    x_label: str
    summary: str
    draw: Callable[[Axes, Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels with one caption, and the table of their values: `columns` and `rows`.

    Without panels the caption says what is missing. legend: whether the panels show runs by colour.
    """

    key: str
    title: str
    caption: str
    panels: Sequence[Panel] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    legend: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts. The first column names the rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def turned(self) -> Grid:
        """Rows as columns."""
        first, *others = zip(self.columns, *self.rows, strict=True)
        return Grid(first, others)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Steps or evaluations in blocks of `size`; step_N holds their steps."""

    step_N: np.ndarray
    size: int

    @classmethod
    def of(cls, step_N: np.ndarray, max_blocks: int = MAX_POINTS) -> Blocks:
        """The smallest equal blocks that are at most max_blocks."""
        return cls(step_N, max(1, -(-len(step_N) // max_blocks)))

    @property
    def starts(self) -> np.ndarray:
        """Index of each block's first step."""
        return np.arange(0, len(self.step_N), self.size)

    @property
    def ends(self) -> np.ndarray:
        """Index of each block's last step."""
        return np.minimum(self.starts + self.size, len(self.step_N)) - 1

    def mean(self, value_N: np.ndarray) -> np.ndarray:
        """Mean of the finite values of each block, nan where there is none."""
        if self.size == 1 or not len(value_N):
            return value_N
        finite = np.isfinite(value_N)
        total = np.add.reduceat(np.where(finite, value_N, 0.0), self.starts)
        count = np.add.reduceat(finite.astype(np.float64), self.starts)
        return ratio(total, count)

    def labels(self) -> list[str]:
        """The steps of each block: '7' or '11-20'."""
        ranges = zip(self.step_N[self.starts], self.step_N[self.ends], strict=True)
        return [f"{first:.0f}" if first == last else f"{first:.0f}-{last:.0f}" for first, last in ranges]


def trend(value_N: np.ndarray) -> np.ndarray | None:
    """Centred rolling mean over TREND points (fewer at the ends); nan where the value is, None for short lines."""
    if len(value_N) < 2 * TREND:
        return None
    finite = np.isfinite(value_N)
    total = np.convolve(np.where(finite, value_N, 0.0), np.ones(TREND), mode="same")
    count = np.convolve(finite.astype(np.float64), np.ones(TREND), mode="same")
    return np.where(finite, ratio(total, count), np.nan)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below; nan where below is not positive."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def span(values: Sequence[np.ndarray], *, zero: bool = False) -> tuple[float, float]:
    """The range of all finite values with some room; it starts at 0 if asked and nothing is negative."""
    merged = np.concatenate([np.ravel(array) for array in values]) if values else np.empty(0)
    merged = merged[np.isfinite(merged)]
    if not len(merged):
        return 0.0, 1.0
    low, high = float(merged.min()), float(merged.max())
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    if zero and low >= 0:
        return 0.0, high + (high * 0.06 or 1.0)
    return low - room, high + room


def number_text(value: float) -> str:
    """A value in a table: four significant digits, thousands grouped."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def tick_text(value: float) -> str:
    """A short label of an axis: 5e-5, 0.25, 300, 12k, 1.5M."""
    for size, unit, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}".replace("e-0", "e-")
