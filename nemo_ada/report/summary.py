"""Tables with one row per run, for the page and for the terminal: results, costs, plans, differences, provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from nemo_ada.report.figures import score_keys
from nemo_ada.report.run import Run, as_mapping, clean, number
from nemo_ada.report.series import AXES, Grid, number_text
from nemo_ada.run import mismatch
from nemo_ada.run.folder import VOLATILE

CAPS = ("max_samples", "max_tokens", "max_seconds")
MAX_TURNED = 4  # with so many runs they are the columns of a table, not its rows
LAST_SHARE = 0.1  # "at the end" is the mean over this share of the steps


def overview(runs: Sequence[Run]) -> Grid:
    """State, scores before and after, sampling, cost."""
    columns: dict[str, Callable[[Run], str]] = {"state": lambda run: clean(run.state), "steps": _steps}
    for key in score_keys(runs):
        columns[f"{key.removeprefix('val/')} first → last"] = _first_last(key)
    columns |= {
        "pass rate at the end": lambda run: number_text(_end(run.column("ada/pass_rate"))),
        "responses per prompt": lambda run: number_text(_ratio(run, "ada/samples_drawn", "ada/prompts_drawn")),
        "zero-signal groups": lambda run: _percent(run.column("ada/zero_signal_groups")),
        "zero-signal groups if GRPO": lambda run: _percent(run.column("ada/zero_signal_groups_if_grpo")),
    }
    for axis, name in AXES.items():
        if axis not in ("step", "total/rows"):
            columns[name.replace("update rows with non-zero advantage", "non-zero rows")] = _last(axis)
    columns["step p50 / p95 (s)"] = _step_times
    return Grid(("run", *columns), [(run.name, *(cell(run) for cell in columns.values())) for run in runs])


def equal_cost(runs: Sequence[Run]) -> Grid | None:
    """Mean held-out accuracy up to the cost that every run reached, per axis; None where runs cannot be compared."""
    curves = {axis: [run.curve(axis, "val/accuracy")[0] for run in runs] for axis in AXES}
    if len(runs) < 2 or any(len(x) < 2 for lines in curves.values() for x in lines):
        return None
    limits = {axis: min(float(x.max()) for x in lines) for axis, lines in curves.items()}
    limits = {axis: limit for axis, limit in limits.items() if limit > 0}
    columns = ("run", *(f"up to {number_text(limit)} {AXES[axis]}" for axis, limit in limits.items()))
    rows = [(run.name, *(f"{run.area(axis, limit):.4f}" for axis, limit in limits.items())) for run in runs]
    return Grid(columns, rows)


def samples(run: Run) -> Grid | None:
    """Held-out problems and the answers of the first and of the last evaluation; None where no evaluation has any."""
    told = [(evaluation, run.samples(evaluation)) for evaluation in range(len(run.evaluations))]
    told = [(evaluation, found) for evaluation, found in told if found]
    if not told:
        return None
    chosen = [told[0], told[-1]] if len(told) > 1 else told[:1]
    columns = ["problem", "reference", *(f"step {_step_of(run, evaluation)}" for evaluation, _ in chosen)]
    rows = []
    for answers in zip(*(found for _, found in chosen), strict=False):
        cells = [
            f"{answer.get('response')!s} [reward {number_text(number(answer.get('reward')))}]" for answer in answers
        ]
        rows.append([str(answers[0].get("problem")), str(answers[0].get("reference")), *cells])
    return Grid(columns, rows)


def _step_of(run: Run, evaluation: int) -> int:
    return int(run.evaluations[evaluation]["step"])


def predictions(runs: Sequence[Run]) -> Grid | None:
    """What `nemo-ada plan` predicted beside what happened: a row per run with a plan; None where there is none."""
    rows = [_prediction(run) for run in runs if np.isfinite(run.planned_seconds("step")[0])]
    columns = (
        "run",
        "step planned p50 / p95 / worst (s)",
        "step seen p50 / p95 / longest (s)",
        "seen p50 / planned p50",
        "steps above planned p95",
        "steps above planned worst",
        "caps that the plan suggests",
        "source of the plan",
    )
    return Grid(columns, rows) if rows else None


def _prediction(run: Run) -> tuple[str, ...]:
    step = run.forecast("step")
    p50, p95 = run.planned_seconds("step")
    worst = number(step.get("worst"))
    caps = as_mapping(run.plan.get("caps"))
    suggested = [(name, number(caps.get(name))) for name in CAPS]
    listed = ", ".join(f"{name} {number_text(value)}" for name, value in suggested if np.isfinite(value))
    own = "; made from this run itself, so no prediction" if run.plan.get("own_run") is True else ""
    seen = ("–", "–", "–", "–")
    seen_N = _known(run.column("time/step"))
    if len(seen_N):
        quantiles = (*np.percentile(seen_N, (50, 95)), seen_N.max())
        seen = (_joined(quantiles), number_text(quantiles[0] / p50), _above(seen_N, p95), _above(seen_N, worst))
    source = clean(step.get("origin") or "not recorded") + own
    return (run.name, _joined((p50, p95, worst)), *seen, listed or "–", source)


def _joined(values: Iterable[float]) -> str:
    return " / ".join(number_text(float(value)) for value in values)


def _above(seen_N: np.ndarray, limit: float) -> str:
    return f"{(seen_N > limit).mean():.1%}" if np.isfinite(limit) else "–"


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def differences(runs: Sequence[Run]) -> Grid:
    """Configuration keys whose values differ between the runs, without folders and the like."""
    keys = list(dict.fromkeys(key for run in runs if run.config for key in run.config))
    volatile = tuple(f"{name}." for name in VOLATILE if name.split(".")[0] != "grpo")
    known = [run for run in runs if run.config]
    rows = []
    for key in keys:
        values = [run.config.get(key, "(not set)") if run.config else "(unknown)" for run in runs]
        if len({run.config.get(key) for run in known}) > 1 and not f"{key}.".startswith(volatile):
            rows.append((key, *values))
    return Grid(("key", *(run.name for run in runs)), rows)


def provenance(run: Run) -> Mapping[str, str]:
    """Where a run comes from: folder, command, commit, versions."""
    environment = run.environment
    versions = as_mapping(environment.get("packages"))
    wanted = ("command", "commit", "started", "nemo_ada", "python", "platform")
    facts = {"folder": clean(run.folder), "state": clean(run.state)}
    facts |= {name: clean(environment.get(name) or "not recorded") for name in wanted}
    facts["packages"] = ", ".join(f"{clean(name)} {clean(value)}" for name, value in versions.items()) or "not recorded"
    return facts


def warnings(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before comparing."""
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    for run in runs:
        planned = number(run.status.get("max_steps"))
        if run.state in ("failed", "stopped") or (run.state == "running" and np.isfinite(planned)):
            notes.append(f"{run.name} is {run.state} after step {_steps(run)}: its curves are not complete")
        notes += _mismatch(run)
    for section, what in (("task", "tasks"), ("validation", "evaluation settings"), ("policy.model", "models")):
        seen = {
            tuple(sorted((key, value) for key, value in run.config.items() if f"{key}.".startswith(f"{section}.")))
            for run in runs
            if run.config
        }
        if len(seen) > 1:
            notes.append(f"the runs have different {what} ({section}): their held-out scores are not comparable")
    return [clean(text) for text in notes]


def terminal_table(grid: Grid, title: str) -> Table:
    """The grid for a terminal. Few runs stand in columns, because that is narrower."""
    shown = grid.turned() if len(grid.rows) <= MAX_TURNED else grid
    table = Table(title=Text(title, "bold"), title_justify="left", header_style="bold")
    for place, name in enumerate(shown.columns):
        table.add_column(Text(clean(name)), justify="right" if place else "left", overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def _mismatch(run: Run) -> Iterator[str]:
    values = run.column(f"train/{mismatch.METRIC}")
    high = np.flatnonzero(values > mismatch.HIGHEST)  # a value that is no number has a note of its own
    if len(high):
        first = int(run.column("step")[high[0]])
        where = f"{run.name}, {len(high)} of {int(np.isfinite(values).sum())} steps, first step {first}"
        yield mismatch.advice(where, float(values[high].max()))


def _steps(run: Run) -> str:
    done, planned = run.column("step")[-1], number(run.status.get("max_steps"))
    return number_text(float(done)) + (f" of {planned:.0f}" if np.isfinite(planned) and planned != done else "")


def _first_last(key: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        y = run.curve("step", key)[1]
        return f"{y[0]:.3f} → {y[-1]:.3f}" if len(y) else "–"

    return cell


def _last(key: str) -> Callable[[Run], str]:
    return lambda run: number_text(float(run.column(key)[-1]))


def _end(values: np.ndarray) -> float:
    tail = _known(values[-max(1, round(len(values) * LAST_SHARE)) :])
    return float(tail.mean()) if len(tail) else float("nan")


def _ratio(run: Run, above: str, below: str) -> float:
    a, b = run.column(above), run.column(below)
    both = np.isfinite(a) & np.isfinite(b)
    return float(a[both].sum() / b[both].sum()) if b[both].sum() > 0 else float("nan")


def _percent(values: np.ndarray) -> str:
    known = _known(values)
    return f"{known.mean():.1%}" if len(known) else "–"


def _step_times(run: Run) -> str:
    known = _known(run.column("time/step"))
    return _joined(np.percentile(known, (50, 95))) if len(known) else "–"
