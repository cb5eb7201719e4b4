"""The figures of the report, as descriptions (spec.py) made from recorded metrics (core/metrics.py and the trainer)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_ada.core.metrics import BOUNDS
from nemo_ada.report.run import Run
from nemo_ada.report.series import AXES, Blocks, Quantity, live_share, metric, over_steps, share, trend
from nemo_ada.report.spec import NOT_RECORDED, BarPanel, Figure, Line, LinePanel, Panel, Row, Table, span, text_of
from nemo_ada.report.timing import step_time

FRONTIER_BINS = 12


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure of the report, in reading order."""
    return [
        *(_score(runs, key) for key in score_keys(runs)),
        _pass_rate(runs),
        frontier(runs),
        sampling(runs),
        pools(runs),
        budget(runs),
        step_time(runs),
        weights(runs),
        optimiser(runs),
    ]


def score_keys(runs: Sequence[Run]) -> list[str]:
    """Evaluation scores that any run has: accuracy, then pass@k."""
    names = {key for run in runs for record in run.evaluations for key in record}
    return sorted(key for key in names if key == "val/accuracy" or key.startswith("val/pass@"))


def _score(runs: Sequence[Run], key: str) -> Figure:
    name = key.removeprefix("val/")
    lines = [(i, run.evaluation_column(key), run.evaluation_column, "after step ") for i, run in enumerate(runs)]
    return _over_costs(
        f"heldout-{name}",
        f"Held-out {name}",
        f"Held-out {name} against six measures of cost. Which one counts is what the run pays for: at equal steps a "
        "method "
        "that draws more responses is favoured, at equal responses one that draws few. Differences between single runs "
        "contain the noise of evaluation and of one seed; compare several seeds before choosing.",
        f"held-out {name}",
        lines,
    )


def _pass_rate(runs: Sequence[Run]) -> Figure:
    lines = [(i, run.column("ada/pass_rate"), run.column, "step ") for i, run in enumerate(runs)]
    return _over_costs(
        "pass-rate",
        "Training reward (pass rate)",
        "Share of correct responses on the training prompts, mean over prompts: what GRPO logs as its reward, "
        "comparable "
        "between methods. The mean over kept rows is not (see pools below).",
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
    over = over_steps("frontier", "Reward and entropy", NOT_RECORDED, [entropy], runs)
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
        "height "
        f"further right has kept more exploration. Means over blocks of steps, at most {FRONTIER_BINS} per run; the "
        "entropy at "
        "an evaluation is the mean of the steps around it."
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
    return Figure("frontier", "Reward and entropy", caption, [*panels, *over.panels], table)


def _smooth(values: np.ndarray, window: int = 9) -> np.ndarray:
    if len(values) < window:
        return np.full(len(values), values.mean())
    return np.convolve(np.pad(values, window // 2, mode="edge"), np.ones(window) / window, mode="valid")


def sampling(runs: Sequence[Run]) -> Figure:
    """How many responses it took, what stayed unresolved and why, and what GRPO would have had."""
    quantities = [
        Quantity("responses drawn per prompt", share("ada/samples_drawn")),
        Quantity("resolved in the first wave (share)", share("ada/resolved_in_first_wave")),
        Quantity("unresolved: lacks correct (share)", share("ada/missing_positive"), scale="missing"),
        Quantity("unresolved: lacks incorrect (share)", share("ada/missing_negative"), scale="missing"),
        Quantity("groups without signal (share)", metric("ada/zero_signal_groups"), scale="signal"),
        Quantity("... if the first n were the group", metric("ada/zero_signal_groups_if_grpo"), scale="signal"),
    ]
    caption = (
        "Shares of the prompts that responses were drawn for. A prompt is resolved when its pool meets the exit "
        "condition; "
        "otherwise it lacks correct or incorrect responses (for a positive or fixed exit one of the two cannot "
        "occur). A group "
        "without signal has equal labels throughout and teaches nothing; the last panel is the share that GRPO would "
        "have "
        "had on the same prompts."
    )
    return over_steps("sampling", "Sampling dynamics", caption, quantities, runs)


def pools(runs: Sequence[Run]) -> Figure:
    """Sizes and rewards of the pools."""
    quantities = [
        Quantity("pool size, mean (responses)", metric("ada/pool_size_mean"), scale="size"),
        Quantity("pool size, p95 (responses)", metric("ada/pool_size_p95"), scale="size"),
        Quantity("pass rate, mean over prompts", metric("ada/pass_rate"), scale="rate"),
        Quantity("mean reward of kept rows", metric("ada/batch_reward"), scale="rate"),
        Quantity("tokens per response in pools", metric("ada/response_length_pools"), scale="length"),
        Quantity("tokens per kept response", metric("ada/response_length_kept"), scale="length"),
    ]
    caption = (
        "Pool sizes and pass rates over time. Where kept rows are balanced between correct and incorrect ones, their "
        "mean "
        "reward is drawn towards one half and says little about the policy. The metrics hold the mean pass rate of a "
        "step, not its "
        "distribution over prompts, so no histogram is drawn."
    )
    return over_steps("pools", "Pools and pass rate over time", caption, quantities, runs)


def budget(runs: Sequence[Run]) -> Figure:
    """What was used per step, of which cap, and which cap refused prompts."""
    quantities = [
        Quantity("used share of max_samples", metric("ada/budget_used_samples"), scale="used"),
        Quantity("used share of max_tokens", metric("ada/budget_used_tokens"), scale="used"),
        Quantity("used share of max_seconds", metric("ada/budget_used_seconds"), scale="used"),
        Quantity("responses drawn per step", metric("ada/samples_drawn")),
        Quantity("generated tokens per step", metric("ada/tokens_drawn")),
        Quantity("sampling seconds per step", metric("ada/sampling_seconds")),
        Quantity("engine utilisation (of peak)", metric("ada/engine_utilisation")),
        Quantity("refused another response (share)", share("ada/prompts_cut")),
    ]
    capped = any(np.isfinite(q.values(run)).any() for q in quantities[:3] for run in runs)
    caption = (
        "Use of each cap that a run has set, what a step costs, and the share of steps that each cap bound (refused "
        "a prompt "
        "another response)."
        if capped
        else "None of these runs has set a cap: what a step costs, without a budget to compare with."
    )
    figure = over_steps("budget", "Budget", caption, quantities, runs)
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
    return Figure("budget", "Budget", caption, [*figure.panels, bars], Table(figure.table.columns, rows))


def weights(runs: Sequence[Run]) -> Figure:
    """Gradient weights, and how many rows carry a gradient."""
    quantities = [
        Quantity("gradient weight per prompt, mean", metric("ada/weight_mean")),
        Quantity("gradient weight per prompt, maximum", metric("ada/weight_max")),
        Quantity("rows with non-zero advantage (share)", live_share),
    ]
    caption = (
        "The explicit weight of each prompt's advantages (1 for the linear objective) and the share of kept rows "
        "that have "
        "a gradient at all."
    )
    return over_steps("weights", "Weights and live rows", caption, quantities, runs)


def optimiser(runs: Sequence[Run]) -> Figure:
    """Health of the update."""
    quantities = [
        Quantity("gradient norm before clipping", metric("train/grad_norm")),
        Quantity("clipped tokens (share)", metric("train/clip_fraction")),
        Quantity("learning rate", metric("train/lr")),
    ]
    return over_steps("optimiser", "Optimiser", "Health of the update.", quantities, runs)
