"""What `nemo-ada plan` predicted, beside what happened: reads plan.json of a run directory, damaged or not.

The parts that are read: {"forecast": {"phases": {NAME: {"p50": seconds, "p95": seconds, "worst": seconds, "source":
text}, ...}, "step": {...}, "evaluation": {...}}, "caps": {"max_samples": ..., "max_tokens": ..., "max_seconds": ...},
"own_run": whether the plan was made from this very run}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nemo_ada.report.records import number
from nemo_ada.report.run import Run, clean
from nemo_ada.report.spec import Grid, text_of

PLANNED_AS = {"update": "training"}  # phases that published step times name differently
CAPS = ("max_samples", "max_tokens", "max_seconds")


def planned_seconds(run: Run, phase: str) -> tuple[float, float]:
    """(p50, p95) of a phase, of `step` or of `evaluation`; nan where nothing was predicted."""
    entry = _entry(run, phase)
    p50, p95 = number(entry.get("p50")), number(entry.get("p95"))
    return (p50, p95) if p50 > 0 else (float("nan"), float("nan"))


def predictions(runs: Sequence[Run]) -> Grid | None:
    """A row per run with a plan; None where there is none."""
    rows = [_row(run) for run in runs if np.isfinite(planned_seconds(run, "step")[0])]
    if not rows:
        return None
    columns = (
        "run",
        "step planned p50 / p95 / worst (s)",
        "step seen p50 / p95 / longest (s)",
        "seen p50 / planned p50",
        "steps above planned p95",
        "steps above planned worst",
        "caps that the plan suggests",
        "planned from",
    )
    return Grid(columns, rows)


def _row(run: Run) -> tuple[str, ...]:
    step = _entry(run, "step")
    p50, p95 = planned_seconds(run, "step")
    worst = number(step.get("worst"))
    planned = " / ".join(text_of(value) for value in (p50, p95, worst))
    seen_S = run.column("time/step")
    seen_S = seen_S[np.isfinite(seen_S)]
    caps = _mapping(run.plan.get("caps"))
    suggested = ", ".join(
        f"{name} {text_of(number(caps[name]))}" for name in CAPS if np.isfinite(number(caps.get(name)))
    )
    own = "; made from this run itself, so no prediction" if run.plan.get("own_run") is True else ""
    end = (suggested or "–", clean(step.get("source") or "not recorded") + own)
    if not len(seen_S):
        return (run.name, planned, "–", "–", "–", "–", *end)
    quantiles = (*np.percentile(seen_S, (50, 95)), seen_S.max())
    return (
        run.name,
        planned,
        " / ".join(text_of(float(value)) for value in quantiles),
        text_of(float(quantiles[0]) / p50),
        _share_above(seen_S, p95),
        _share_above(seen_S, worst),
        *end,
    )


def _share_above(seen_S: np.ndarray, limit: float) -> str:
    return f"{(seen_S > limit).mean():.1%}" if np.isfinite(limit) else "–"


def _entry(run: Run, name: str) -> Mapping[str, Any]:
    forecast = _mapping(run.plan.get("forecast"))
    phases = _mapping(forecast.get("phases"))
    for key in (name, PLANNED_AS.get(name, name)):
        if key in phases:
            return _mapping(phases[key])
    return _mapping(forecast.get(name))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
