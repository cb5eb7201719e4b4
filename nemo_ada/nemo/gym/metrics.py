"""NeMo-RL's metrics of a NeMo-Gym rollout, for all responses of a step.

Each response is a call with one row, so a statistic of a call is that of one value. Histograms and tables are objects
of W&B. They are made anew from all values, with the class of the objects that the calls returned.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nemo_ada.nemo.loop_log import compute_percentile

MEAN, HISTOGRAM, TABLE = "/mean", "/histogram", "/full_result"
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "median": statistics.median,
    "stddev": lambda values: statistics.stdev(values) if len(values) > 1 else float("nan"),
    "p95": lambda values: compute_percentile(values, 95),
    "p99": lambda values: compute_percentile(values, 99),
}


def compute_metrics(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of a step, from those of its responses.

    Args:
        calls: metrics of each call, which had one row.

    Returns:
        The same names. Statistics are of all values. Other numbers are means, which includes the seconds of a call.
    """
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for call in calls for name in call):
        values = [call[name] for call in calls if name in call]
        base, _, statistic = name.rpartition("/")
        measured = [call[base + MEAN] for call in calls if base + MEAN in call] if base else []
        finite = [value for value in measured if not isinstance(value, float) or math.isfinite(value)]
        measured = finite or measured  # a response without a verdict has a reward of NaN
        if measured and name.endswith(HISTOGRAM):
            joined[name] = type(values[0])(measured)
        elif measured and statistic in STATISTICS:
            joined[name] = STATISTICS[statistic](measured)
        elif all(isinstance(value, int | float) for value in values):
            joined[name] = float(np.mean(values))
        elif name.endswith(TABLE) and all(hasattr(value, "data") for value in values):
            rows = [row for table in values for row in table.data]
            joined[name] = type(values[0])(columns=values[0].columns, data=rows)
    return joined
