"""Draws the report's panels with matplotlib: inline SVG for the page, PNG files for slides and papers.

A panel is 360 units wide, about as many CSS pixels. Therefore its text keeps its size on a phone. The SVG names colours
by the page's CSS variables, so the page's style decides between light, dark and print.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from nemo_ada.report.run import clean
from nemo_ada.report.series import Figure, Panel, number_text, span, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

# Okabe and Ito's palette without yellow, which is too pale on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#17202a")
PART_COLOURS = ("#56b4ea", "#e69f01", "#2cbf97", "#cc79a8", "#d9853b", "#9aa5b1")  # parts of bars; no run's colour
INK, MUTED, GRID, PAPER, SOFT = "#17202a", "#55606c", "#e7eaee", "#ffffff", "#f4f6f8"
CSS = {colour: f"var(--c{i})" for i, colour in enumerate(COLOURS[:-1])} | {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)", SOFT: "var(--soft)",
}  # fmt: skip
MARKERS = "osD^vPX"
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1, 1.5), (5, 2, 1, 2))  # with seven colours: 28 run styles
SHADES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # upper ends; the same in all heat maps
OPACITIES = (0.12, 0.22, 0.33, 0.45, 0.58, 0.71, 0.85, 1.0)
MAX_PALE_RUNS = 4  # with more runs the values behind the rolling means are only noise
WIDTH, HEIGHT, ROW = 360, 232, 30
LEFT, RIGHT, TOP, BOTTOM = 50, 18, 30, 40
PNG_DPI, PNG_COLUMNS, LEGEND_COLUMNS = 110, 3, 4
SETTINGS = {
    "svg.fonttype": "none",  # texts stay texts: small, searchable, readable aloud
    "svg.hashsalt": "nemo-ada",  # equal markers get equal ids, so the page holds each once
    "text.parse_math": False,  # a `$` in a run's name is a dollar sign
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "lines.solid_capstyle": "butt",
}
DECIMALS = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
FONT = re.compile(r"font-family: [^;]*;? ?")
SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Line:
    """One run in one panel. nan in y breaks the line.

    With a `trend` (rolling mean of y) the trend is the line, and y is drawn pale behind it.
    """

    run: int
    x: np.ndarray
    y: np.ndarray
    trend: np.ndarray | None = None


def colour_of(run: int) -> str:
    """Colours repeat after seven runs; dashes and markers then differ."""
    return COLOURS[run % len(COLOURS)]


def _style(run: int) -> dict[str, Any]:
    """Colour, dash and marker of a run."""
    dash = DASHES[run % len(DASHES)]
    return {"color": colour_of(run), "linestyle": (0, dash) if dash else "-", "linewidth": 1.6, **_mark(run)}


def _mark(run: int, size: float = 6.5) -> dict[str, Any]:
    """The run's marker with an edge in the colour of the paper. A colour that returns gets another marker."""
    shape = MARKERS[(run + run // len(COLOURS)) % len(MARKERS)]
    return {"marker": shape, "markersize": size, "markerfacecolor": colour_of(run), "markeredgecolor": PAPER,
            "markeredgewidth": 0.8}  # fmt: skip


def draw_lines(axes: Axes, names: Sequence[str], lines: Sequence[Line], y_range: tuple[float, float]) -> None:
    """Curves over a common axis that starts at 0."""
    for line in lines:
        shown = line.y if line.trend is None else line.trend
        if line.trend is not None and len(lines) <= MAX_PALE_RUNS:
            axes.plot(line.x, line.y, color=colour_of(line.run), alpha=0.32, linewidth=0.9)
        axes.plot(line.x, shown, markevery=_marker_places(line, shown), clip_on=False, **_style(line.run))
    axes.set_ylim(*y_range)
    highest = max(float(line.x[np.isfinite(line.x)].max()) for line in lines)
    axes.set_xlim(*((0.0, highest) if highest > 0 else span([line.x for line in lines])))


def _marker_places(line: Line, shown: np.ndarray) -> list[int]:
    """Few markers, not at the same places for every run, so that lines differ without colour too."""
    known = np.flatnonzero(np.isfinite(line.x) & np.isfinite(shown))
    if len(known) > 12:
        known = known[((np.arange(5) + (line.run * 0.37) % 1) * len(known) / 5).astype(int)]
    return [int(place) for place in known]


def draw_bars(
    axes: Axes, names: Sequence[str], runs: Sequence[int], parts: Sequence[str], value_RK: np.ndarray, percent: bool
) -> None:
    """One stacked bar per run; value_RK of run R and part K."""
    used = int(value_RK.any(axis=0).sum())
    _place(axes, TOP + 16 * -(-used // 3) + ROW * len(runs) + 38, left=14, top=TOP + 16 * -(-used // 3), bottom=38)
    written = "{:.0%}".format if percent else number_text
    high = float(value_RK.sum(axis=1).max()) or 1.0
    row_R, left_R = np.arange(len(runs)), np.zeros(len(runs))
    for k, part in enumerate(parts):
        value_R = value_RK[:, k]
        if not value_R.any():
            continue
        colour = PART_COLOURS[k % len(PART_COLOURS)]
        bars = axes.barh(row_R, value_R, 0.4, left=left_R, color=colour, edgecolor=PAPER, linewidth=0.5, label=part)
        labels = [written(float(value)) if value > high * 0.12 else "" for value in value_R]
        axes.bar_label(bars, labels, label_type="center", fontsize=10.5, color="#111111")
        left_R = left_R + value_R
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=11, frameon=False, handlelength=0.9,
        handletextpad=0.4, columnspacing=1.0, borderpad=0, borderaxespad=0.1, labelcolor=INK,
    )  # fmt: skip
    if percent:
        axes.xaxis.set_major_formatter("{x:.0%}")
    _label_rows(axes, names, runs, (0.0, high))


def draw_ranges(axes: Axes, names: Sequence[str], runs: Sequence[int], seconds_R4: np.ndarray) -> None:
    """Per run: a dot at p50 and a bar to p95; hollow diamonds at the plan's p50 and p95 (nan without a plan)."""
    _place(axes, TOP + ROW * len(runs) + 38, left=8, top=TOP - 6, bottom=38)
    for row, (run, (p50, p95, *planned)) in enumerate(zip(runs, seconds_R4, strict=True)):
        axes.plot([p50, p95], [row, row], color=colour_of(run), linewidth=6, alpha=0.45)
        axes.plot([p50], [row], linestyle="none", **_mark(run, 8))
        axes.plot(planned, [row, row], "D", markersize=6, markerfacecolor=PAPER, markeredgecolor=INK)
    _label_rows(axes, names, runs, (0.0, span([seconds_R4], zero=True)[1]))


def _label_rows(axes: Axes, names: Sequence[str], runs: Sequence[int], x_range: tuple[float, float]) -> None:
    """A row per run, with the run's name above it."""
    for row, run in enumerate(runs):
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.plot([0.014], [row - 0.45], transform=axes.get_yaxis_transform(), linestyle="none", **_mark(run))
        axes.annotate(_short(names[run], 46), (0, row), (12, 9), fontsize=11, color=INK, **place)
    axes.set_xlim(*x_range)
    axes.set_ylim(len(runs) - 0.6, -0.75)
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)


def draw_shares(
    axes: Axes, names: Sequence[str], bins: Sequence[str], edges_C: np.ndarray, share_BC: np.ndarray
) -> None:
    """A heat map: share_BC of bin B (from below) in column C, which lies between edges_C[C] and edges_C[C + 1]."""
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.ticker import MaxNLocator

    _place(axes, TOP + 15 * len(bins) + 84, bottom=84)
    axes.axhspan(0, len(bins), color=SOFT, zorder=0)
    shade_BC = np.where(share_BC > 0, np.minimum(np.searchsorted(SHADES, share_BC), len(SHADES) - 1), -1)
    for level, opacity in enumerate(OPACITIES):
        row_N, column_N = np.nonzero(shade_BC == level)
        left_N, right_N = edges_C[column_N], edges_C[column_N + 1]
        x_N5 = np.stack([left_N, right_N, right_N, left_N, left_N], axis=1)
        y_N5 = row_N[:, None] + np.array([0.03, 0.03, 0.97, 0.97, 0.03])
        codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY], len(row_N))
        cells = Outline(np.stack([x_N5.ravel(), y_N5.ravel()], axis=1), codes)
        axes.add_patch(PathPatch(cells, facecolor=COLOURS[0], edgecolor="none", alpha=opacity))
    axes.set_xlim(edges_C[0], edges_C[-1])
    axes.set_ylim(0, len(bins))
    axes.set_yticks(np.arange(len(bins)) + 0.5, bins)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(visible=False)
    axes.set_ylabel("pass rate", fontsize=12, color=MUTED, rotation_mode="anchor")
    keys = [Patch(facecolor=COLOURS[0], edgecolor="none", alpha=opacity) for opacity in OPACITIES]
    order = np.arange(len(keys)).reshape(2, -1).T.ravel()  # legends fill column by column
    axes.legend(
        [keys[i] for i in order], [f"up to {SHADES[i]:.0%}" for i in order], loc="upper center", ncols=4,
        bbox_to_anchor=(0.46, -0.27), fontsize=10.5, frameon=False, handlelength=1.2, handletextpad=0.4,
        columnspacing=0.9, labelcolor=MUTED,
    )  # fmt: skip


def _short(name: str, limit: int) -> str:
    """Text of a run, fit to be drawn. The ends of names differ between runs more often than the middle."""
    name = clean(name)
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"


def panel_canvas(panel: Panel, names: Sequence[str]) -> Canvas:
    """The panel as a figure of matplotlib; the SVG and the PNG are both made from it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    canvas = _canvas(WIDTH, HEIGHT)
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.patch.set_visible(False)
    _place(axes, HEIGHT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=11.5, length=0)
    axes.tick_params(axis="x", length=4, width=1)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=1)
    axes.set_xlabel(panel.x_label, fontsize=12, color=MUTED)
    panel.draw(axes, names)
    height = canvas.get_figheight() * 72
    canvas.text(4 / WIDTH, 1 - 16 / height, _short(panel.title, 44), fontsize=13, fontweight="bold", color=INK)
    return canvas


def _place(axes: Axes, height: float, *, left: float = LEFT, top: float = TOP, bottom: float = BOTTOM) -> None:
    """Fixed margins: a layout engine takes several times as long as the drawing."""
    canvas = axes.get_figure(root=True)
    assert canvas is not None  # noqa: S101 - for the type checker
    canvas.set_size_inches(WIDTH / 72, height / 72)
    axes.set_position((left / WIDTH, bottom / height, (WIDTH - left - RIGHT) / WIDTH, (height - top - bottom) / height))


def _canvas(width: float, height: float) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width / 72, height / 72), dpi=72, facecolor=PAPER)
    canvas.patch.set_visible(False)
    return canvas


@contextmanager
def _drawing() -> Iterator[None]:
    """The project's settings of matplotlib, not the user's. Runs may have names that the font lacks letters for."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def panel_svg(panel: Panel, names: Sequence[str], seen: set[str]) -> str:
    """The panel as an <svg> element. `seen`: ids of the definitions that the page holds already; it grows."""
    with _drawing():
        canvas = panel_canvas(panel, names)
        inner = _svg_content(canvas, seen)
    label = escape(clean(f"{panel.title}. {panel.summary}; values in the table below"))
    height = canvas.get_figheight() * 72
    return f'<svg class="panel" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">{inner}</svg>'


def run_symbols(count: int, seen: set[str]) -> str:
    """Line and marker of each run, for the page's legends: <symbol> elements with the ids run-0, run-1, ..."""
    symbols = []
    with _drawing():
        for run in range(count):
            canvas = _canvas(36, 14)
            canvas.add_artist(_legend_line(run, x=(0.03, 0.5, 0.97), y=(0.5, 0.5, 0.5), markevery=[1]))
            symbols.append(f'<symbol id="run-{run}" viewBox="0 0 36 14">{_svg_content(canvas, seen)}</symbol>')
    return "".join(symbols)


def _legend_line(run: int, x: Sequence[float] = (), y: Sequence[float] = (), **more: Any) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D(x, y, **_style(run), **more)


def _svg_content(canvas: Canvas, seen: set[str]) -> str:
    """What stands inside the <svg> that matplotlib writes, made small and fit for a page."""
    written = io.StringIO()
    canvas.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return "".join(_markup(child, seen) for child in ElementTree.fromstring(written.getvalue()))


def _markup(element: ElementTree.Element, seen: set[str], *, keep_id: bool = False) -> str:
    """The element without metadata, global style, names of groups, fonts, and definitions that the page has."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return ""
    if tag == "defs":
        fresh = [child for child in element if child.get("id", "") not in seen]
        seen.update(child.get("id", "") for child in fresh)
        inner = "".join(_markup(child, seen, keep_id=True) for child in fresh)
        return inner and f"<defs>{inner}</defs>"
    inner = escape(element.text or "") if tag == "text" else "".join(_markup(child, seen) for child in element)
    attributes = ""
    for name, value in element.attrib.items():
        name = name.rpartition("}")[2]
        if (name == "id" and not keep_id) or (name == "transform" and value.startswith("rotate(-0 ")):
            continue
        attributes += f' {name}="{escape(_small(name, value))}"'
    return f"<{tag}{attributes}>{inner}</{tag}>" if attributes or tag != "g" else inner


def _small(name: str, value: str) -> str:
    """An attribute's value: CSS variables for colours, one decimal for coordinates."""
    if name == "style":
        value = COLOUR.sub(lambda match: CSS.get(match[0], match[0]), FONT.sub("", value))
        return value.replace(": ", ":").replace("; ", ";")
    if name == "d":
        value = SPACES.sub(" ", value).replace(" L ", "L").replace("M ", "M").strip()
    return value if name in ("id", "href", "clip-path") else DECIMALS.sub(lambda match: f"{float(match[0]):.1f}", value)


def write_pngs(figures: Sequence[Figure], names: Sequence[str], folder: Path) -> list[Path]:
    """One PNG per figure that has panels, named after its key."""
    from matplotlib.image import imsave

    folder.mkdir(parents=True, exist_ok=True)
    shown = {folder / f"{figure.key}.png": figure for figure in figures if figure.panels}
    for path, figure in shown.items():
        imsave(path, _picture(figure, names))
    return list(shown)


def _picture(figure: Figure, names: Sequence[str]) -> np.ndarray:
    """The figure's title, a legend of its runs and its panels; pixels [height, width, 4]."""
    columns = min(PNG_COLUMNS, len(figure.panels))
    with _drawing():
        pictures = [_pixels(panel_canvas(panel, names)) for panel in figure.panels]
        heading = _pixels(_heading(figure, names, columns * WIDTH))
    starts = range(0, len(pictures), columns)
    strips = [heading, *(np.hstack(_on_white(pictures[start : start + columns])) for start in starts)]
    return np.vstack(_on_white(strips))


def _heading(figure: Figure, names: Sequence[str], width: int) -> Canvas:
    runs = sorted({run for run, _ in figure.rows}) if figure.legend else []
    height = 34 + 16 * -(-len(runs) // LEGEND_COLUMNS)
    canvas = _canvas(width, height)
    canvas.text(0.5, 1 - 18 / height, figure.title, fontsize=16, ha="center", color=INK)
    if runs:
        handles = [_legend_line(run, label=_short(names[run], 40)) for run in runs]
        canvas.legend(handles=handles, loc="lower center", ncols=LEGEND_COLUMNS, fontsize=10, frameon=False)
    return canvas


def _pixels(canvas: Canvas) -> np.ndarray:
    """The figure's pixels on white, [height, width, 4]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas.patch.set_visible(True)
    canvas.set_dpi(PNG_DPI)
    agg = FigureCanvasAgg(canvas)
    agg.draw()
    return np.asarray(agg.buffer_rgba())


def _on_white(pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The pictures, made equally large by white at the bottom and on the right."""
    high, wide = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    room = [((0, high - picture.shape[0]), (0, wide - picture.shape[1]), (0, 0)) for picture in pictures]
    return [np.pad(picture, pad, constant_values=255) for picture, pad in zip(pictures, room, strict=True)]
