"""Methods over seeds: which runs belong together, the band of their curves, and comparisons on the axes of cost.

A method's score on an axis of cost (algorithm.md section 11) is the area under its held-out accuracy curve up to a
common cost. The common cost is the largest one that both compared runs reached. Seeds are paired, so the interval is
that of the mean difference (Student's t).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_ada.lab.evaluation.statistics import student_quantile
from nemo_ada.lab.report.run import Run
from nemo_ada.run.folder import VOLATILE, is_of_class

MAX_POINTS = 100  # of a line
SEED = "grpo.seed"
SEPARATORS = "-_. /="  # what stands between a method's name and the number of its seed


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference over seeds with its 95 % interval.

    Attributes:
        mean: The mean, nan where there is none.
        half_width: Half of the interval, nan for one seed.
    """

    mean: float
    half_width: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "none"
        return f"{self.mean:+.3f}" + ("" if math.isnan(self.half_width) else f" ±{self.half_width:.3f}")


def compute_difference(values: Sequence[float]) -> Difference:
    """Return the mean and the 95 % interval of paired differences."""
    value_S = np.asarray(values, np.float64)
    if len(value_S) < 2:
        return Difference(float(value_S.mean()), float("nan"))
    error = float(value_S.std(ddof=1)) / len(value_S) ** 0.5
    return Difference(float(value_S.mean()), student_quantile(len(value_S) - 1) * error)


def group_by_method(runs: Sequence[Run]) -> dict[str, list[int]]:
    """Find the runs that differ only in their seed.

    Returns:
        Per method its name and the positions of its runs. A run without such a sibling is a method of its own.
    """
    volatile = [name for name in (*VOLATILE, SEED) if name != "grpo.max_num_steps"]
    groups: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        settings = frozenset((key, value) for key, value in run.config.items() if not is_of_class(key, volatile))
        groups.setdefault(settings or i, []).append(i)
    methods: dict[str, list[int]] = {}
    for members in groups.values():
        seeds = {runs[i].config.get(SEED) for i in members}
        if len(members) == 1 or len(seeds) < len(members):  # a repeated seed is not another sample
            methods |= {runs[i].name: [i] for i in members}
        else:
            methods[f"{_find_shared_name([runs[i].name for i in members])} ({len(members)} seeds)"] = members
    return methods


def _find_shared_name(names: Sequence[str]) -> str:
    """Return what the names begin or end with, without the word seed, or the first name where that is little."""
    start = os.path.commonprefix(names)  # noqa: RUF071 - of characters: the seeds may differ within a word
    end = os.path.commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071
    shared = max(start.strip(SEPARATORS).removesuffix("seed"), end, key=len).strip(SEPARATORS)
    return shared if len(shared) > 2 else names[0]


def average_curves(curves: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the curves of at least two seeds, over the stretch of the horizontal axis that all of them have.

    Args:
        curves: Places and values of each seed. The curves are linear between their points.

    Returns:
        Places, the mean at each place, and half of its 95 % interval (Student's t).
    """
    finite = [(x[known], y[known]) for x, y in curves for known in [np.isfinite(x) & np.isfinite(y)]]
    if not all(len(x) for x, _ in finite):
        return np.empty(0), np.empty(0), np.empty(0)
    places = np.unique(np.concatenate([x for x, _ in finite]))
    low, high = max(x[0] for x, _ in finite), min(x[-1] for x, _ in finite)
    places = places[(places >= low) & (places <= high)]
    if len(places) > 2 * MAX_POINTS:
        places = np.linspace(low, high, 2 * MAX_POINTS)
    value_SN = np.stack([np.interp(places, x, y) for x, y in finite])
    error = value_SN.std(axis=0, ddof=1) / len(value_SN) ** 0.5
    return places, value_SN.mean(axis=0), student_quantile(len(value_SN) - 1.0) * error
