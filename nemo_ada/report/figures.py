"""The figures of the report, as descriptions (spec.py) made from recorded metrics (core/metrics.py and the trainer)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nemo_ada.core.metrics import BOUNDS
from nemo_ada.report.histogram import rates_over_time
from nemo_ada.report.run import Run
from nemo_ada.report.sections import BUDGET, CAPS, OPTIMISER, POOLS, SAMPLING, UNCAPPED, WEIGHTS
from nemo_ada.report.series import AXES, Blocks, OverSteps, Quantity, metric, over_steps, trend
from nemo_ada.report.spec import NOT_RECORDED, BarPanel, Figure, Line, LinePanel, Panel, Row, Table, span, text_of
from nemo_ada.report.timing import step_time

FRONTIER_BINS = 12
PASS_AT_K = re.compile(r"val/pass@[1-9][0-9]{0,4}")
MAX_SCORES = 6  # pass@k figures; a sane evaluation records one or two


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure of the report, in reading order."""
    return [
        *(_score(runs, key) for key in score_keys(runs)),
        _pass_rate(runs),
        rates_over_time(runs),
        frontier(runs),
        over_steps(SAMPLING, runs),
        over_steps(POOLS, runs),
        budget(runs),
        step_time(runs),
        over_steps(WEIGHTS, runs),
        over_steps(OPTIMISER, runs),
    ]


def score_keys(runs: Sequence[Run]) -> list[str]:
    """Evaluation scores that any run has: accuracy, then pass@k. Nothing else in a record can name a figure or file."""
    names = {key for run in runs for record in run.evaluations for key in record}
    passes = sorted((key for key in names if PASS_AT_K.fullmatch(key)), key=lambda key: int(key.partition("@")[2]))
    return (["val/accuracy"] if "val/accuracy" in names else []) + passes[:MAX_SCORES]


def _score(runs: Sequence[Run], key: str) -> Figure:
    name = key.removeprefix("val/")
    lines = [(i, run.evaluation_column(key), run.evaluation_column, "after step ") for i, run in enumerate(runs)]
    return _over_costs(
        f"heldout-{name}",
        f"Held-out {name}",
        f"Held-out {name} against six measures of cost. Which one counts is what the run pays for: at equal steps a "
        "method that draws more responses is favoured, at equal responses one that draws few. Differences between "
        "single runs contain the noise of evaluation and of one seed; compare several seeds before choosing.",
        f"held-out {name}",
        lines,
    )


def _pass_rate(runs: Sequence[Run]) -> Figure:
    lines = [(i, run.column("ada/pass_rate"), run.column, "step ") for i, run in enumerate(runs)]
    return _over_costs(
        "pass-rate",
        "Training reward (pass rate)",
        "Share of correct responses on the training prompts, mean over prompts: what GRPO logs as its reward, "
        "comparable between methods. The mean over kept rows is not (see pools below).",
        "pass rate",
        lines,
        smooth=True,
    )


def _over_costs(
    key: str, title: str, caption: str, y_name: str, lines: Sequence[tuple], *, smooth: bool = False
) -> Figure:
    """One quantity against every axis of cost; each line is (run, values, column lookup, label prefix)."""
    drawn = []
    for i, value, column, prefix in lines:
        blocks = Blocks.of(column("step"))
        drawn.append((i, blocks, blocks.mean(value), {axis: blocks.mean(column(axis)) for axis in AXES}, prefix))
    drawn = [item for item in drawn if np.isfinite(item[2]).any()]
    y_range = span([item[2] for item in drawn], zero=False)
    panels: list[Panel] = []
    for axis, x_label in AXES.items():
        panel_lines = []
        for i, blocks, mean, x, prefix in drawn:
            if not np.isfinite(x[axis]).any():
                continue
            labels = [prefix + label for label in blocks.labels()]
            if axis != "step":
                labels = [f"{a}, {text_of(float(b))} {x_label}" for a, b in zip(labels, x[axis], strict=True)]
            panel_lines.append(Line(i, x[axis], mean, labels, trend(mean) if smooth else None))
        if panel_lines:
            panels.append(LinePanel(y_name, x_label, panel_lines, y_range))
    rows: list[Row] = [
        (i, (label, *(float(x[axis][j]) for axis in AXES if axis != "step"), float(mean[j])))
        for i, blocks, mean, x, _ in drawn
        for j, label in enumerate(blocks.labels())
    ]
    columns = ("steps", *(name for axis, name in AXES.items() if axis != "step"), y_name)
    return Figure(key, title, caption if panels else NOT_RECORDED, panels, Table(columns, rows))


def frontier(runs: Sequence[Run]) -> Figure:
    """Reward against the entropy of the policy, and the entropy over the steps."""
    entropy = Quantity("policy entropy (nats per token)", metric("train/entropy"))
    over = over_steps(OverSteps("frontier", "Reward and entropy", "", (entropy,)), runs)
    if not over.panels:
        return over
    lines, heldout = [], []
    for i, run in enumerate(runs):
        step_N, x_N, y_N = run.column("step"), run.column("train/entropy"), run.column("ada/pass_rate")
        size = max(1, -(-len(step_N) // FRONTIER_BINS))
        blocks = Blocks(step_N, size)
        lines.append(Line(i, blocks.mean(x_N), blocks.mean(y_N), [f"step {label}" for label in blocks.labels()]))
        at, score = run.curve("step", "val/accuracy")
        known = np.isfinite(x_N)
        if len(at) and known.any():
            smooth = np.interp(at, step_N[known], _smooth(x_N[known]))
            heldout.append(Line(i, smooth, score, [f"after step {step:.0f}" for step in at]))
    panels: list[Panel] = [
        LinePanel("pass rate", entropy.title, lines, span([line.y for line in lines], zero=False), ends=True)
    ]
    if heldout:
        y_range = span([line.y for line in heldout], zero=False)
        panels.append(LinePanel("held-out accuracy", entropy.title, heldout, y_range, ends=True))
    caption = (
        "Each curve is one training, from the ring (start) to the large mark (end); higher is better, and at equal "
        "height further right has kept more exploration. Means over blocks of steps, at most "
        f"{FRONTIER_BINS} per run; the entropy at an evaluation is the mean of the steps around it."
    )
    rows: list[Row] = [
        (line.run, (line.labels[j], float(line.x[j]), float(line.y[j]), what))
        for what, group in (("pass rate", lines), ("held-out accuracy", heldout))
        for line in group
        for j in range(len(line.x))
    ]
    rows += [(i, (values[0], values[1], "–", "entropy over steps")) for i, values in over.table.rows]
    rows.sort(key=lambda row: row[0])
    table = Table(("steps", entropy.title, "reward", "which"), rows)
    return replace(over, caption=caption, panels=[*panels, *over.panels], table=table)


def _smooth(values: np.ndarray, window: int = 9) -> np.ndarray:
    if len(values) < window:
        return np.full(len(values), values.mean())
    return np.convolve(np.pad(values, window // 2, mode="edge"), np.ones(window) / window, mode="valid")


def budget(runs: Sequence[Run]) -> Figure:
    """What was used per step, of which cap, and which cap refused prompts."""
    capped = any(np.isfinite(cap.values(run)).any() for cap in CAPS for run in runs)
    figure = over_steps(BUDGET if capped else replace(BUDGET, caption=UNCAPPED), runs)
    share_RK = np.zeros((len(runs), len(BOUNDS)))
    for i, run in enumerate(runs):
        bound_N = run.column("ada/budget_bound")
        known = bound_N[np.isfinite(bound_N)]
        if len(known):
            share_RK[i] = [float((known == k).mean()) for k in range(len(BOUNDS))]
    recorded = [i for i in range(len(runs)) if share_RK[i].any()]
    if not recorded:
        return figure
    bars = BarPanel("what bound (share of steps)", "share of steps", BOUNDS, recorded, share_RK[recorded], True)
    rows: list[Row] = [
        *figure.table.rows,
        *((i, (f"all: bound by {name}: {share_RK[i, k]:.1%}",)) for i in recorded for k, name in enumerate(BOUNDS)),
    ]
    rows.sort(key=lambda row: row[0])
    return replace(figure, panels=[*figure.panels, bars], table=Table(figure.table.columns, rows))
