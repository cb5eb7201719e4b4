"""What page and terminal say about the runs: tables with one row per run, sentences, and warnings.

The tables are results, accuracy at equal cost, and settings that differ. The sentences compare every method with the
first one, and the warnings say what a reader must know before that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from nemo_ada.lab.report.curves import Difference, compute_difference, group_by_method
from nemo_ada.lab.report.run import Run, clean, find_score_keys, read_number
from nemo_ada.run import policy_gap
from nemo_ada.run.folder import VOLATILE, is_of_class

MAX_TURNED = 4  # with so many runs they are the columns of a table, not its rows
AXES = {  # what a run pays for (algorithm.md section 11)
    "step": "training steps",
    "total/responses": "responses drawn",
    "total/tokens": "generated tokens",
    "total/rows": "update rows",
    "total/live_rows": "update rows with non-zero advantage",
    "total/seconds": "seconds (without evaluation)",
}
GRPO = "grpo"
SPOKEN = {"total/responses": "responses", "total/seconds": "seconds"}  # the axes of the sentences
NOISE = 0.03  # of mean accuracy between runs of one seed (README)
SILENT = 0.95  # share of groups without signal above which a run hardly learns
LAST_SHARE = 0.1  # "at the end" is the mean over this share of the steps


def make_tables(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return the tables of the page and of the terminal by title."""
    found = {
        "Overview": make_overview(runs),
        "Mean held-out accuracy at equal cost": compare_at_equal_cost(runs),
        "Settings that differ": find_setting_differences(runs),
    }
    return {title: table for title, table in found.items() if table is not None and len(table)}


def make_overview(runs: Sequence[Run]) -> pd.DataFrame:
    """Return state, scores before and after, sampling and cost: a row per run, as texts."""
    columns: dict[str, Callable[[Run], str]] = {"state": lambda run: clean(run.state), "steps": _describe_steps}
    for key in find_score_keys(runs):
        columns[f"{key.removeprefix('val/')} first → last"] = _first_and_last(key)
    columns |= {
        "pass rate at the end": lambda run: format_number(_mean_at_end(run.column("ada/pass_rate"))),
        "responses per prompt": lambda run: format_number(_divide_sums(run, "ada/samples_drawn", "ada/prompts_drawn")),
        "zero-signal groups": lambda run: _mean_percent(run.column("ada/zero_signal_groups")),
        "zero-signal groups if GRPO": lambda run: _mean_percent(run.column("ada/zero_signal_groups_if_grpo")),
    }
    for axis, name in AXES.items():
        if axis.startswith("total/") and axis != "total/rows":
            columns[name.replace("update rows with non-zero advantage", "non-zero rows")] = _last(axis)
    columns["step p50 / p95 (s)"] = _describe_step_times
    return _make_frame(runs, {name: [cell(run) for run in runs] for name, cell in columns.items()})


def compare_at_equal_cost(runs: Sequence[Run]) -> pd.DataFrame | None:
    """Compare the runs at the cost that every run reached.

    Returns:
        Per run and axis of cost the mean held-out accuracy up to the common cost. Methods with several seeds have a
        row with mean and 95 % half-width. None where the runs cannot be compared.
    """
    curves = {axis: [run.curve(axis, "val/accuracy")[0] for run in runs] for axis in AXES}
    curves = {axis: lines for axis, lines in curves.items() if all(len(x) > 1 for x in lines)}  # what all runs recorded
    if len(runs) < 2 or not curves:
        return None
    limits = {axis: min(float(x.max()) for x in lines) for axis, lines in curves.items()}
    areas = {
        f"up to {format_number(limit)} {AXES[axis]}": [run.area(axis, limit) for run in runs]
        for axis, limit in limits.items()
        if limit > 0
    }
    table = _make_frame(runs, {name: [f"{area:.4f}" for area in column] for name, column in areas.items()})
    for method, members in group_by_method(runs).items():
        if len(members) > 1:
            means = [compute_difference([column[i] for i in members]) for column in areas.values()]
            table.loc[method] = [f"{mean.mean:.4f} ± {mean.half_width:.4f}" for mean in means]
    return table


def put_baseline_first(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with those of GRPO in front, because the others are compared with them."""
    return sorted(runs, key=lambda run: run.config.get("reinforce_ada.preset") != GRPO)


def answer_in_sentences(runs: Sequence[Run]) -> list[str]:
    """Say in sentences which method is ahead of the first one, at equal cost. Empty where runs cannot be compared."""
    table, methods = compare_at_equal_cost(runs), group_by_method(runs)
    if table is None or len(methods) < 2:
        return []
    first, *others = methods
    curves = {axis: [run.curve(axis, "val/accuracy")[0] for run in runs] for axis in SPOKEN}
    limits = {axis: min(float(x.max()) for x in xs) for axis, xs in curves.items() if all(len(x) for x in xs)}
    limits = {
        axis: limit for axis, limit in limits.items() if limit > 0
    }  # a run may have been scored at its start only
    if not limits:
        return []
    said = []
    for name in others:
        gains = {
            axis: _compute_gain(runs, methods[name], methods[first], axis, limit) for axis, limit in limits.items()
        }
        told = ", ".join(f"{gain} at equal {SPOKEN[axis]}" for axis, gain in gains.items())
        said.append(f"{name} against {first}: {told} in mean held-out accuracy.")
    if min(len(members) for members in methods.values()) < 2:
        said.append(f"One run is one seed: differences below {NOISE} are noise.")
    return said


def _compute_gain(runs: Sequence[Run], mine: Sequence[int], base: Sequence[int], axis: str, limit: float) -> Difference:
    """Return the difference of two methods, paired over their seeds where both have as many."""
    areas = [[runs[i].area(axis, limit) for i in members] for members in (mine, base)]
    if len(mine) == len(base):
        return compute_difference([a - b for a, b in zip(*areas, strict=True)])
    return Difference(float(np.mean(areas[0]) - np.mean(areas[1])), float("nan"))


def _make_frame(runs: Sequence[Run], columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    return pd.DataFrame(columns, index=pd.Index([run.name for run in runs], name="run"))


def find_setting_differences(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the configuration keys whose values differ between the runs, without folders and the like."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    volatile = [name for name in VOLATILE if not name.startswith("grpo.")]  # its length and batch a reader wants to see
    columns = {}
    for key in keys:
        values = [run.config.get(key, "(not set)") if run.config else "(unknown)" for run in runs]
        if len({run.config.get(key) for run in runs if run.config}) > 1 and not is_of_class(key, volatile):
            columns[key] = values
    return _make_frame(runs, columns) if columns else pd.DataFrame()


def find_warnings(runs: Sequence[Run]) -> list[str]:
    """Return what a reader must know before comparing."""
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    for run in runs:
        planned = read_number(run.status.get("max_steps"))
        if run.state in ("failed", "stopped") or (run.state == "running" and np.isfinite(planned)):
            notes.append(f"{run.name} is {run.state} after step {_describe_steps(run)}: its curves are not complete")
        notes += _warn_of_policy_gap(run)
        notes += _warn_of_silence(run)
    for section, what in (("task", "tasks"), ("validation", "evaluation settings"), ("policy.model", "models")):
        seen = {
            tuple(sorted((key, value) for key, value in run.config.items() if f"{key}.".startswith(f"{section}.")))
            for run in runs
            if run.config
        }
        if len(seen) > 1:
            notes.append(f"the runs have different {what} ({section}): their held-out scores are not comparable")
    return [clean(text) for text in notes]


def turn_if_narrow(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with runs as columns where they are few, because that is narrower."""
    return table.T.rename_axis(table.index.name) if len(table) <= MAX_TURNED else table


def make_terminal_table(table: pd.DataFrame, title: str) -> Table:
    """Return a table with one row per run for a terminal."""
    printed = Table(title=Text(title, "bold"), title_justify="left", header_style="bold")
    shown = turn_if_narrow(table)
    for place, name in enumerate([shown.index.name, *shown.columns]):
        printed.add_column(Text(clean(name)), justify="right" if place else "left", overflow="fold")
    for row in shown.itertuples():
        printed.add_row(*(Text(clean(cell)) for cell in row))
    return printed


def _warn_of_policy_gap(run: Run) -> Iterator[str]:
    values = run.column(f"train/{policy_gap.METRIC}")
    high = np.flatnonzero(values > policy_gap.HIGHEST)  # a value that is no number has a note of its own
    if len(high):
        first = int(run.column("step")[high[0]])
        where = f"{run.name}, {len(high)} of {int(np.isfinite(values).sum())} steps, first step {first}"
        yield policy_gap.write_advice(where, float(values[high].max()))


def _warn_of_silence(run: Run) -> Iterator[str]:
    """Warn where nearly all groups have equal labels."""
    share = _mean_at_end(run.column("ada/zero_signal_groups"))
    if share > SILENT:
        yield (
            f"{run.name}: {share:.0%} of the groups at the end have no signal, so the run hardly learns. Take problems "
            "that the model sometimes solves (`nemo-ada data prepare` measures them), or look at the rewards"
        )


def _keep_finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _describe_steps(run: Run) -> str:
    done, planned = run.column("step")[-1], read_number(run.status.get("max_steps"))
    return format_number(float(done)) + (f" of {planned:.0f}" if np.isfinite(planned) and planned != done else "")


def _first_and_last(key: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        y = run.curve("step", key)[1]
        return f"{y[0]:.3f} → {y[-1]:.3f}" if len(y) else "–"

    return cell


def _last(key: str) -> Callable[[Run], str]:
    return lambda run: format_number(float(run.column(key)[-1]))


def _mean_at_end(values: np.ndarray) -> float:
    tail = _keep_finite(values[-max(1, round(len(values) * LAST_SHARE)) :])
    return float(tail.mean()) if len(tail) else float("nan")


def _divide_sums(run: Run, above: str, below: str) -> float:
    a, b = run.column(above), run.column(below)
    both = np.isfinite(a) & np.isfinite(b)
    return float(a[both].sum() / b[both].sum()) if b[both].sum() > 0 else float("nan")


def _mean_percent(values: np.ndarray) -> str:
    known = _keep_finite(values)
    return f"{known.mean():.1%}" if len(known) else "–"


def _describe_step_times(run: Run) -> str:
    known = _keep_finite(run.column("time/step"))
    return " / ".join(format_number(float(value)) for value in np.percentile(known, (50, 95))) if len(known) else "–"


def format_number(value: float) -> str:
    """Return a number for a table: four significant digits, thousands grouped."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
