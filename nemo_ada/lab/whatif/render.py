"""The answer as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nemo_ada.lab.evaluation.statistics import Estimate
from nemo_ada.lab.whatif.answer import Checked, Drift, Silent, WhatifReport
from nemo_ada.lab.whatif.forecast import Row
from nemo_ada.lab.whatif.mixture import Quantity

if TYPE_CHECKING:
    from rich.table import Table


def as_json(value: WhatifReport | Sequence[Checked]) -> str:
    """JSON without NaN, which JSON does not have."""
    found = asdict(value) if isinstance(value, WhatifReport) else [asdict(check) for check in value]
    return json.dumps(_plain(found), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def introduction(answer: WhatifReport) -> str:
    """Return what the log holds, in lines of text."""
    log = answer.log
    lines = [
        f"{', '.join(log.forms)}: {log.responses:,} responses in {log.groups:,} groups, {log.prompts:,} prompts, "
        f"{log.steps:,} steps",
        f"logged: pass rate {_estimate(log.pass_rate)}, groups without signal {_estimate(log.zero_signal)}, depth "
        f"{log.depth}" + ("" if math.isnan(log.tokens) else f", {log.tokens:,.0f} tokens per response"),
        *([] if answer.drift is None else _drift(answer.drift)),
        *_silent(answer.silent, log.depth),
        *(f"note: {note}" for note in answer.notes),
    ]
    return "\n".join(lines)


def _drift(drift: Drift) -> list[str]:
    lines = [f"drift: pass rate {_estimate(drift.first)} in the first third, {_estimate(drift.last)} in the last"]
    if drift.same is not None:
        same = drift.same
        lines.append(
            f"  {same.prompts:,} prompts came again: {same.difference:+.3f} [{same.low:+.3f}, {same.high:+.3f}] from "
            "first to last visit"
        )
    return lines


def _silent(silent: Silent, depth: int) -> list[str]:
    return [
        f"prompts that never taught: {silent.never_correct:.1%} never correct, {silent.always_correct:.1%} always",
        f"  pass rate below 1 %: {_share(silent.below)} of the groups, above 99 %: {_share(silent.above)}",
        f"  of the groups without a correct response, {silent.pool} responses instead of {depth} would find one in "
        f"{_share(silent.rescued)}",
    ]


def tables(answer: WhatifReport) -> Iterator[Table]:
    """Two tables of rich: what is drawn and learned, and what it costs."""
    title = f"per prompt, n = {answer.group}, {answer.prompts} prompts per step: value and bounds"
    columns = ["responses", "tokens", "zero-signal", "signal", "signal per response"]
    rows = [
        [_figure(row.responses), _figure(row.tokens), _share(row.zero_signal), _figure(row.signal),
         _figure(row.signal_per_response)]
        for row in answer.rows
    ]  # fmt: skip
    yield _table(title, columns, answer.rows, rows)
    columns, costs = ["sampling time"], answer.costs
    rows = [[_figure(row.time)] for row in answer.rows]
    if costs is not None:
        first = costs[0]
        columns += ["sampling seconds"]
        columns += [] if first.gpu_hours is None else [f"GPU hours of {answer.steps:,} steps"]
        columns += [] if first.money is None else ["price"]
        for cells, cost in zip(rows, costs, strict=True):
            cells += [_figure(figure) for figure in (cost.sampling_seconds, cost.gpu_hours, cost.money) if figure]
    yield _table("time of a step's sampling phase: value and bounds", columns, answer.rows, rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Row], cells: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    caption = "signal, signal per response and sampling time: relative to grpo. *: simulated, the others are computed"
    shown = Table(title=title, caption=caption)
    shown.add_column("sampling", overflow="fold")
    for name in ("at most", *columns):
        shown.add_column(name, justify="right", overflow="fold")
    for row, line in zip(rows, cells, strict=True):
        cap = "" if row.max_responses is None else str(row.max_responses)
        shown.add_row(row.name + ("*" if row.simulated else ""), cap, *line)
    return shown


def checks_table(checks: Sequence[Checked]) -> Table:
    """Predictions beside what was seen, as a table of rich."""
    from rich.table import Table

    covered = sum(check.covered for check in checks)
    shown = Table(title=f"first half of each group -> whole groups: {covered} of {len(checks)} within the bounds")
    for name in ("quantity", "predicted", "seen", ""):
        shown.add_column(name, justify="left" if name == "quantity" else "right")
    for check in checks:
        shown.add_row(check.what, _figure(check.predicted), _number(check.seen), "" if check.covered else "outside")
    return shown


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _figure(figure: Quantity) -> str:
    if math.isnan(figure.value):
        return "n/a"
    return f"{_number(figure.value)} [{_number(figure.low)}, {_number(figure.high)}]"


def _share(figure: Quantity) -> str:
    if math.isnan(figure.value):
        return "n/a"
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _number(value: float) -> str:
    """Three digits, and whole numbers from 100 on."""
    if not math.isfinite(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
