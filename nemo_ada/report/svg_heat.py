"""A heat map as inline SVG: one path per shade, one tooltip per column."""

from __future__ import annotations

import numpy as np

from nemo_ada.report.spec import SHADES, HeatPanel, shade
from nemo_ada.report.svg_base import LEFT, RIGHT, TOP, WIDTH, esc, frame, short, x_axis

CELL = 15
GAP = 4  # sets the lowest and the highest bin apart
KEY = 40  # height of the legend of shades


def heat(panel: HeatPanel) -> str:
    """Bins from below, columns along the steps."""
    bins = len(panel.bins)
    height = bins * CELL + 2 * GAP
    bottom = TOP + height
    low, high = float(panel.left_C[0]), float(panel.right_C[-1])
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    left_C, right_C = LEFT + (panel.left_C - low) * scale, LEFT + (panel.right_C - low) * scale
    top_B = [bottom - (b + 1) * CELL - GAP * ((b > 0) + (b == bins - 1)) for b in range(bins)]
    parts = [f'<rect class="field" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{height}"/>']
    shade_BC = shade(panel.share_BC)
    for level in range(len(SHADES)):
        cells = "".join(
            f"M{left_C[c]:.1f} {top_B[b]}H{right_C[c]:.1f}v{CELL}H{left_C[c]:.1f}z"
            for b, c in np.argwhere(shade_BC == level).tolist()
        )
        if cells:
            parts.append(f'<path class="h{level}" d="{cells}"/>')
    for b, name in enumerate(panel.bins):
        parts.append(f'<text class="num side" x="{LEFT - 6}" y="{top_B[b] + CELL - 3.5}">{esc(name)}</text>')
    middle = TOP + height / 2
    parts.append(f'<text class="axis" transform="translate(12 {middle:g}) rotate(-90)">{esc(panel.y_label)}</text>')
    parts.append(x_axis(low, high, bottom, panel.x_label, whole=True))
    parts.append(_key(bottom + 44))
    hits = "".join(
        f'<rect x="{left_C[c]:.1f}" y="{TOP}" width="{right_C[c] - left_C[c]:.1f}" height="{height}">'
        f"<title>{_tip(panel, c)}</title></rect>"
        for c in range(len(left_C))
    )
    parts.append(f'<g class="column">{hits}</g>')
    ends = [f"{name} {panel.share_BC[b, c]:.0%}" for c in (0, -1) for b, name in ((0, "rate 0"), (bins - 1, "rate 1"))]
    summary = f"First column: {ends[0]}, {ends[1]}; last: {ends[2]}, {ends[3]}; values in the table below"
    return frame(short(panel.title, 38), bottom + 44 + KEY, "".join(parts), summary)


def _tip(panel: HeatPanel, column: int) -> str:
    shares = (f"{name}: {panel.share_BC[b, column]:.0%}" for b, name in reversed(list(enumerate(panel.bins))))
    return esc(panel.labels[column]) + "\n" + "\n".join(map(esc, shares))


def _key(top: float) -> str:
    """The shades with their upper ends."""
    width = (WIDTH - LEFT - RIGHT) / len(SHADES)
    parts = [f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{top + 36:g}">share of prompts, up to</text>']
    for level, end in enumerate(SHADES):
        x = LEFT + level * width
        parts.append(f'<rect class="h{level}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="10"/>')
        parts.append(f'<text class="num" x="{x + width / 2:.1f}" y="{top + 22:g}">{end:.0%}</text>')
    return "".join(parts)
