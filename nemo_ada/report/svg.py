"""Panels as inline SVG: no library, classes instead of colours (the page's style knows light, dark and print)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from nemo_ada.report.spec import (
    COLOURS,
    PART_COLOURS,
    BarPanel,
    HeatPanel,
    Line,
    LinePanel,
    Panel,
    RangePanel,
    span,
    text_of,
    tick_text,
    ticks,
)
from nemo_ada.report.svg_base import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MARK,
    RIGHT,
    TOP,
    WIDTH,
    esc,
    frame,
    mark,
    short,
    style_of,
    x_axis,
)
from nemo_ada.report.svg_heat import heat

ROW = 30
PALE_RUNS = 4  # with more runs the values behind the rolling means would only be noise
HITS = 300  # points with a tooltip per panel, shared by its lines


def draw(panel: Panel, names: Sequence[str]) -> str:
    """A panel; `names` are the runs' names."""
    if isinstance(panel, LinePanel):
        return _lines(panel, names)
    if isinstance(panel, HeatPanel):
        return heat(panel)
    return _bars(panel, names) if isinstance(panel, BarPanel) else _ranges(panel, names)


def _lines(panel: LinePanel, names: Sequence[str]) -> str:
    bottom = HEIGHT - BOTTOM
    low, high = panel.y_range
    x_low, x_high = _x_range(panel)

    def at(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (
            LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT),
            bottom - (y - low) / (high - low) * (bottom - TOP),
        )

    parts = []
    for value in ticks(low, high):
        level = bottom - (value - low) / (high - low) * (bottom - TOP)
        parts.append(
            f'<path class="grid" d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}"/>'
            f'<text class="num side" x="{LEFT - 6}" y="{level + 4:.1f}">{tick_text(value)}</text>'
        )
    parts.append(f'<path class="base" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    parts.append(x_axis(x_low, x_high, bottom, panel.x_label))
    for line in panel.lines:
        x, y = at(line.x, line.shown)
        pale = ""
        if line.trend is not None and len(panel.lines) <= PALE_RUNS:
            pale = f'<g class="pale c{line.run % len(COLOURS)}">{_path(x, at(line.x, line.y)[1])}</g>'
        parts.append(f"{pale}<g {style_of(line.run)}>{_path(x, y)}{_marks(panel, line.run, x, y)}</g>")
    limit = max(10, HITS // max(len(panel.lines), 1))
    for line in panel.lines:
        x, y = at(line.x, line.shown)
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        chosen = known[np.unique(np.linspace(0, len(known) - 1, min(limit, len(known))).round().astype(int))]
        name = esc(short(names[line.run], 32))
        hits = "".join(
            f'<circle cx="{x[j]:.1f}" cy="{y[j]:.1f}" r="5"><title>{name}\n{line.labels[j]}: '
            f"{text_of(float(line.y[j]))}{_rolling(line, j)}</title></circle>"
            for j in chosen
        )
        parts.append(f'<g class="hit c{line.run % len(COLOURS)}">{hits}</g>')
    summary = f"{len(panel.lines)} runs over {panel.x_label}; values in the table below"
    return frame(panel.title, HEIGHT, "".join(parts), summary)


def _rolling(line: Line, j: int) -> str:
    return "" if line.trend is None else f" (rolling mean {text_of(float(line.trend[j]))})"


def _x_range(panel: LinePanel) -> tuple[float, float]:
    low, high = span([line.x for line in panel.lines], zero=False)
    if panel.ends:
        return low, high
    finite = np.concatenate([line.x[np.isfinite(line.x)] for line in panel.lines])
    top = float(finite.max())
    return (0.0, top) if top > 0 else (low, high)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """A line that breaks where a value is missing."""
    pen, commands = "M", []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(a) and math.isfinite(b):
            commands.append(f"{pen}{a:.1f} {b:.1f}")
            pen = "L"
        else:
            pen = "M"
    return f'<path class="line" d="{"".join(commands)}"/>'


def _marks(panel: LinePanel, run: int, x: np.ndarray, y: np.ndarray) -> str:
    """Few markers, not at the same places for every run, so that lines are told apart without colour."""
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(known):
        return ""
    if panel.ends:
        first, last = known[0], known[-1]
        ring = f'<circle class="ring" cx="{x[first]:.1f}" cy="{y[first]:.1f}" r="4.5"/>'
        big = f'<g transform="translate({x[last]:.1f} {y[last]:.1f}) scale(1.5)">{mark(run, 0, 0, MARK)}</g>'
        return ring + big
    if len(known) <= 12:
        chosen = known
    else:
        every = len(known) / 5
        chosen = known[((np.arange(5) + (run * 0.37) % 1) * every).astype(int)]
    return "".join(mark(run, x[j], y[j], MARK) for j in chosen)


def _guides(high: float, top: float, bottom: float, left: float, scale: float, written: Callable[[float], str]) -> str:
    """Vertical lines with their values under a panel of bars."""
    parts = []
    for value in ticks(0.0, high):
        x = left + value * scale
        anchor = ' text-anchor="start"' if x < 12 else ""
        parts.append(
            f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
            f'<text class="num" x="{x:.1f}" y="{bottom + 14:g}"{anchor}>{written(value)}</text>'
        )
    return "".join(parts)


def _row_label(name: str, run: int, y: float) -> str:
    label = f'<text class="row" x="16" y="{y:g}">{esc(short(name, 46))}</text>'
    return f'<g class="c{run % len(COLOURS)}">{mark(run, 8, y - 4, MARK)}</g>{label}'


def _bars(panel: BarPanel, names: Sequence[str]) -> str:
    used = [k for k in range(len(panel.parts)) if panel.value_RK[:, k].any()]
    top = TOP + 18 * math.ceil(len(used) / 3)
    bottom = top + ROW * len(panel.runs) + 4
    high = float(panel.value_RK.sum(axis=1).max()) or 1.0
    scale = (WIDTH - 4 - RIGHT) / high
    written = "{:.0%}".format if panel.percent else text_of
    parts = [_guides(high, top, bottom, 4, scale, "{:.0%}".format if panel.percent else tick_text)]
    for place, k in enumerate(used):
        left, base = 4 + 118 * (place % 3), TOP + 4 + 18 * (place // 3)
        parts.append(
            f'<rect class="part p{k % len(PART_COLOURS)}" x="{left}" y="{base - 8}" width="10" height="10"/>'
            f'<text class="row" x="{left + 15}" y="{base + 1}">{esc(panel.parts[k])}</text>'
        )
    for row, run in enumerate(panel.runs):
        y, x = top + ROW * row, 4.0
        parts.append(_row_label(names[run], run, y + 11))
        for k in used:
            value = float(panel.value_RK[row, k])
            if value <= 0:
                continue
            width = value * scale
            inside = (
                f'<text class="in" x="{x + width / 2:.1f}" y="{y + 24.5:g}">{written(value)}</text>'
                if width > 40
                else ""
            )
            box = f'x="{x:.1f}" y="{y + 15}" width="{max(width - 1, 0.6):.1f}" height="12"'
            parts.append(
                f'<g><rect class="part p{k % len(PART_COLOURS)}" {box}/>{inside}'
                f"<title>{esc(short(names[run], 32))}\n{esc(panel.parts[k])}: {written(value)}</title></g>"
            )
            x += width
    parts.append(f'<text class="axis" x="{WIDTH / 2:g}" y="{bottom + 30:g}">{esc(panel.x_label)}</text>')
    return frame(panel.title, bottom + 36, "".join(parts), f"{len(panel.runs)} runs; values in the table below")


def _ranges(panel: RangePanel, names: Sequence[str]) -> str:
    ends = [[item.p50, item.p95, item.planned_p50, item.planned_p95] for item in panel.ranges]
    high = span([np.array(ends)], zero=True)[1]
    bottom = TOP + ROW * len(panel.ranges) + 2

    def at(value: float) -> float:
        return 8 + value / high * (WIDTH - 8 - RIGHT)

    parts = [_guides(high, TOP - 4, bottom, 8, (WIDTH - 8 - RIGHT) / high, tick_text)]
    for row, item in enumerate(panel.ranges):
        y = TOP + ROW * row
        parts.append(_row_label(names[item.run], item.run, y + 9))
        title = f"{esc(short(names[item.run], 32))}\np50 {text_of(item.p50)} s, p95 {text_of(item.p95)} s"
        planned = [value for value in (item.planned_p50, item.planned_p95) if math.isfinite(value)]
        if planned:
            title += f"\nplanned {' to '.join(text_of(value) for value in planned)} s"
        diamonds = "".join(f'<path class="plan" d="M{at(value):.1f} {y + 15}l5 5-5 5-5-5z"/>' for value in planned)
        parts.append(
            f'<g class="c{item.run % len(COLOURS)}"><path class="bar" d="M{at(item.p50):.1f} '
            f'{y + 20}H{at(item.p95):.1f}"/>'
            f'<path class="line" d="M{at(item.p95):.1f} {y + 15}v10"/>'
            f'<circle class="mark" cx="{at(item.p50):.1f}" cy="{y + 20}" r="4.5"/>{diamonds}'
            f'<rect class="over" x="0" y="{y + 11}" width="{WIDTH}" height="18"/><title>{title}</title></g>'
        )
    parts.append(f'<text class="axis" x="{WIDTH / 2:g}" y="{bottom + 30}">{esc(panel.x_label)}</text>')
    return frame(panel.title, bottom + 36, "".join(parts), f"{len(panel.ranges)} runs; values in the table below")
