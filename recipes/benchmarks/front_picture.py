"""The picture of README.md, for a light and a dark page.

    python recipes/benchmarks/front_picture.py            # draws figures/front_light.svg and front_dark.svg

Held-out accuracy over updates and over drawn answers, of the rows of recipes/results/leaderboard.jsonl: sudoku, twelve
base models (the tasks sudoku6 and sudoku6e), each trained by every method. A line is the mean over the base models.
These differ far more from each other than methods do, so that a band of 95 % around a mean would show the base models
only. The bands are therefore those of the paired difference to GRPO on the same base model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from leaderboard_page import costs, unpacked
from measure import measure

from nemo_ada.core.arrays import FloatArray
from nemo_ada.lab.evaluation.statistics import student_quantile
from nemo_ada.run.files import text_of, write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results"
FIGURES = RESULTS / "figures"
TASKS, POINTS = ("sudoku6", "sudoku6e"), 80
BASELINE = "grpo4"
NAMES = {
    "grpo4": "GRPO, groups of 4",
    "balance": "ada_seq_balance",
    "value4": "ada_single, groups of 4",
    "single_value": "ada_single, one per prompt",
}
"""Row of the leaderboard -> its name in the legend."""
PANELS = {"updates": ("At equal updates", "optimizer updates"), "responses": ("At equal answers", "answers drawn")}
"""Cost -> title of the panel, and label of its axis."""
THEMES = {
    "light": ("#1f2328", "#d1d9e0", "#57606a #c2510a #0072b2 #00785a", 0.14),
    "dark": ("#e6edf3", "#3d444d", "#9198a1 #f0a04b #58b4f0 #3ec79a", 0.18),
}
"""Theme -> colours of text and grid, of the methods, and the bands' opacity."""


@dataclass(frozen=True, slots=True)
class Line:
    """A method in a panel.

    Attributes:
        x: Cost, X points.
        mean: Mean accuracy of the base models at each.
        half: Half of the 95 % interval of the paired difference to GRPO at each. 0 for GRPO.
    """

    x: FloatArray
    mean: FloatArray
    half: FloatArray


@cache
def runs() -> Mapping[str, Mapping[int, Mapping[str, Any]]]:
    """Return method -> base model -> its reported run with four updates per step."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in NAMES}
    for line in map(json.loads, text_of(RESULTS / "leaderboard.jsonl").splitlines()):
        if line["task"] in TASKS and line["method"] in NAMES and "points" in line and line["updates"] == 4:
            found[line["method"]][line["base"]] = unpacked(line)
    return found


def panel(axis: str) -> dict[str, Line]:
    """Return method -> line, up to the cost that every run of every method reached."""
    order = sorted(runs()[BASELINE])
    end = min(float(costs(own[base], axis)[-1]) for own in runs().values() for base in order)
    x = np.linspace(0.0, end, POINTS)
    accuracy_BX = {
        name: np.array([np.interp(x, costs(own[b], axis), [p["accuracy"] for p in own[b]["points"]]) for b in order])
        for name, own in runs().items()
    }
    quantile = student_quantile(len(order) - 1) / len(order) ** 0.5
    return {
        name: Line(x, own.mean(axis=0), quantile * (own - accuracy_BX[BASELINE]).std(axis=0, ddof=1))
        for name, own in accuracy_BX.items()
    }


def draw(theme: str, panels: Sequence[Mapping[str, Line]], path: Path) -> None:
    """Draw both panels as an SVG. The same data give the same bytes with the same matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ink, grid, colours, opacity = THEMES[theme]
    settings: dict[str, Any] = {
        "svg.hashsalt": "front", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10.5,
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.edgecolor": grid,
        "axes.spines.top": False, "axes.spines.right": False, "grid.color": grid,
    }  # fmt: skip
    with plt.rc_context(settings):
        figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.7), sharey=True)
        for number, (axis, lines, (title, label)) in enumerate(zip(axes, panels, PANELS.values(), strict=True)):
            for (name, line), colour, style in zip(lines.items(), colours.split(), ("--", "-", "-", "-"), strict=True):
                (drawn,) = axis.plot(line.x, line.mean, style, color=colour, linewidth=2.2, label=NAMES[name], zorder=3)
                drawn.set_gid(f"{name}-{number}")
                if name != BASELINE:
                    axis.fill_between(line.x, line.mean - line.half, line.mean + line.half, color=colour,
                                      alpha=opacity, linewidth=0)  # fmt: skip
            axis.set_title(title, loc="left", fontsize=12, fontweight="bold")
            axis.set_xlabel(label)
            axis.set_xlim(0.0, None)
            axis.grid(axis="y", linewidth=0.8)
            axis.locator_params(axis="x", nbins=6)
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes[0].set_ylabel("held-out accuracy")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncol=4, frameon=False)
        figure.tight_layout(rect=(0, 0.09, 1, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = path.read_text(encoding="utf-8")
    write_atomically(path, "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def main() -> int:
    panels = [panel(axis) for axis in PANELS]
    for theme in THEMES:
        draw(theme, panels, FIGURES / f"front_{theme}.svg")
    return 0


if __name__ == "__main__":
    measure(main)
