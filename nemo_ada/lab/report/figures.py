"""The six figures that people read. TensorBoard and W&B have every other metric, and metrics.jsonl has every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nemo_ada.lab.report.curves import MAX_POINTS, average_curves, group_by_method
from nemo_ada.lab.report.run import Run
from nemo_ada.run import policy_gap

Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Line:
    """One method in one figure. nan in y breaks the line.

    Attributes:
        method: The number of the method.
        x: Places of the points [N].
        y: Values of the points [N], the mean over the seeds where there are several.
        half_width: Half of the interval over the seeds [N], drawn as a band.
    """

    method: int
    x: np.ndarray
    y: np.ndarray
    half_width: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One drawing.

    Attributes:
        key: The name of the figure in file names.
        title: The headline.
        x_label: The label of the horizontal axis.
        lines: The curves, none where no run has recorded the metric.
    """

    key: str
    title: str
    x_label: str
    lines: Sequence[Line]


def make_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures in reading order."""

    def score(axis: str) -> Callable[[Run], Curve]:
        return lambda run: run.curve(axis, "val/accuracy")

    def steps(metric: str, per: str = "") -> Callable[[Run], Curve]:
        return lambda run: (run.column("step"), run.column(metric) if not per else divide_columns(run, metric, per))

    gap = f"train/{policy_gap.METRIC}"
    figures: tuple[tuple[str, str, str, Callable[[Run], Curve]], ...] = (
        ("accuracy-responses", "held-out accuracy", "responses drawn", score("total/responses")),
        ("accuracy-seconds", "held-out accuracy", "seconds (without evaluation)", score("total/seconds")),
        ("zero-signal", "zero-signal groups (share)", "training steps", steps("ada/zero_signal_groups")),
        ("responses", "responses per prompt", "training steps", steps("ada/samples_drawn", "ada/prompts_drawn")),
        ("step-seconds", "seconds of a step", "training steps", steps("time/step")),
        ("policy-gap", "gap of rollout and learner (1: none)", "training steps", steps(gap)),
    )
    return [Figure(key, title, x_label, _make_lines(runs, curve)) for key, title, x_label, curve in figures]


def divide_columns(run: Run, above: str, below: str) -> np.ndarray:
    """Return a metric over another one [N], nan where that is not positive."""
    above_N, below_N = run.column(above), run.column(below)
    return np.divide(above_N, below_N, out=np.full(len(above_N), np.nan), where=below_N > 0)


def _make_lines(runs: Sequence[Run], curve: Callable[[Run], Curve]) -> list[Line]:
    """Return one line per method that has values: its run's, or the mean of its seeds."""
    lines = []
    for method, members in enumerate(group_by_method(runs).values()):
        curves = [average_blocks(*curve(runs[i])) for i in members]
        known = [(x, y) for x, y in curves if (np.isfinite(x) & np.isfinite(y)).any()]
        if len(known) == 1:
            lines.append(Line(method, *known[0]))
        elif known:
            places, mean, half_width = average_curves(known)
            lines += [Line(method, places, mean, half_width)] if len(places) else []
    return lines


def average_blocks(x: np.ndarray, y: np.ndarray) -> Curve:
    """Return the means over consecutive points, in the smallest equal blocks of which there are at most MAX_POINTS.

    A mean leaves gaps out.
    """
    size = max(1, -(-len(x) // MAX_POINTS))
    blocks = pd.DataFrame({"x": x, "y": y}).groupby(np.arange(len(x)) // size).mean()
    return blocks["x"].to_numpy(), blocks["y"].to_numpy()
