"""The same figures as PNG files, for slides and papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.report.run import clean
from nemo_ada.report.spec import (
    COLOURS,
    DASHES,
    MARKERS,
    PART_COLOURS,
    SHADES,
    BarPanel,
    Figure,
    HeatPanel,
    LinePanel,
    Panel,
    RangePanel,
    marker_of,
    span,
)

COLUMNS = 3
LEGEND_COLUMNS = 4
DPI = 110


def write_figures(figures: Sequence[Figure], names: Sequence[str], folder: Path) -> list[Path]:
    """One PNG per figure with panels, named after its key."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    folder.mkdir(parents=True, exist_ok=True)
    labels = [clean(name).replace("$", r"\$") for name in names]  # `$` would start a formula
    written = []
    for figure in figures:
        if not figure.panels:
            continue
        columns = min(COLUMNS, len(figure.panels))
        rows = -(-len(figure.panels) // columns)
        runs = sorted({line.run for panel in figure.panels if isinstance(panel, LinePanel) for line in panel.lines})
        legend = 0.2 * -(-len(runs) // LEGEND_COLUMNS) + 0.2
        width, height = 4.6 * columns, 3.3 * rows + 0.3 + legend
        canvas = Canvas(figsize=(width, height))
        FigureCanvasAgg(canvas)
        # Fixed margins (in inches): a layout engine would take several times as long as the drawing
        canvas.subplots_adjust(
            left=1.2 / width,
            right=1 - 0.2 / width,
            bottom=(legend + 0.6) / height,
            top=1 - 0.65 / height,
            wspace=0.34,
            hspace=0.4,
        )
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, figure.panels, strict=False):
            _draw(axes, panel, labels)
        for axes in grid.flat[len(figure.panels) :]:
            axes.set_axis_off()
        handles = [_legend_line(run, labels[run]) for run in runs]
        if handles:
            canvas.legend(handles=handles, loc="lower center", ncols=LEGEND_COLUMNS, fontsize=8, frameon=False)
        canvas.suptitle(figure.title, fontsize=12)
        path = folder / f"{figure.key.replace('@', '-at-')}.png"
        canvas.savefig(path, dpi=DPI)
        written.append(path)
    return written


def _legend_line(run: int, label: str) -> Any:
    """A run's line for the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **_style(run))


def _style(run: int) -> dict[str, Any]:
    dash = DASHES[run % len(DASHES)]
    return {
        "color": COLOURS[run % len(COLOURS)],
        "marker": MARKERS[marker_of(run)],
        "linestyle": (0, tuple(part / 1.8 for part in dash)) if dash else "-",
        "markersize": 4,
        "linewidth": 1.4,
    }


def _draw(axes: Any, panel: Panel, labels: Sequence[str]) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_xlabel(panel.x_label, fontsize=8)
    axes.tick_params(labelsize=8)
    if isinstance(panel, HeatPanel):
        _draw_heat(axes, panel, labels[panel.run])
        return
    axes.grid(alpha=0.3)
    if isinstance(panel, LinePanel):
        for line in panel.lines:
            if line.trend is not None:
                axes.plot(line.x, line.y, color=COLOURS[line.run % len(COLOURS)], alpha=0.25, linewidth=0.8)
            axes.plot(line.x, line.shown, markevery=max(1, len(line.x) // 6), **_style(line.run))
            if panel.ends and len(line.x):
                axes.plot(line.x[:1], line.y[:1], "o", mfc="white", color=COLOURS[line.run % len(COLOURS)], ms=7)
        axes.set_ylim(*panel.y_range)
        axes.locator_params(nbins=5)
    elif isinstance(panel, BarPanel):
        left = np.zeros(len(panel.runs))
        for k, part in enumerate(panel.parts):
            value = panel.value_RK[:, k]
            if value.any():
                axes.barh(
                    range(len(panel.runs)), value, left=left, color=PART_COLOURS[k % len(PART_COLOURS)], label=part
                )
            left = left + value
        _run_axis(axes, panel.runs, labels)
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.17), ncols=4, frameon=False, handlelength=1)
    else:
        _draw_ranges(axes, panel)
        _run_axis(axes, [item.run for item in panel.ranges], labels)


def _draw_ranges(axes: Any, panel: RangePanel) -> None:
    for row, item in enumerate(panel.ranges):
        colour = COLOURS[item.run % len(COLOURS)]
        axes.plot([item.p50, item.p95], [row, row], "-", color=colour, linewidth=4, alpha=0.6)
        axes.plot([item.p50], [row], "o", color=colour)
        axes.plot([item.planned_p50, item.planned_p95], [row, row], "D", mfc="none", color="black")
    ends = [[item.p50, item.p95, item.planned_p50, item.planned_p95] for item in panel.ranges]
    axes.set_xlim(0, span([np.array(ends)], zero=True)[1])


def _draw_heat(axes: Any, panel: HeatPanel, label: str) -> None:
    from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap

    levels = (0.0, *SHADES)
    shades = LinearSegmentedColormap.from_list("shares", ["#eef4f8", COLOURS[0], "#00304d"], len(SHADES))
    mesh = axes.pcolormesh(
        np.append(panel.left_C, panel.right_C[-1]),
        np.arange(len(panel.bins) + 1),
        np.ma.masked_less_equal(panel.share_BC, 0.0),
        cmap=shades,
        norm=BoundaryNorm(levels, len(SHADES)),
    )
    axes.set_title(_short(label, 40), fontsize=9, loc="left")
    axes.set_yticks(np.arange(len(panel.bins)) + 0.5, panel.bins)
    axes.set_ylabel(panel.y_label, fontsize=8)
    bar = axes.figure.colorbar(mesh, ax=axes, ticks=levels)
    bar.ax.set_yticklabels([f"{level:.0%}" for level in levels], fontsize=7)


def _run_axis(axes: Any, runs: Sequence[int], labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(runs)), [_short(labels[run], 16) for run in runs], fontsize=7)
    axes.invert_yaxis()


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"…{name[1 - limit :]}"
