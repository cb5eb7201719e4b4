"""What a figure of the report consists of, and the arithmetic of its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

MAX_POINTS = 100
TREND = 9  # points of the rolling mean; a line with less than twice as many points has none
AXES = {  # what a run pays for (algorithm.md section 11)
    "step": "training steps",
    "total/responses": "responses drawn",
    "sum/ada/prompts_drawn": "prompts",
    "sum/train/updates": "updates",
    "total/tokens": "generated tokens",
    "total/rows": "update rows",
    "total/live_rows": "update rows with non-zero advantage",
    "total/seconds": "seconds (without evaluation)",
}
NOT_RECORDED = "Not recorded by these runs."


@dataclass(frozen=True, slots=True)
class Line:
    """One method in one panel. nan in y breaks the line.

    Attributes:
        method: The number of the method.
        x: Places of the points [N].
        y: Values of the points [N], the mean over the seeds where there are several.
        trend: The rolling mean of y [N]. It is then the line, and y is drawn pale behind it.
        half_width: Half of the interval over the seeds [N], drawn as a band.
    """

    method: int
    x: np.ndarray
    y: np.ndarray
    trend: np.ndarray | None = None
    half_width: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a figure.

    Attributes:
        title: The headline of the panel.
        x_label: The label of the horizontal axis.
        lines: The curves.
        y_range: The ends of the vertical axis.
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    y_range: tuple[float, float]

    @property
    def summary(self) -> str:
        """What the panel shows, for readers who cannot see it."""
        return f"{len(self.lines)} line{'s' if len(self.lines) != 1 else ''} over {self.x_label}"


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels with one caption, and the table of their values.

    Attributes:
        key: The name of the figure in links and in file names.
        title: The headline.
        caption: How to read the figure. Without panels and table it says what is missing.
        panels: The drawings. Without any, the figure is its table.
        table: The values. The column `run` names the run.
        methods: The numbers of the methods that the legend explains.
        choice: Whether the panels show the same over other axes, so that a page shows one at a time.
    """

    key: str
    title: str
    caption: str
    panels: Sequence[Panel] = ()
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    methods: Sequence[int] = ()
    choice: bool = False


def in_blocks(table: pd.DataFrame, most: int = MAX_POINTS) -> pd.DataFrame:
    """Replace consecutive rows by their means, in the smallest equal blocks of which there are at most `most`.

    Args:
        table: One row per step or evaluation. The column `step` has its number.
        most: The largest number of rows of the result.

    Returns:
        One row per block. A mean leaves gaps out. The index has the steps of each block, such as "7" or "11-20".
    """
    groups = table.groupby(np.arange(len(table)) // block_size(len(table), most))
    first, last = groups["step"].first(), groups["step"].last()
    labels = [f"{a:.0f}" if a == b else f"{a:.0f}-{b:.0f}" for a, b in zip(first, last, strict=True)]
    return groups.mean().set_axis(pd.Index(labels, name="steps"))


def block_size(rows: int, most: int = MAX_POINTS) -> int:
    """Return the number of rows per block."""
    return max(1, -(-rows // most))


def trend(values: pd.Series) -> pd.Series | None:
    """Return the centred rolling mean over TREND points, or None for a short line. Gaps stay gaps."""
    if len(values) < 2 * TREND:
        return None
    return values.rolling(TREND, center=True, min_periods=1).mean().where(values.notna())


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return above / below, and nan where below is not positive."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def span(values: Sequence[np.ndarray], *, zero: bool = False) -> tuple[float, float]:
    """Return the range of all finite values, with some room.

    Args:
        values: Arrays of any shape.
        zero: Whether the range starts at 0 where no value is negative.
    """
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
    """Return a number for a table: four significant digits, thousands grouped."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def tick_text(value: float) -> str:
    """Return a short label of an axis, such as 5e-5, 0.25, 300, 12k or 1.5M."""
    for size, unit, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}".replace("e-0", "e-")
