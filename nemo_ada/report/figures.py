"""The figures of the report, made from recorded metrics (core/metrics.py and the back ends' train/, time/, total/)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nemo_ada.core.metrics import BOUNDS, RATE_BINS, TENTHS
from nemo_ada.report.draw import MAX_PALE_RUNS, Line, draw_bars, draw_lines, draw_ranges, draw_shares
from nemo_ada.report.run import Run
from nemo_ada.report.series import AXES, NOT_RECORDED, TREND, Blocks, Figure, Panel, Row, ratio, span, trend

MAX_HEAT_COLUMNS = 48
MAX_SCORES = 6  # pass@k figures; an evaluation records one or two
PASS_AT_K = re.compile(r"val/pass@[1-9][0-9]{0,4}")
PHASES = ("sampling", "update", "refit", "evaluation")
ROLLING = (
    f" Lines are rolling means over {TREND} points. The values themselves are in the table and, with at most "
    f"{MAX_PALE_RUNS} runs, behind the lines in pale."
)
HISTOGRAM = "ada/pass_rate_histogram"
PREDICTED = ("responses", "correct")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A metric per step, divided by the metric `per` if that is named.

    A `per` that is a running total stands for its increase in the step. Quantities of a figure with the same `scale`
    share their vertical range.
    """

    title: str
    metric: str
    per: str = ""
    scale: str = ""

    def values(self, run: Run) -> np.ndarray:
        """The quantity over the run's steps; nan where it is not recorded."""
        value_N = run.column(self.metric)
        if not self.per:
            return value_N
        per_N = run.column(self.per)
        if self.per.startswith("total/"):
            per_N = np.diff(per_N, prepend=0.0 if run.column("step")[0] == 1 else np.nan)
        return ratio(value_N, per_N)


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
    Quantity("responses drawn per prompt", "ada/samples_drawn", PROMPTS),
    Quantity("resolved in the first wave (share)", "ada/resolved_in_first_wave", PROMPTS),
    Quantity("unresolved: lacks correct (share)", "ada/missing_positive", PROMPTS, "missing"),
    Quantity("unresolved: lacks incorrect (share)", "ada/missing_negative", PROMPTS, "missing"),
    Quantity("zero-signal groups (share)", "ada/zero_signal_groups", scale="signal"),
    Quantity("zero-signal groups if GRPO (share)", "ada/zero_signal_groups_if_grpo", scale="signal"),
)
POOLS = Figure(
    "pools",
    "Pools over time",
    "Sizes and rewards of the pools. Where kept rows are balanced between correct and incorrect ones, their mean "
    "reward lies near one half and says little about the policy.",
)
POOLS_QUANTITIES = (
    Quantity("pool size, mean (responses)", "ada/pool_size_mean", scale="size"),
    Quantity("pool size, p95 (responses)", "ada/pool_size_p95", scale="size"),
    Quantity("pass rate, mean over prompts", "ada/pass_rate", scale="rate"),
    Quantity("mean reward of kept rows", "ada/batch_reward", scale="rate"),
    Quantity("tokens per response in pools", "ada/response_length_pools", scale="length"),
    Quantity("tokens per kept response", "ada/response_length_kept", scale="length"),
)
BUDGET = Figure(
    "budget",
    "Budget",
    "Use of each cap that a run has set, and what a step costs. The last panel shows the share of steps that each cap "
    "bound: in them it refused a prompt another response. Colours inside its bars are caps, not runs.",
)
CAPS_QUANTITIES = (
    Quantity("used share of max_samples", "ada/budget_used_samples", scale="used"),
    Quantity("used share of max_tokens", "ada/budget_used_tokens", scale="used"),
    Quantity("used share of max_seconds", "ada/budget_used_seconds", scale="used"),
)
COST_QUANTITIES = (
    Quantity("responses drawn per step", "ada/samples_drawn"),
    Quantity("generated tokens per step", "ada/tokens_drawn"),
    Quantity("sampling seconds per step", "ada/sampling_seconds"),
    Quantity("engine utilisation (of peak)", "ada/engine_utilisation"),
    Quantity("prompts refused a response (share)", "ada/prompts_cut", PROMPTS),
)
UNCAPPED = "None of these runs has set a cap. The panels show what a step costs."
WEIGHTS = Figure(
    "weights",
    "Weights and live rows",
    "The explicit weight of each prompt's advantages (1 for the linear objective), and the share of kept rows that "
    "have a gradient.",
)
WEIGHTS_QUANTITIES = (
    Quantity("gradient weight per prompt, mean", "ada/weight_mean"),
    Quantity("gradient weight per prompt, maximum", "ada/weight_max"),
    Quantity("rows with non-zero advantage (share)", "ada/live_rows", "total/rows"),
)
OPTIMISER = Figure(
    "optimiser", "Optimiser", "Health of the update. An entropy that falls towards 0 leaves nothing to explore."
)
OPTIMISER_QUANTITIES = (
    Quantity("policy entropy (nats per token)", "train/entropy"),
    Quantity("gradient norm before clipping", "train/grad_norm"),
    Quantity("clipped tokens (share)", "train/clip_fraction"),
    Quantity("learning rate", "train/lr"),
)


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure of the report, in reading order."""
    return [
        *(_score(runs, key) for key in score_keys(runs)),
        _pass_rate(runs),
        rates_over_time(runs),
        *predictions(runs),
        over_steps(SAMPLING, SAMPLING_QUANTITIES, runs),
        over_steps(POOLS, POOLS_QUANTITIES, runs),
        budget(runs),
        step_time(runs),
        over_steps(WEIGHTS, WEIGHTS_QUANTITIES, runs),
        over_steps(OPTIMISER, OPTIMISER_QUANTITIES, runs),
    ]


def score_keys(runs: Sequence[Run]) -> list[str]:
    """Evaluation scores that any run has: accuracy, then pass@k. Nothing else in a record can name a figure or file."""
    names = {key for run in runs for record in run.evaluations for key in record}
    passes = sorted((key for key in names if PASS_AT_K.fullmatch(key)), key=lambda key: int(key.partition("@")[2]))
    return (["val/accuracy"] if "val/accuracy" in names else []) + passes[:MAX_SCORES]


def over_steps(empty: Figure, quantities: Sequence[Quantity], runs: Sequence[Run]) -> Figure:
    """The figure with a panel for each quantity that any run has recorded."""
    blocks = [Blocks.of(run.column("step")) for run in runs]
    x = [block.mean(run.column("step")) for block, run in zip(blocks, runs, strict=True)]
    means = {
        quantity: [block.mean(quantity.values(run)) for block, run in zip(blocks, runs, strict=True)]
        for quantity in quantities
    }
    shown = [quantity for quantity in quantities if any(np.isfinite(mean).any() for mean in means[quantity])]
    if not shown:
        return replace(empty, caption=NOT_RECORDED)
    panels, rolling = [], ""
    for quantity in shown:
        alike = [other for other in shown if other is quantity or (other.scale and other.scale == quantity.scale)]
        lines = [Line(i, x[i], mean, trend(mean)) for i, mean in enumerate(means[quantity]) if np.isfinite(mean).any()]
        rolling = ROLLING if any(line.trend is not None for line in lines) else rolling
        y_range = span([mean for other in alike for mean in means[other]], zero=True)
        panels.append(_curves(quantity.title, AXES["step"], lines, y_range))
    rows: list[Row] = [
        (i, (label, *(float(means[quantity][i][j]) for quantity in shown)))
        for i, block in enumerate(blocks)
        for j, label in enumerate(block.labels())
    ]
    columns = ("steps", *(quantity.title for quantity in shown))
    return replace(empty, caption=empty.caption + rolling, panels=panels, columns=columns, rows=rows)


def _curves(title: str, x_label: str, lines: Sequence[Line], y_range: tuple[float, float]) -> Panel:
    drawing = partial(draw_lines, lines=lines, y_range=y_range)
    return Panel(title, x_label, f"{_count(len(lines))} over {x_label}", drawing)


def _count(runs: int) -> str:
    return f"{runs} run{'s' if runs > 1 else ''}"


def _score(runs: Sequence[Run], key: str) -> Figure:
    name = key.removeprefix("val/")
    empty = Figure(
        f"heldout-{name.replace('@', '-at-')}",
        f"Held-out {name}",
        f"Held-out {name} against measures of cost; what counts is what the run pays for. At equal steps a method that "
        "draws more responses has an advantage, at equal responses one that draws few. Differences between single "
        "runs contain the noise of evaluation and of one seed. Compare several seeds before you choose.",
    )
    return _over_costs(empty, f"held-out {name}", runs, [run.evaluation_column for run in runs], key)


def _pass_rate(runs: Sequence[Run]) -> Figure:
    empty = Figure(
        "pass-rate",
        "Training reward (pass rate)",
        "Share of correct responses on the training prompts, mean over prompts. GRPO logs the same as its reward, so "
        "methods can be compared. The mean over kept rows cannot (see pools below).",
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
    """One metric against each axis of cost; columns[i] looks up a metric of run i."""
    lines: dict[str, list[Line]] = {axis: [] for axis in AXES}
    rows: list[Row] = []
    for i, column in enumerate(columns):
        blocks = Blocks.of(column("step"))
        y = blocks.mean(column(key))
        if not np.isfinite(y).any():
            continue
        x = {axis: blocks.mean(column(axis)) for axis in AXES}
        for axis in AXES:
            if np.isfinite(x[axis]).any():
                lines[axis].append(Line(i, x[axis], y, trend(y) if smooth else None))
        costs = [x[axis] for axis in AXES if axis != "step"]
        rows += [
            (i, (label, *(float(cost[j]) for cost in costs), float(y[j]))) for j, label in enumerate(blocks.labels())
        ]
    y_range = span([line.y for line in lines["step"]])
    panels = [_curves(y_name, label, lines[axis], y_range) for axis, label in AXES.items() if lines[axis]]
    names = ("steps", *(label for axis, label in AXES.items() if axis != "step"), y_name)
    if not panels:
        return replace(empty, caption=NOT_RECORDED)
    rolling = ROLLING if any(line.trend is not None for line in lines["step"]) else ""
    return replace(empty, caption=empty.caption + rolling, panels=panels, columns=names, rows=rows)


def rates_over_time(runs: Sequence[Run]) -> Figure:
    """How the prompts spread between never and always solved: a heat map per run that has recorded it."""
    panels: list[Panel] = []
    rows: list[Row] = []
    without = []
    for i, run in enumerate(runs):
        count_NB = run.counts(HISTOGRAM, len(RATE_BINS))
        if not count_NB.any():
            without.append(run.name)
            continue
        blocks = Blocks.of(run.column("step"), MAX_HEAT_COLUMNS)
        count_CB = np.add.reduceat(count_NB, blocks.starts)
        total_C = count_CB.sum(axis=1)
        share_CB = np.divide(count_CB, total_C[:, None], out=np.zeros_like(count_CB), where=total_C[:, None] > 0)
        edges_C = np.append(blocks.step_N[blocks.starts] - 0.5, blocks.step_N[-1] + 0.5)
        first, last = ([f"{share_CB[c, b]:.0%}" for b in (0, -1)] for c in (0, -1))
        summary = f"first column: rate 0 {first[0]}, rate 1 {first[1]}; last: {last[0]}, {last[1]}"
        drawing = partial(draw_shares, bins=RATE_BINS, edges_C=edges_C, share_BC=share_CB.T)
        panels.append(Panel(run.name, AXES["step"], summary, drawing))
        rows += [
            (i, (label, float(total), *(f"{share:.1%}" if total else "–" for share in share_B)))
            for label, total, share_B in zip(blocks.labels(), total_C, share_CB, strict=True)
        ]
    caption = (
        "Share of the training prompts at each estimated pass rate. Each panel is one run, each column a step or a "
        "block of steps; shades mean the same in all panels. The lowest row holds prompts without a correct response, "
        "the highest those without an incorrect one: GRPO learns from neither. The estimate is unbiased: the first "
        "wave's share of correct responses, or path counts where prompts stop at the exact response. It comes from "
        "few responses, so the true rates are spread less, and a first wave of 4 fills every other row only."
    )
    if panels and without:
        caption += f" Not recorded by: {', '.join(without)}."
    names = (f"exactly {RATE_BINS[0]}", *(f"about {name}" for name in RATE_BINS[1:-1]), f"exactly {RATE_BINS[-1]}")
    return Figure(
        "pass-rates",
        "Pass rates over time",
        caption if panels else NOT_RECORDED,
        panels,
        ("steps", "prompts", *names),
        rows,
        legend=False,
    )


def predictions(runs: Sequence[Run]) -> list[Figure]:
    """Observed against predicted pass rates, for runs with an estimator; no figure where there is none."""
    lines, rows = [], list[Row]()
    for i, run in enumerate(runs):
        half = len(run.steps) // 2  # the estimator knows little at the start
        total_B, correct_B = (run.counts(f"ada/predicted_{name}", TENTHS)[half:].sum(axis=0) for name in PREDICTED)
        if not total_B.any():
            continue
        middle_B, observed_B = (np.arange(TENTHS) + 0.5) / TENTHS, ratio(correct_B, total_B)
        lines.append(Line(i, middle_B, observed_B))
        rows += [
            (i, (f"{b / TENTHS:.1f} to {(b + 1) / TENTHS:.1f}", float(total_B[b]), float(observed_B[b])))
            for b in range(TENTHS)
        ]
    if not lines:
        return []
    caption = (
        "Do prompts pass as often as the estimator predicted before the step? Each point is a tenth of the predicted "
        "pass rates, over the later half of the steps. A good estimator lies on the diagonal and uses its whole length."
    )
    panels = [_curves("observed pass rate", "predicted pass rate", lines, (0.0, 1.0))]
    columns = ("predicted", "first-wave responses", "observed")
    return [Figure("predictions", "Predicted pass rates", caption, panels, columns, rows)]


def budget(runs: Sequence[Run]) -> Figure:
    """What was used per step, of which cap, and which cap refused prompts."""
    capped = any(np.isfinite(cap.values(run)).any() for cap in CAPS_QUANTITIES for run in runs)
    empty = BUDGET if capped else replace(BUDGET, caption=UNCAPPED)
    figure = over_steps(empty, (*CAPS_QUANTITIES, *COST_QUANTITIES), runs)
    shares = {}
    for i, run in enumerate(runs):
        bound_N = run.column("ada/budget_bound")
        bound_N = bound_N[np.isfinite(bound_N)]
        if len(bound_N):
            shares[i] = [float((bound_N == k).mean()) for k in range(len(BOUNDS))]
    if not any(map(any, shares.values())):
        return figure
    panel = _bars(
        "what bound (share of steps)", "share of steps", BOUNDS, list(shares), np.array(list(shares.values()))
    )
    rows: list[Row] = [
        *figure.rows,
        *(
            (i, (f"all: bound by {name}: {share:.1%}",))
            for i, run_shares in shares.items()
            for name, share in zip(BOUNDS, run_shares, strict=True)
        ),
    ]
    rows.sort(key=lambda row: row[0])
    return replace(figure, panels=[*figure.panels, panel], rows=rows)


def _bars(title: str, x_label: str, parts: Sequence[str], runs: Sequence[int], value_RK: np.ndarray) -> Panel:
    """Stacked bars. Values whose axis is a share are written as percentages."""
    drawing = partial(draw_bars, runs=runs, parts=parts, value_RK=value_RK, percent=x_label.startswith("share"))
    return Panel(title, x_label, _count(len(runs)), drawing)


def step_time(runs: Sequence[Run]) -> Figure:
    """Where the seconds go: mean per step and phase, p50 and p95, and the plan's prediction."""
    seconds = [_durations(run) for run in runs]
    timed = [i for i, times in enumerate(seconds) if any(len(times[phase]) for phase in PHASES)]
    if not timed:
        return Figure("time", "Step time", NOT_RECORDED)
    per_step_RK = np.array([[seconds[i][phase].sum() / len(runs[i].steps) for phase in PHASES] for i in timed])
    panels = [_bars("mean seconds per step by phase", "seconds per step", PHASES, timed, per_step_RK)]
    rows: list[Row] = []
    for phase in ("step", *PHASES):
        shown, ranges = [], []
        for i in timed:
            times = seconds[i][phase]
            if not len(times):
                continue
            p50, p95 = (float(value) for value in np.percentile(times, (50, 95)))
            planned = runs[i].planned_seconds(phase)
            shown.append(i)
            ranges.append((p50, p95, *planned))
            rows.append((i, (phase, float(len(times)), float(times.mean()), p50, p95, float(times.max()), *planned)))
        if shown:
            drawing = partial(draw_ranges, runs=shown, seconds_R4=np.array(ranges))
            panels.append(Panel(f"{phase}: p50 to p95 (seconds)", "seconds", _count(len(shown)), drawing))
    rows.sort(key=lambda row: row[0])
    if any(np.isfinite(runs[i].planned_seconds("step")[0]) for i in timed):
        plan = "Hollow diamonds are the p50 and p95 that plan.json predicted; see Plan for the whole step."
    else:
        plan = "No run has a plan.json to compare with (nemo-ada plan CONFIG --write RUN)."
    caption = (
        "The first panel is the mean over all steps of the run: a phase that only some steps have, and the "
        "evaluations, are spread over all of them. Colours inside its bars are phases, not runs. The other panels show "
        "a dot at p50 and a bar to p95, over the steps that have the phase. A step is sampling, update and refit; "
        f"evaluations are timed one by one. {plan}"
    )
    columns = ("phase", "times", "mean s", "p50 s", "p95 s", "longest s", "planned p50 s", "planned p95 s")
    return Figure("time", "Step time", caption, panels, columns, rows)


def _durations(run: Run) -> dict[str, np.ndarray]:
    """Finite seconds of each phase."""
    columns = {name: run.column(f"time/{name}") for name in ("step", *PHASES[:3])}
    columns["evaluation"] = run.evaluation_column("time/evaluation")
    return {name: values[np.isfinite(values)] for name, values in columns.items()}
