"""Comparisons of runs, and of methods over seeds, on the axes of cost (algorithm.md section 11), for the benchmarks.

A method's score on an axis is the area under its held-out accuracy curve up to a common cost: the largest that both
compared runs reached. Seeds are paired, so the interval is that of the mean difference (Student's t).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_ada.evaluation.statistics import student_quantile
from nemo_ada.report.run import Run
from nemo_ada.report.summary import overview

__all__ = ["ALL_AXES", "Difference", "Run", "against", "comparison_rows", "difference", "markdown_table"]

ALL_AXES = ("step", "total/responses", "total/engine_steps", "total/live_rows", "total/seconds", "total/rows")
FINAL = "final accuracy"
HALFWAY = "at half the responses - final"


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over seeds (nan where there is none) with its 95 % half-width (nan for one seed)."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "none"
        return f"{self.mean:+.3f}" + ("" if math.isnan(self.half_width) else f" ±{self.half_width:.3f}")


def difference(values: Sequence[float]) -> Difference:
    """Mean and 95 % interval of paired differences."""
    value_S = np.asarray(values, np.float64)
    if len(value_S) < 2:
        return Difference(float(value_S.mean()), float("nan"))
    error = float(value_S.std(ddof=1)) / len(value_S) ** 0.5
    return Difference(float(value_S.mean()), student_quantile(len(value_S) - 1) * error)


def against(
    runs: Mapping[str, Sequence[Run]], baseline: str, key: str = "val/accuracy"
) -> dict[str, dict[str, Difference]]:
    """method -> axis -> paired difference of the area to the baseline; run i of every method has seed i.

    The common cost of an axis is per pair of method and baseline, so a cheap method does not cut the others short.
    FINAL and HALFWAY: the method's accuracy at all and at half of the baseline's responses, minus the baseline's last;
    nan where the method drew fewer.
    """

    def gain(own: Run, base: Run, axis: str) -> float:
        limit = min(own.curve(axis, key)[0][-1], base.curve(axis, key)[0][-1])
        return own.area(axis, limit, key) - base.area(axis, limit, key)

    def accuracy(own: Run, base: Run, share: float) -> float:
        """At `share` of the baseline's responses, minus the baseline's last one."""
        responses, final = base.curve("total/responses", key)
        return float(np.interp(share * responses[-1], *own.curve("total/responses", key), right=np.nan) - final[-1])

    found = {}
    for name, mine in runs.items():
        if name != baseline:
            pairs = list(zip(mine, runs[baseline], strict=True))
            found[name] = {axis: difference([gain(*pair, axis) for pair in pairs]) for axis in ALL_AXES}
            found[name][FINAL] = difference([accuracy(*pair, 1.0) for pair in pairs])
            found[name][HALFWAY] = difference([accuracy(*pair, 0.5) for pair in pairs])
    return found


def comparison_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per run: what it reached and what it cost."""
    grid = overview(runs)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.3f}" if isinstance(value, float) and value < 10 else f"{value:,.0f}"
