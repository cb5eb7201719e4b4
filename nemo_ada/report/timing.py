"""Where the seconds go: phases of a step, their spread, and the plan's prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_ada.report.plan import planned_seconds
from nemo_ada.report.run import Run
from nemo_ada.report.spec import NOT_RECORDED, BarPanel, Figure, Panel, Range, RangePanel, Row, Table

PHASES = ("sampling", "update", "refit", "evaluation")


def step_time(runs: Sequence[Run]) -> Figure:
    """Where the seconds go: mean per step and phase, p50 and p95, and the plan's prediction."""
    durations = [_durations(run) for run in runs]
    mean_RK = np.array(
        [
            [_mean(times[phase]) * (len(times[phase]) / max(len(run.steps), 1)) for phase in PHASES]
            for run, times in zip(runs, durations, strict=True)
        ]
    )
    timed = [i for i, times in enumerate(durations) if any(len(times[phase]) for phase in PHASES)]
    if not timed:
        return Figure("time", "Step time", NOT_RECORDED, (), Table((), ()))
    panels: list[Panel] = [
        BarPanel("mean seconds per step by phase", "seconds per step", PHASES, timed, mean_RK[timed])
    ]
    rows: list[Row] = []
    for phase in ("step", *PHASES):
        ranges = []
        for i in timed:
            values = durations[i][phase]
            if not len(values):
                continue
            p50, p95 = (float(value) for value in np.percentile(values, (50, 95)))
            planned = planned_seconds(runs[i], phase)
            ranges.append(Range(i, p50, p95, *planned))
            rows.append((i, (phase, float(len(values)), float(values.mean()), p50, p95, float(values.max()), *planned)))
        if ranges:
            panels.append(RangePanel(f"{phase}: p50 to p95 (seconds)", "seconds", ranges))
    rows.sort(key=lambda row: row[0])
    columns = ("phase", "times", "mean s", "p50 s", "p95 s", "longest s", "planned p50 s", "planned p95 s")
    has_plan = any(np.isfinite(planned_seconds(run, "step")[0]) for run in runs)
    caption = (
        "First the mean over all steps, with evaluations spread over the steps; then, per phase, a dot at p50 and a "
        "bar to p95. A step is sampling, update and refit; evaluations are timed one by one. "
        + (
            "Hollow diamonds are the p50 and p95 that plan.json predicted; see Plan for the whole step."
            if has_plan
            else "No run has a plan.json (nemo-ada plan CONFIG --write RUN) to compare with."
        )
    )
    return Figure("time", "Step time", caption, panels, Table(columns, rows))


def _durations(run: Run) -> dict[str, np.ndarray]:
    """Finite seconds of each phase."""
    found = {name: run.column(f"time/{name}") for name in ("step", *PHASES[:3])}
    found["evaluation"] = run.evaluation_column("time/evaluation")
    return {name: values[np.isfinite(values)] for name, values in found.items()}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
