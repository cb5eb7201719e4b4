"""What the drawn panels share: escaping, run styles and markers, frame and axis.

A panel is 360 units wide and drawn at about that many pixels, so text keeps its size on a phone. Every mark that can be
pointed at has a <title>; every value also stands in the figure's table.
"""

from __future__ import annotations

from html import escape

from nemo_ada.report.run import clean
from nemo_ada.report.spec import COLOURS, DASHES, marker_of, tick_text, ticks

WIDTH, HEIGHT = 360, 232
LEFT, RIGHT, TOP, BOTTOM = 50, 18, 30, 40
MARK = ' class="mark"'
SHAPES = (
    '<circle r="3.6"/>',
    '<rect x="-3.2" y="-3.2" width="6.4" height="6.4"/>',
    '<path d="M0-4.8L4.8 0 0 4.8-4.8 0z"/>',
    '<path d="M0-4.6L4.4 3.6H-4.4z"/>',
    '<path d="M0 4.6L4.4-3.6H-4.4z"/>',
    '<path d="M-4.4-1.5h2.9v-2.9h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9z"/>',
    '<path d="M-4.4-2.4L-2.4-4.4 0-2 2.4-4.4 4.4-2.4 2 0 4.4 2.4 2.4 4.4 0 2-2.4 4.4-4.4 2.4-2 0z"/>',
)


def esc(value: object) -> str:
    """Untrusted text for HTML and attributes."""
    return escape(clean(value), quote=True)


def definitions() -> str:
    """The marker shapes, once per page."""
    shapes = "".join(f'<symbol id="m{i}" overflow="visible">{shape}</symbol>' for i, shape in enumerate(SHAPES))
    return f'<svg class="defs" width="0" height="0" aria-hidden="true">{shapes}</svg>'


def style_of(run: int) -> str:
    """Class of a run's colour and the dash of its line."""
    dash = DASHES[run % len(DASHES)]
    dashed = f' stroke-dasharray="{" ".join(map(str, dash))}"' if dash else ""
    return f'class="c{run % len(COLOURS)}"{dashed}'


def mark(run: int, x: float, y: float, extra: str = "") -> str:
    """The run's marker."""
    return f'<use href="#m{marker_of(run)}" x="{x:.1f}" y="{y:.1f}"{extra}/>'


def swatch(run: int) -> str:
    """Line and marker of a run, for the legend."""
    line = f'<path class="line" d="M1 7H35"/>{mark(run, 18, 7, MARK)}'
    size = 'class="swatch" viewBox="0 0 36 14" width="36" height="14"'
    return f'<svg {size} aria-hidden="true"><g {style_of(run)}>{line}</g></svg>'


def frame(title: str, height: float, body: str, summary: str) -> str:
    """The panel's <svg> with its title; `summary` is what is read aloud."""
    return (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{esc(title)}. {esc(summary)}">'
        f'<text class="title" x="4" y="16">{esc(title)}</text>{body}</svg>'
    )


def short(name: str, limit: int) -> str:
    """A name that fits: its end tells runs apart more often than its middle."""
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"


def x_axis(low: float, high: float, bottom: float, label: str, *, whole: bool = False) -> str:
    """The horizontal axis; `whole`: ticks at whole numbers only."""
    parts = []
    for value in ticks(low, high):
        if whole and not float(value).is_integer():
            continue
        x = LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<path class="tick" d="M{x:.1f} {bottom:g}v4"/>'
            f'<text class="num" x="{x:.1f}" y="{bottom + 15:g}">{tick_text(value)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(parts) + f'<text class="axis" x="{middle:g}" y="{bottom + 31:g}">{esc(label)}</text>'
