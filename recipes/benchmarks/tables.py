"""Tables of the benches: what runs reached and cost, the differences between methods over seeds, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nemo_ada.lab.report.curves import Difference, compute_difference
from nemo_ada.lab.report.run import Run
from nemo_ada.lab.report.summary import make_overview

ALL_AXES = ("step", "total/responses", "total/engine_steps", "total/live_rows", "total/seconds", "total/rows")
FINAL = "final accuracy"
HALFWAY = "at half the responses - final"


def comparison_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per run: what it reached and what it cost."""
    rows: list[dict[str, Any]] = make_overview(runs).reset_index().to_dict("records")
    return rows


def against(
    runs: Mapping[str, Sequence[Run]], baseline: str, key: str = "val/accuracy"
) -> dict[str, dict[str, Difference]]:
    """Compare each method with a baseline.

    The common cost of an axis is that of one method and the baseline, so a cheap method does not cut the others short.

    Args:
        runs: Per method its runs. Run i of every method has the same seed.
        baseline: The name of the method that the others are compared with.
        key: The score of an evaluation.

    Returns:
        Per method and axis the paired difference of the area to the baseline. FINAL and HALFWAY are the method's score
        at all and at half of the baseline's responses, minus the baseline's last score. They are nan where the method
        drew fewer responses.
    """

    def gain(run: Run, base: Run, axis: str) -> float:
        limit = min(run.curve(axis, key)[0][-1], base.curve(axis, key)[0][-1])
        return run.area(axis, limit, key) - base.area(axis, limit, key)

    def accuracy(run: Run, base: Run, share: float) -> float:
        """Return the score at this share of the baseline's responses, minus the baseline's last one."""
        responses, final = base.curve("total/responses", key)
        return float(np.interp(share * responses[-1], *run.curve("total/responses", key), right=np.nan) - final[-1])

    differences = {}
    for name, members in runs.items():
        if name != baseline:
            pairs = list(zip(members, runs[baseline], strict=True))
            differences[name] = {axis: compute_difference([gain(*pair, axis) for pair in pairs]) for axis in ALL_AXES}
            differences[name][FINAL] = compute_difference([accuracy(*pair, 1.0) for pair in pairs])
            differences[name][HALFWAY] = compute_difference([accuracy(*pair, 0.5) for pair in pairs])
    return differences


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.3f}" if isinstance(value, float) and value < 10 else f"{value:,.0f}"
