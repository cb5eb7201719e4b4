"""From records to lines: long runs are shown as means over blocks of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_ada.report.run import Run
from nemo_ada.report.spec import NOT_RECORDED, Figure, Line, LinePanel, Row, Table, span

MAX_POINTS = 100
TREND = 9  # points of the rolling mean; lines of less than twice as many points are drawn as they are
AXES = {  # what a run pays for (algorithm.md section 11)
    "step": "training steps",
    "total/responses": "responses drawn",
    "total/tokens": "generated tokens",
    "total/rows": "update rows",
    "total/live_rows": "update rows with non-zero advantage",
    "total/seconds": "seconds (without evaluation)",
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows of a table (steps or evaluations) in at most MAX_POINTS blocks of equal length."""

    step_N: np.ndarray
    size: int

    @classmethod
    def of(cls, step_N: np.ndarray) -> Blocks:
        return cls.at_most(step_N, MAX_POINTS)

    @classmethod
    def at_most(cls, step_N: np.ndarray, most: int) -> Blocks:
        """At most so many blocks."""
        return cls(step_N, max(1, -(-len(step_N) // most)))

    def mean(self, value_N: np.ndarray) -> np.ndarray:
        """Mean of the finite values of each block, nan where there is none."""
        if self.size == 1 or not len(value_N):
            return value_N
        starts = np.arange(0, len(value_N), self.size)
        finite = np.isfinite(value_N)
        total = np.add.reduceat(np.where(finite, value_N, 0.0), starts)
        count = np.add.reduceat(finite.astype(np.float64), starts)
        return np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0)

    def labels(self) -> list[str]:
        """What each block stands for: '7' or '11-20'."""
        first = self.step_N[:: self.size]
        ends = np.minimum(np.arange(len(first)) * self.size + self.size, len(self.step_N)) - 1
        last = self.step_N[ends]
        return [f"{a:.0f}" if a == b else f"{a:.0f}-{b:.0f}" for a, b in zip(first, last, strict=True)]


def trend(value_N: np.ndarray) -> np.ndarray | None:
    """Centred rolling mean over TREND points (fewer at the ends); nan where the value is, None for short lines."""
    if len(value_N) < 2 * TREND:
        return None
    finite = np.isfinite(value_N)
    ones = np.ones(TREND)
    total = np.convolve(np.where(finite, value_N, 0.0), ones, mode="same")
    count = np.convolve(finite.astype(np.float64), ones, mode="same")
    return np.divide(total, count, out=np.full(len(value_N), np.nan), where=finite)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value per step. Quantities of a figure with the same `scale` share their vertical range."""

    title: str
    values: Callable[[Run], np.ndarray]
    zero: bool = True
    scale: str = ""


@dataclass(frozen=True, slots=True)
class OverSteps:
    """A figure with one panel per quantity, over the steps."""

    key: str
    title: str
    caption: str
    quantities: Sequence[Quantity]


def metric(key: str) -> Callable[[Run], np.ndarray]:
    """A recorded metric."""
    return lambda run: run.column(key)


def share(key: str, of: str = "ada/prompts_drawn") -> Callable[[Run], np.ndarray]:
    """A recorded metric divided by another one."""
    return lambda run: _ratio(run.column(key), run.column(of))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def live_share(run: Run) -> np.ndarray:
    """Rows with a non-zero advantage per kept row (total/rows counts the kept ones)."""
    total = run.column("total/rows")
    return _ratio(run.column("ada/live_rows"), np.diff(total, prepend=0.0 if run.column("step")[0] == 1 else np.nan))


def over_steps(section: OverSteps, runs: Sequence[Run]) -> Figure:
    """The section's figure, with a panel for each quantity that any run has recorded."""
    blocks = [Blocks.of(run.column("step")) for run in runs]
    x = [block.mean(run.column("step")) for block, run in zip(blocks, runs, strict=True)]
    shown, values = [], []
    for quantity in section.quantities:
        means = [block.mean(quantity.values(run)) for block, run in zip(blocks, runs, strict=True)]
        if any(np.isfinite(mean).any() for mean in means):
            shown.append(quantity)
            values.append(means)
    panels = []
    for quantity, means in zip(shown, values, strict=True):
        together = [o is quantity or (bool(o.scale) and o.scale == quantity.scale) for o in shown]
        same = [mean for mine, shares in zip(values, together, strict=True) if shares for mean in mine]
        lines = [
            Line(i, x[i], mean, [f"step {label}" for label in blocks[i].labels()], trend(mean))
            for i, mean in enumerate(means)
            if np.isfinite(mean).any()
        ]
        panels.append(LinePanel(quantity.title, "training steps", lines, span(same, zero=quantity.zero)))
    rows: list[Row] = [
        (i, (label, *(float(means[i][j]) for means in values)))
        for i, block in enumerate(blocks)
        for j, label in enumerate(block.labels())
    ]
    table = Table(("steps", *(quantity.title for quantity in shown)), rows)
    return Figure(section.key, section.title, section.caption if panels else NOT_RECORDED, panels, table)
