"""Learning curves of several runs on the axes of cost (algorithm.md section 11), as one PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.report import series
from nemo_ada.report.run import Run
from nemo_ada.report.spec import COLOURS, MARKERS

__all__ = ["AXES", "Run", "comparison_rows", "markdown_table", "plot_comparison", "score_keys"]

AXES = {key: series.AXES[key] for key in ("step", "total/responses", "total/live_rows", "total/seconds")}
CAPTION = (
    "At equal steps Reinforce-Ada draws more responses per prompt, so the first column favours it; per response drawn "
    "GRPO is at least as good\nwhile prompts are plentiful. Which axis counts is what a run pays for: optimiser steps, "
    "responses, update rows or seconds. One seed:\ndifferences below about .03 in accuracy and .05 in pass@k lie "
    "within the noise of evaluation and training."
)


def score_keys(runs: Sequence[Run]) -> list[str]:
    """The evaluation scores that all runs have: accuracy and pass@k."""
    names = [{key for record in run.evaluations for key in record} for run in runs]
    shared = set.intersection(*names) if names else set()
    return sorted(key for key in shared if key == "val/accuracy" or key.startswith("val/pass@"))


def plot_comparison(runs: Sequence[Run], path: Path, title: str) -> None:
    """Accuracy and pass@k against each axis of cost, then the sampling dynamics over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scores = score_keys(runs)
    figure, grid = plt.subplots(len(scores) + 1, len(AXES), figsize=(15, 3.2 * (len(scores) + 1)), squeeze=False)
    for row, key in enumerate(scores):
        for column, (axis, label) in enumerate(AXES.items()):
            for i, run in enumerate(runs):
                x, y = run.curve(axis, key)
                grid[row][column].plot(x, y, color=COLOURS[i % 7], marker=MARKERS[i % 7], markersize=4, label=run.name)
            grid[row][column].set_xlabel(label)
            grid[row][column].set_ylabel(f"held-out {key[4:]}" if column == 0 else "")
    dynamics = {
        "ada/zero_signal_groups": "groups without signal (share)",
        "ada/zero_signal_groups_if_grpo": "... if the first n responses were the group",
        "ada/pool_size_mean": "responses per prompt",
        "ada/pass_rate": "pass rate on training prompts",
    }
    for column, (key, label) in enumerate(dynamics.items()):
        for i, run in enumerate(runs):
            grid[-1][column].plot(run.column("step"), _smooth(run.column(key)), color=COLOURS[i % 7], label=run.name)
        grid[-1][column].set_xlabel("training steps")
        grid[-1][column].set_title(label, fontsize=9)
    for axes in grid.flat:
        axes.grid(alpha=0.3)
    grid[0][0].legend(fontsize=8)
    figure.suptitle(title)
    figure.text(0.5, 0.005, CAPTION, ha="center", va="bottom", fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 0.98))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _smooth(values: np.ndarray, window: int = 9) -> np.ndarray:
    if len(values) < window:
        return values
    padded = np.pad(values, window // 2, mode="edge")
    return np.convolve(padded, np.ones(window) / window, mode="valid")


def comparison_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per run: scores before and after, zero-signal share, and what it cost."""
    scores = score_keys(runs)
    rows = []
    for run in runs:
        row: dict[str, Any] = {"run": run.name}
        for key in scores:
            _, values = run.curve("step", key)
            row[f"{key[4:]} first"], row[f"{key[4:]} last"] = float(values[0]), float(values[-1])
        row["zero-signal groups"] = float(run.column("ada/zero_signal_groups").mean())
        row["responses/prompt"] = float((run.column("ada/samples_drawn") / run.column("ada/prompts_drawn")).mean())
        row["responses"] = int(run.steps[-1]["total/responses"])
        row["live rows"] = int(run.steps[-1]["total/live_rows"])
        row["seconds"] = float(run.steps[-1]["total/seconds"])
        rows.append(row)
    return rows


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = [f"{value:.3f}" if isinstance(value, float) and value < 10 else _short(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)
