"""Paired comparisons of methods over seeds, on the axes of cost (algorithm.md section 11).

A method's score on an axis is the area under its held-out accuracy curve up to a common cost: the largest that every
method of the seed reached. Seeds are paired, so the interval is that of the mean difference (Student's t).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_ada.report.curves import AXES, Run

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond the table 1.96
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
ALL_AXES = (*AXES, "total/rows")


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over seeds with its 95 % half-width (nan for one seed)."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ±{self.half_width:.3f}"


def area(run: Run, axis: str, limit: float, key: str = "val/accuracy") -> float:
    """Mean of the curve over [0, limit] of the axis (trapezoids, linear between evaluations)."""
    x, y = run.curve(axis, key)
    grid = np.linspace(0.0, limit, 200)
    return float(np.interp(grid, x, y).mean())


def difference(values: Sequence[float]) -> Difference:
    """Mean and 95 % interval of paired differences."""
    d = np.asarray(values, np.float64)
    if len(d) < 2:
        return Difference(float(d.mean()), float("nan"))
    t = T_QUANTILES[len(d) - 2] if len(d) - 2 < len(T_QUANTILES) else 1.96
    return Difference(float(d.mean()), float(t * d.std(ddof=1) / np.sqrt(len(d))))


def against(
    runs: Mapping[str, Sequence[Run]], baseline: str, key: str = "val/accuracy"
) -> dict[str, dict[str, Difference]]:
    """method -> axis -> paired difference to the baseline; run i of every method has seed i.

    The common cost of an axis is per pair of method and baseline, so a cheap method does not cut the others short.
    """
    found: dict[str, dict[str, Difference]] = {}
    for name, mine in runs.items():
        if name == baseline:
            continue
        found[name] = {}
        for axis in ALL_AXES:
            values = []
            for own, base in zip(mine, runs[baseline], strict=True):
                limit = min(own.curve(axis, key)[0][-1], base.curve(axis, key)[0][-1])
                values.append(area(own, axis, limit, key) - area(base, axis, limit, key))
            found[name][axis] = difference(values)
    return found
