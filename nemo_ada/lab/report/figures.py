"""The figures of the report, made from the metrics that a run records.

core/metrics.py names those under ada/. The back ends record train/, time/ and total/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nemo_ada.core.metrics import RATE_BINS
from nemo_ada.lab.report.curves import band, by_method
from nemo_ada.lab.report.draw import MAX_PALE_LINES
from nemo_ada.lab.report.run import Run, score_keys
from nemo_ada.lab.report.series import (
    AXES,
    NOT_RECORDED,
    TREND,
    Figure,
    Line,
    Panel,
    block_size,
    in_blocks,
    ratio,
    span,
    trend,
)  # fmt: skip

MAX_RATE_ROWS = 48
PHASES = ("sampling", "update", "refit", "evaluation")
TIME_COLUMNS = ("s per step", "times", "mean s", "p50 s", "p95 s", "longest s", "planned p50 s", "planned p95 s")
ROLLING = (
    f" Lines are rolling means over {TREND} points. The values themselves are in the table and, with at most "
    f"{MAX_PALE_LINES} lines, behind the lines in pale."
)
BANDS = " Runs that differ only in their seed are one line, their mean, with its 95 % interval over seeds as a band."
HISTOGRAM = "ada/pass_rate_histogram"
RATES_CAPTION = (
    "Share of the training prompts at each estimated pass rate, by step or block of steps. The first column holds "
    "prompts without a correct response, the last those without an incorrect one: GRPO learns from neither. The "
    "estimate is unbiased: the first wave's share of correct responses, or path counts where prompts stop at the exact "
    "response. It comes from few responses, so the true rates are spread less, and a first wave of 4 fills every other "
    "column only."
)
TIME_CAPTION = (
    "The first column is the mean over all steps of the run: a phase that only some steps have, and the evaluations, "
    "are spread over all of them. The others are over the steps that have the phase. A step is sampling, update and "
    "refit. Evaluations are timed one by one. The plan's seconds are those of plan.json; see Plan for the whole step."
)


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
        panels.append(Panel(quantity.title, AXES["step"], lines, y_range))
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


def _with_lines(empty: Figure, panels: Sequence[Panel], table: pd.DataFrame) -> Figure:
    """Return the figure with panels of lines. Its caption explains rolling means and bands where there are some."""
    lines = [line for panel in panels for line in panel.lines]
    rolling = ROLLING if any(line.trend is not None for line in lines) else ""
    bands = BANDS if any(line.half_width is not None for line in lines) else ""
    methods = sorted({line.method for line in lines})
    caption = empty.caption + rolling + bands
    return replace(empty, caption=caption, panels=panels, table=table, methods=methods)


def _table(runs: Sequence[Run], tables: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Return the values of all runs below each other."""
    parts = [table[list(columns)].reset_index(names="steps") for table in tables]
    for run, part in zip(runs, parts, strict=True):
        part.insert(0, "run", run.name)
    return pd.concat(parts, ignore_index=True)


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
            panels.append(Panel(y_name, label, lines, y_range))
    if not panels:
        return replace(empty, caption=NOT_RECORDED)
    recorded = [(run, table) for run, table in zip(runs, tables, strict=True) if table[y_name].notna().any()]
    costs = {axis: label for axis, label in AXES.items() if axis != "step"}
    table = _table([run for run, _ in recorded], [table for _, table in recorded], [*costs, y_name])
    return _with_lines(replace(empty, choice=True), panels, table.rename(columns=costs))


def rates_over_time(runs: Sequence[Run]) -> Figure:
    """Return how the prompts spread between never and always solved, as a table of the runs that have recorded it."""
    tables: dict[int, pd.DataFrame] = {}
    names = [f"exactly {RATE_BINS[0]}", *(f"about {name}" for name in RATE_BINS[1:-1]), f"exactly {RATE_BINS[-1]}"]
    for i, run in enumerate(runs):
        count_NB = run.counts(HISTOGRAM, len(RATE_BINS))
        if not count_NB.any():
            continue
        counted = pd.DataFrame({"step": run.column("step")} | dict(zip(names, count_NB.T, strict=True)))
        blocks = in_blocks(counted, MAX_RATE_ROWS)  # means of counts have the shares of their sums
        starts = np.arange(0, len(count_NB), block_size(len(count_NB), MAX_RATE_ROWS))
        shares = blocks[names].div(blocks[names].sum(axis=1), axis=0)
        tables[i] = shares.map(lambda share: f"{share:.1%}" if np.isfinite(share) else "–")
        tables[i].insert(0, "prompts", np.add.reduceat(count_NB.sum(axis=1), starts))
    if not tables:
        return Figure("pass-rates", "Pass rates over time", NOT_RECORDED)
    without = [run.name for i, run in enumerate(runs) if i not in tables]
    caption = RATES_CAPTION + (f" Not recorded by: {', '.join(without)}." if without else "")
    table = _table([runs[i] for i in tables], list(tables.values()), ["prompts", *names])
    return Figure("pass-rates", "Pass rates over time", caption, table=table)


def step_time(runs: Sequence[Run]) -> Figure:
    """Return where the seconds go: mean per step and phase, p50 and p95, and the plan's prediction."""
    rows: list[dict[str, float | str]] = []
    for run in runs:
        for phase, times in _durations(run).items():
            if len(times):
                p50, p95 = np.percentile(times, (50, 95))
                per_step = times.sum() / len(run.steps)
                values = (per_step, len(times), times.mean(), p50, p95, times.max(), *run.planned_seconds(phase))
                named = zip(TIME_COLUMNS, map(float, values), strict=True)
                rows.append({"run": run.name, "phase": phase} | dict(named))
    if not rows:
        return Figure("time", "Step time", NOT_RECORDED)
    planned = any(np.isfinite(run.planned_seconds("step")[0]) for run in runs)
    plan = "" if planned else " No run has a plan.json to compare with (nemo-ada plan CONFIG --write RUN)."
    return Figure("time", "Step time", TIME_CAPTION + plan, table=pd.DataFrame(rows))


def _durations(run: Run) -> dict[str, np.ndarray]:
    """Return the finite seconds of each phase."""
    columns = {name: run.column(f"time/{name}") for name in ("step", *PHASES[:3])}
    columns["evaluation"] = run.evaluation_column("time/evaluation")
    return {name: values[np.isfinite(values)] for name, values in columns.items()}
