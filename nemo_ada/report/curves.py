"""Comparisons of runs, and of methods over seeds, on the axes of cost (algorithm.md section 11), for the benchmarks.

A method's score on an axis is the area under its held-out accuracy curve up to a common cost: the largest that both
compared runs reached. Seeds are paired, so the interval is that of the mean difference (Student's t).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.evaluation.statistics import student_quantile
from nemo_ada.report import series
from nemo_ada.report.draw import write_png
from nemo_ada.report.figures import Quantity, over_steps, score_figure, score_keys
from nemo_ada.report.run import Run
from nemo_ada.report.series import Figure
from nemo_ada.report.summary import overview

__all__ = ["ALL_AXES", "AXES", "Difference", "Run", "against", "comparison_rows", "difference", "markdown_table",
           "plot_comparison"]  # fmt: skip

AXES = {key: series.AXES[key] for key in ("step", "total/responses", "total/live_rows", "total/seconds")}
ALL_AXES = (*AXES, "total/rows")
DYNAMICS = (
    Quantity("zero-signal groups (share)", "ada/zero_signal_groups", scale="signal"),
    Quantity("zero-signal groups if GRPO (share)", "ada/zero_signal_groups_if_grpo", scale="signal"),
    Quantity("pool size, mean (responses)", "ada/pool_size_mean"),
    Quantity("pass rate on training prompts", "ada/pass_rate"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over seeds with its 95 % half-width (nan for one seed)."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ±{self.half_width:.3f}"


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
    """method -> axis -> paired difference to the baseline; run i of every method has seed i.

    The common cost of an axis is per pair of method and baseline, so a cheap method does not cut the others short.
    """

    def gain(own: Run, base: Run, axis: str) -> float:
        limit = min(own.curve(axis, key)[0][-1], base.curve(axis, key)[0][-1])
        return own.area(axis, limit, key) - base.area(axis, limit, key)

    return {
        name: {
            axis: difference([gain(own, base, axis) for own, base in zip(mine, runs[baseline], strict=True)])
            for axis in ALL_AXES
        }
        for name, mine in runs.items()
        if name != baseline
    }


def plot_comparison(runs: Sequence[Run], path: Path, title: str) -> None:
    """A PNG: accuracy and pass@k against four axes of cost, then the sampling dynamics over the steps."""
    scores = [score_figure(runs, key, AXES) for key in score_keys(runs)]
    dynamics = over_steps(Figure("comparison", title, ""), DYNAMICS, runs)
    panels = [panel for figure in (*scores, dynamics) for panel in figure.panels]
    figure = Figure("comparison", title, "", panels, rows=dynamics.rows)
    write_png(figure, [run.name for run in runs], path, columns=len(AXES))


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
