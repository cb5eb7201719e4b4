"""The figures of the report, made from the metrics that a run records.

core/metrics.py names those under ada/. The back ends record train/, time/ and total/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from nemo_ada.core.metrics import RATE_BINS
from nemo_ada.lab.report.curves import band, by_method
from nemo_ada.lab.report.draw import MAX_PALE_LINES, Line, draw_bars, draw_lines, draw_ranges, draw_shares
from nemo_ada.lab.report.run import Run, score_keys
from nemo_ada.lab.report.series import (
    AXES,
    NOT_RECORDED,
    TREND,
    Figure,
    Panel,
    block_size,
    in_blocks,
    ratio,
    span,
    trend,
)  # fmt: skip

MAX_HEAT_COLUMNS = 48
PHASES = ("sampling", "update", "refit", "evaluation")
TIME_COLUMNS = ("times", "mean s", "p50 s", "p95 s", "longest s", "planned p50 s", "planned p95 s")
ROLLING = (
    f" Lines are rolling means over {TREND} points. The values themselves are in the table and, with at most "
    f"{MAX_PALE_LINES} lines, behind the lines in pale."
)
BANDS = " Runs that differ only in their seed are one line, their mean, with its 95 % interval over seeds as a band."
HISTOGRAM = "ada/pass_rate_histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric per step, or its ratio to another one.

    Attributes:
        title: The headline of the panel.
        metric: The name of the metric in metrics.jsonl.
        per: The metric that it is divided by, if one is named.
        scale: Quantities of a figure with the same scale share their vertical range.
    """

    title: str
    metric: str
    per: str = ""
    scale: str = ""

    def values(self, run: Run) -> np.ndarray:
        """Return the quantity over the run's steps [N], nan where it is not recorded."""
        value_N = run.column(self.metric)
        return ratio(value_N, run.column(self.per)) if self.per else value_N


PROMPTS = "ada/prompts_drawn"
SAMPLING = Figure(
    "sampling",
    "Sampling dynamics",
    "Shares of the prompts that responses were drawn for. A prompt is resolved when its pool meets the exit condition. "
    "An unresolved prompt lacks correct or incorrect responses; a positive or fixed exit allows only one of the two. "
    "A zero-signal group has equal labels throughout and teaches nothing. The last panel is the share that GRPO "
    "would have had on the same prompts.",
)
SAMPLING_QUANTITIES = (
    Series("responses drawn per prompt", "ada/samples_drawn", PROMPTS),
    Series("resolved in the first wave (share)", "ada/resolved_in_first_wave", PROMPTS),
    Series("unresolved: lacks correct (share)", "ada/missing_positive", PROMPTS, "missing"),
    Series("unresolved: lacks incorrect (share)", "ada/missing_negative", PROMPTS, "missing"),
    Series("zero-signal groups (share)", "ada/zero_signal_groups", scale="signal"),
    Series("zero-signal groups if GRPO (share)", "ada/zero_signal_groups_if_grpo", scale="signal"),
)
OPTIMISER = Figure(
    "optimiser",
    "Optimiser",
    "Health of the update. An entropy that falls towards 0 leaves nothing to explore. A KL divergence that grows shows "
    "that the policy leaves the one that drew the responses, or the reference. A length that grows without a better "
    "score costs time and buys nothing.",
)
OPTIMISER_QUANTITIES = (
    Series("loss", "train/loss"),
    Series("policy entropy (nats per token)", "train/entropy"),
    Series("KL to the policy before the update", "train/approx_kl"),
    Series("KL to the reference policy", "train/kl_penalty"),
    Series("KL between rollout and learner", "train/gen_kl_error"),
    Series("tokens per response", "train/mean_gen_tokens_per_sample"),
    Series("gradient norm before clipping", "train/grad_norm"),
    Series("clipped tokens (share)", "train/clip_fraction"),
    Series("learning rate", "train/lr"),
)


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures that people read, in reading order. TensorBoard and W&B have every other metric."""
    return [
        *(_score(runs, key) for key in score_keys(runs)),
        _pass_rate(runs),
        rates_over_time(runs),
        over_steps(SAMPLING, SAMPLING_QUANTITIES, runs),
        step_time(runs),
        over_steps(OPTIMISER, OPTIMISER_QUANTITIES, runs),
    ]


def over_steps(empty: Figure, quantities: Sequence[Series], runs: Sequence[Run]) -> Figure:
    """Return the figure with a panel for each quantity that any run has recorded."""
    tables = [
        in_blocks(pd.DataFrame({"step": run.column("step")} | {q.title: q.values(run) for q in quantities}))
        for run in runs
    ]
    shown = [quantity for quantity in quantities if any(table[quantity.title].notna().any() for table in tables)]
    if not shown:
        return replace(empty, caption=NOT_RECORDED)
    panels = []
    for quantity in shown:
        alike = [other for other in shown if other is quantity or (other.scale and other.scale == quantity.scale)]
        lines = _lines(runs, [(table["step"], table[quantity.title]) for table in tables], smooth=True)
        y_range = span([table[other.title].to_numpy() for other in alike for table in tables], zero=True)
        panels.append((_curves(quantity.title, AXES["step"], lines, y_range), lines))
    return _with_lines(empty, panels, _table(runs, tables, [quantity.title for quantity in shown]))


def _lines(runs: Sequence[Run], curves: Sequence[tuple[pd.Series, pd.Series]], *, smooth: bool = False) -> list[Line]:
    """Return one line per method that has values.

    Args:
        runs: The runs.
        curves: Places and values of each run.
        smooth: Whether long lines are rolling means.
    """
    lines = []
    for method, members in enumerate(by_method(runs).values()):
        known = [curves[i] for i in members if (curves[i][0].notna() & curves[i][1].notna()).any()]
        trends = [trend(y) if smooth else None for _, y in known]
        if len(known) == 1:
            (x, y), rolling = known[0], trends[0]
            lines.append(Line(method, x.to_numpy(), y.to_numpy(), None if rolling is None else rolling.to_numpy()))
        elif known:
            smoothed = [(x, y if rolling is None else rolling) for (x, y), rolling in zip(known, trends, strict=True)]
            places, mean, half_width = band((x.to_numpy(), y.to_numpy()) for x, y in smoothed)
            if len(places):
                lines.append(Line(method, places, mean, half_width=half_width))
    return lines


def _with_lines(empty: Figure, panels: Sequence[tuple[Panel, Sequence[Line]]], table: pd.DataFrame) -> Figure:
    """Return the figure with panels of lines. Its caption explains rolling means and bands where there are some."""
    lines = [line for _, shown in panels for line in shown]
    rolling = ROLLING if any(line.trend is not None for line in lines) else ""
    bands = BANDS if any(line.half_width is not None for line in lines) else ""
    methods = sorted({line.method for line in lines})
    caption = empty.caption + rolling + bands
    return replace(empty, caption=caption, panels=[panel for panel, _ in panels], table=table, methods=methods)


def _table(runs: Sequence[Run], tables: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Return the values of all runs below each other."""
    parts = [table[list(columns)].reset_index(names="steps") for table in tables]
    for run, part in zip(runs, parts, strict=True):
        part.insert(0, "run", run.name)
    return pd.concat(parts, ignore_index=True)


def _curves(title: str, x_label: str, lines: Sequence[Line], y_range: tuple[float, float]) -> Panel:
    drawing = partial(draw_lines, lines=lines, y_range=y_range)
    return Panel(title, x_label, f"{len(lines)} line{'s' if len(lines) != 1 else ''} over {x_label}", drawing)


def _score(runs: Sequence[Run], key: str) -> Figure:
    name = key.removeprefix("val/")
    empty = Figure(
        f"heldout-{name.replace('@', '-at-')}",
        f"Held-out {name}",
        f"Held-out {name} against a measure of cost, which you choose. The measure that counts is what the run pays "
        "for. At equal steps a method that draws more responses has an advantage, at equal responses one that draws "
        "few. Differences between single runs contain the noise of evaluation and of one seed. Compare several seeds "
        "before you choose.",
    )
    return _over_costs(empty, f"held-out {name}", runs, [run.evaluation_column for run in runs], key)


def _pass_rate(runs: Sequence[Run]) -> Figure:
    empty = Figure(
        "pass-rate",
        "Training reward (pass rate)",
        "Share of correct responses on the training prompts, mean over prompts. GRPO logs the same as its reward, so "
        "methods can be compared. The mean over kept rows cannot be compared (see pools below).",
    )
    return _over_costs(empty, "pass rate", runs, [run.column for run in runs], "ada/pass_rate", smooth=True)


def _over_costs(
    empty: Figure,
    y_name: str,
    runs: Sequence[Run],
    columns: Sequence[Callable[[str], np.ndarray]],
    key: str,
    *,
    smooth: bool = False,
) -> Figure:
    """Return the figure of one metric against each axis of cost. columns[i] looks up a metric of run i."""
    tables = [
        in_blocks(pd.DataFrame({axis: column(axis) for axis in AXES} | {y_name: column(key)})) for column in columns
    ]
    panels = []
    y_range = span([table[y_name].to_numpy() for table in tables])
    for axis, label in AXES.items():
        lines = _lines(runs, [(table[axis], table[y_name]) for table in tables], smooth=smooth)
        if lines:
            panels.append((_curves(y_name, label, lines, y_range), lines))
    if not panels:
        return replace(empty, caption=NOT_RECORDED)
    recorded = [(run, table) for run, table in zip(runs, tables, strict=True) if table[y_name].notna().any()]
    costs = {axis: label for axis, label in AXES.items() if axis != "step"}
    table = _table([run for run, _ in recorded], [table for _, table in recorded], [*costs, y_name])
    return _with_lines(replace(empty, choice=True), panels, table.rename(columns=costs))


def rates_over_time(runs: Sequence[Run]) -> Figure:
    """Return how the prompts spread between never and always solved: a heat map per run that has recorded it."""
    panels: list[Panel] = []
    tables: dict[int, pd.DataFrame] = {}
    names = [f"exactly {RATE_BINS[0]}", *(f"about {name}" for name in RATE_BINS[1:-1]), f"exactly {RATE_BINS[-1]}"]
    for i, run in enumerate(runs):
        count_NB = run.counts(HISTOGRAM, len(RATE_BINS))
        if not count_NB.any():
            continue
        step_N = run.column("step")
        blocks = in_blocks(pd.DataFrame({"step": step_N} | dict(zip(names, count_NB.T, strict=True))), MAX_HEAT_COLUMNS)
        starts = np.arange(0, len(step_N), block_size(len(step_N), MAX_HEAT_COLUMNS))
        total_C = np.add.reduceat(count_NB.sum(axis=1), starts)
        count_CB = np.add.reduceat(count_NB, starts)
        share_CB = np.divide(count_CB, total_C[:, None], out=np.zeros_like(count_CB), where=total_C[:, None] > 0)
        edges_C = np.append(step_N[starts] - 0.5, step_N[-1] + 0.5)
        first, last = ([f"{share_CB[c, b]:.0%}" for b in (0, -1)] for c in (0, -1))
        summary = f"first column: rate 0 {first[0]}, rate 1 {first[1]}; last: {last[0]}, {last[1]}"
        drawing = partial(draw_shares, bins=RATE_BINS, edges_C=edges_C, share_BC=share_CB.T)
        panels.append(Panel(run.name, AXES["step"], summary, drawing))
        shares = [
            [f"{share:.1%}" if total else "–" for share in row] for total, row in zip(total_C, share_CB, strict=True)
        ]
        tables[i] = pd.DataFrame(shares, columns=names, index=blocks.index)
        tables[i].insert(0, "prompts", total_C)
    without = [run.name for i, run in enumerate(runs) if i not in tables]
    caption = (
        "Share of the training prompts at each estimated pass rate. Each panel is one run, each column a step or a "
        "block of steps. Shades mean the same in all panels. The lowest row holds prompts without a correct response, "
        "the highest those without an incorrect one: GRPO learns from neither. The estimate is unbiased: the first "
        "wave's share of correct responses, or path counts where prompts stop at the exact response. It comes from "
        "few responses, so the true rates are spread less, and a first wave of 4 fills every other row only."
    )
    if not panels:
        return Figure("pass-rates", "Pass rates over time", NOT_RECORDED)
    if without:
        caption += f" Not recorded by: {', '.join(without)}."
    table = _table([runs[i] for i in tables], list(tables.values()), ["prompts", *names])
    return Figure("pass-rates", "Pass rates over time", caption, panels, table)


def _bars(
    title: str, x_label: str, parts: Sequence[str], runs: Sequence[Run], values: Mapping[int, Sequence[float]]
) -> Panel:
    """Return stacked bars of some runs."""
    names, value_RK = [runs[i].name for i in values], np.array(list(values.values()))
    drawing = partial(draw_bars, names=names, methods=_methods(runs, values), parts=parts, value_RK=value_RK)
    return Panel(title, x_label, _count(len(names)), drawing, rows=len(names) + 1)


def _methods(runs: Sequence[Run], positions: Iterable[int]) -> list[int]:
    """Return the number of the method of each of these runs."""
    method_of = {i: method for method, members in enumerate(by_method(runs).values()) for i in members}
    return [method_of[i] for i in positions]


def _count(runs: int) -> str:
    return f"{runs} run{'s' if runs > 1 else ''}"


def step_time(runs: Sequence[Run]) -> Figure:
    """Return where the seconds go: mean per step and phase, p50 and p95, and the plan's prediction."""
    seconds = [_durations(run) for run in runs]
    timed = [i for i, times in enumerate(seconds) if any(len(times[phase]) for phase in PHASES)]
    if not timed:
        return Figure("time", "Step time", NOT_RECORDED)
    per_step = {i: [seconds[i][phase].sum() / len(runs[i].steps) for phase in PHASES] for i in timed}
    panels = [_bars("mean seconds per step by phase", "seconds per step", PHASES, runs, per_step)]
    rows: list[dict[str, float | str]] = []
    for phase in ("step", *PHASES):
        ranges: dict[int, tuple[float, ...]] = {}
        for i in timed:
            times = seconds[i][phase]
            if not len(times):
                continue
            p50, p95 = (float(value) for value in np.percentile(times, (50, 95)))
            planned = runs[i].planned_seconds(phase)
            ranges[i] = (p50, p95, *planned)
            values = (float(len(times)), float(times.mean()), p50, p95, float(times.max()), *planned)
            rows.append({"run": runs[i].name, "phase": phase} | dict(zip(TIME_COLUMNS, values, strict=True)))
        if ranges:
            names = [runs[i].name for i in ranges]
            seconds_R4 = np.array(list(ranges.values()))
            drawing = partial(draw_ranges, names=names, methods=_methods(runs, ranges), seconds_R4=seconds_R4)
            title = f"{phase}: p50 to p95 (seconds)"
            panels.append(Panel(title, "seconds", _count(len(ranges)), drawing, rows=len(ranges)))
    if any(np.isfinite(runs[i].planned_seconds("step")[0]) for i in timed):
        plan = "Hollow diamonds are the p50 and p95 that plan.json predicted; see Plan for the whole step."
    else:
        plan = "No run has a plan.json to compare with (nemo-ada plan CONFIG --write RUN)."
    caption = (
        "The first panel is the mean over all steps of the run: a phase that only some steps have, and the "
        "evaluations, are spread over all of them. Colours inside its bars are phases. The other panels show "
        "a dot at p50 and a bar to p95, over the steps that have the phase. A step is sampling, update and refit. "
        f"Evaluations are timed one by one. {plan}"
    )
    table = pd.DataFrame(rows).sort_values(
        "run", key=lambda names: names.map([run.name for run in runs].index), kind="stable"
    )
    return Figure("time", "Step time", caption, panels, table)


def _durations(run: Run) -> dict[str, np.ndarray]:
    """Return the finite seconds of each phase."""
    columns = {name: run.column(f"time/{name}") for name in ("step", *PHASES[:3])}
    columns["evaluation"] = run.evaluation_column("time/evaluation")
    return {name: values[np.isfinite(values)] for name, values in columns.items()}
