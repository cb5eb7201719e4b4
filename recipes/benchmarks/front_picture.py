"""The picture of README.md, for a light and a dark page.

    python recipes/benchmarks/front_picture.py            # draws figures/front_light.svg and front_dark.svg

Left: the share of groups whose responses all got the same reward, of recipes/results/zero_signal.csv. One run each made
it, `nemo-ada train configs/cpu/mini_sudoku.yaml grpo.num_prompts_per_step=32 policy.train_global_batch_size=32
grpo.max_num_steps=64 grpo.seed=0 reinforce_ada.preset=METHOD policy.megatron_cfg.optimizer.lr=RATE`, with the rates of
the leaderboard: 1e-4, and 2e-4 for ada_seq_balance. grpo_log.csv has the first one's averages, as a log of GRPO.
Right: the mean accuracy of six base models over responses, of recipes/results/leaderboard.jsonl (task sudoku6).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from leaderboard_page import costs, unpacked
from measure import measure

from nemo_ada.core.arrays import FloatArray
from nemo_ada.run.files import text_of, write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results"
FIGURES = RESULTS / "figures"
TASK, WINDOW = "sudoku6", 9  # steps of the running mean
METHODS = {"grpo": "grpo4", "ada_seq_lean": "lean", "ada_seq_balance": "balance"}  # preset -> row of the leaderboard
NAMES = {"grpo": "GRPO, 4 answers", "ada_seq_lean": "ada_seq_lean", "ada_seq_balance": "ada_seq_balance (the paper's)"}
THEMES = {
    "light": ("#1f2328", "#d1d9e0", "#57606a #0072b2 #c2510a"),
    "dark": ("#e6edf3", "#3d444d", "#9198a1 #58b4f0 #f0a04b"),
}
"""Theme -> colours of text and grid, and of the methods."""
Line = tuple[FloatArray, FloatArray]


def zero_signal() -> dict[str, Line]:
    """Return preset -> steps and their share of groups without signal, as a running mean."""
    found: dict[str, Line] = {}
    rows = list(csv.DictReader(text_of(RESULTS / "zero_signal.csv").splitlines()))
    for preset in METHODS:
        own = [row for row in rows if row["method"] == preset]
        share = np.array([float(row["zero_signal_groups"]) for row in own])
        step = np.array([float(row["step"]) for row in own])
        kernel = np.ones(WINDOW)
        found[preset] = step, np.convolve(share, kernel, "same") / np.convolve(np.ones_like(share), kernel, "same")
    return found


def accuracy() -> dict[str, Line]:
    """Return preset -> responses drawn and the mean accuracy over the bases, as far as all of its runs go."""
    lines = [json.loads(line) for line in text_of(RESULTS / "leaderboard.jsonl").splitlines()]
    found: dict[str, Line] = {}
    for preset, row in METHODS.items():
        runs = [unpacked(line) for line in lines if (line["task"], line["method"]) == (TASK, row) and "points" in line]
        x = np.linspace(0.0, min(float(costs(run, "responses")[-1]) for run in runs), 60)
        curves = [np.interp(x, costs(run, "responses"), [p["accuracy"] for p in run["points"]]) for run in runs]
        found[preset] = x, np.mean(curves, axis=0)
    return found


def draw(theme: str, panels: Sequence[Mapping[str, Line]], path: Path) -> None:
    """Draw both panels as an SVG. The same data give the same bytes with the same matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ink, grid, colours = THEMES[theme]
    settings: dict[str, Any] = {
        "svg.hashsalt": "front", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11,
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.edgecolor": grid,
        "axes.spines.top": False, "axes.spines.right": False, "grid.color": grid,
    }  # fmt: skip
    with plt.rc_context(settings):
        figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.5))
        titles = ("Groups that teach nothing", "Held-out accuracy")
        labels = ("training step", "answers drawn")
        for number, (axis, lines) in enumerate(zip(axes, panels, strict=True)):
            for (preset, (x, y)), colour, style in zip(lines.items(), colours.split(), ("--", "-", "-"), strict=True):
                (line,) = axis.plot(x, y, style, color=colour, linewidth=2.2, label=NAMES[preset])
                line.set_gid(f"{preset}-{number}")
            axis.set_title(titles[number], loc="left", fontsize=12, fontweight="bold")
            axis.set_xlabel(labels[number])
            axis.grid(axis="y", linewidth=0.8)
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes[0].set_ylim(0.0, 1.0)
        axes[1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncol=3, frameon=False)
        figure.tight_layout(rect=(0, 0.09, 1, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = path.read_text(encoding="utf-8")
    write_atomically(path, "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def main() -> int:
    panels = zero_signal(), accuracy()
    for theme in THEMES:
        draw(theme, panels, FIGURES / f"front_{theme}.svg")
    return 0


if __name__ == "__main__":
    measure(main)
