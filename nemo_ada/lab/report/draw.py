"""Draw the report's panels with matplotlib: as SVG for the page, and as PNG files for slides and papers.

A panel is 360 units wide, about as many CSS pixels. So its text keeps its size on a phone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_ada.lab.report.run import clean
from nemo_ada.lab.report.series import Figure, Panel, number_text, span, tick_text
from nemo_ada.run.files import write_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette without yellow, which is too pale on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#17202a")
PART_COLOURS = ("#56b4ea", "#e69f01", "#2cbf97", "#cc79a8", "#d9853b", "#9aa5b1")  # parts of bars
MUTED, GRID = "#55606c", "#e7eaee"
MARKERS, SYMBOLS = "osD^vPX", "●■◆▲▼✚✖"  # the same shapes, for matplotlib and as text
SHADES = (0.0, 0.001, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # limits of shares, the same in all heat maps
MAX_PALE_LINES = 4  # with more lines the values behind the rolling means are only noise
WIDTH, HEIGHT, ROW = 360, 232, 34
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 30, 42  # around the axes of a panel
PNG_DPI, PNG_COLUMNS = 110, 3
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text as text makes a smaller file than text as outlines
    "text.parse_math": False,  # a `$` in a run's name is a dollar sign
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titley": 1.02,  # matplotlib need not look for a free place, which takes a quarter of the time
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 10,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One method in one panel. nan in y breaks the line.

    Attributes:
        method: The number of the method.
        x: Places of the points [N].
        y: Values of the points [N], the mean over the seeds where there are several.
        trend: The rolling mean of y [N]. It is then the line, and y is drawn pale behind it.
        half_width: Half of the interval over the seeds [N], drawn as a band.
    """

    method: int
    x: np.ndarray
    y: np.ndarray
    trend: np.ndarray | None = None
    half_width: np.ndarray | None = None


def colour_of(method: int) -> str:
    """Return the colour of a method. Colours repeat after seven methods, with other markers."""
    return COLOURS[method % len(COLOURS)]


def symbol_of(method: int) -> str:
    """Return the marker of a method as a character."""
    return SYMBOLS[_shape(method)]


def _shape(method: int) -> int:
    return (method + method // len(COLOURS)) % len(MARKERS)


def _mark(method: int) -> dict[str, Any]:
    return {"color": colour_of(method), "marker": MARKERS[_shape(method)], "markersize": 5.5}


def draw_lines(axes: Axes, lines: Sequence[Line], y_range: tuple[float, float]) -> None:
    """Draw curves over an axis that starts at 0."""
    for line in lines:
        shown = line.y if line.trend is None else line.trend
        colour = colour_of(line.method)
        if line.trend is not None and len(lines) <= MAX_PALE_LINES:
            axes.plot(line.x, line.y, color=colour, alpha=0.32, linewidth=0.9)
        if line.half_width is not None:
            axes.fill_between(line.x, shown - line.half_width, shown + line.half_width, color=colour, alpha=0.2, lw=0)
        axes.plot(line.x, shown, linewidth=1.6, markevery=_marker_places(line, shown), **_mark(line.method))
    axes.set_ylim(*y_range)
    highest = max((float(np.nanmax(line.x)) for line in lines), default=0.0)
    axes.set_xlim(*((0.0, highest) if highest > 0 else span([line.x for line in lines])))


def _marker_places(line: Line, shown: np.ndarray) -> list[int]:
    """Return few places, not the same for every line, so that lines differ without colour too."""
    finite = np.flatnonzero(np.isfinite(line.x) & np.isfinite(shown))
    if len(finite) > 12:
        finite = finite[((np.arange(5) + (line.method * 0.37) % 1) * len(finite) / 5).astype(int)]
    return [int(place) for place in finite]


def draw_bars(
    axes: Axes, names: Sequence[str], methods: Sequence[int], parts: Sequence[str], value_RK: np.ndarray
) -> None:
    """Draw one stacked bar per run. value_RK has run R and part K."""
    high = float(value_RK.sum(axis=1).max()) or 1.0
    row_R, left_R = np.arange(len(names)), np.zeros(len(names))
    for k, part in enumerate(parts):
        value_R = value_RK[:, k]
        if value_R.any():
            colour = PART_COLOURS[k % len(PART_COLOURS)]
            bars = axes.barh(row_R, value_R, 0.4, left=left_R, color=colour, label=part)
            axes.bar_label(bars, [number_text(v) if v > high * 0.12 else "" for v in value_R], label_type="center")
            left_R = left_R + value_R
    _label_rows(axes, names, methods, high * 1.02)
    axes.set_ylim(len(names) + 0.5, -0.75)  # room for the legend below the bars
    axes.legend(loc="lower left", ncols=3, columnspacing=1.0, borderaxespad=0.0)


def draw_ranges(axes: Axes, names: Sequence[str], methods: Sequence[int], seconds_R4: np.ndarray) -> None:
    """Draw one row per run: p50 to p95 as a bar, and the plan's p50 and p95 as hollow diamonds."""
    for row, (method, (p50, p95, *planned)) in enumerate(zip(methods, seconds_R4, strict=True)):
        axes.plot([p50, p95], [row, row], color=colour_of(method), linewidth=6, alpha=0.45)
        axes.plot([p50], [row], linestyle="none", **_mark(method))
        axes.plot(planned, [row, row], "D", markersize=6, markerfacecolor="white", markeredgecolor="black")
    _label_rows(axes, names, methods, span([seconds_R4], zero=True)[1])


def draw_intervals(axes: Axes, names: Sequence[str], methods: Sequence[int], value_R3: np.ndarray) -> None:
    """Draw one row per evaluation: a mean with its interval. value_R3 has mean, low and high."""
    for row, (method, (mean, low, high)) in enumerate(zip(methods, value_R3, strict=True)):
        axes.errorbar([mean], [row], xerr=[[mean - low], [high - mean]], capsize=3, **_mark(method))
    _label_rows(axes, names, methods, span([value_R3], zero=True)[1])


def _label_rows(axes: Axes, names: Sequence[str], methods: Sequence[int], high: float) -> None:
    """Write the name of each run above its row."""
    for row, (name, method) in enumerate(zip(names, methods, strict=True)):
        text = f"{symbol_of(method)} {_short(name, 44)}"
        axes.annotate(text, (0, row), (0, 9), xycoords=("axes fraction", "data"), textcoords="offset points")
    axes.set_xlim(0.0, high)
    axes.set_ylim(len(names) - 0.6, -0.75)
    axes.set_yticks([])


def draw_shares(axes: Axes, bins: Sequence[str], edges_C: np.ndarray, share_BC: np.ndarray) -> None:
    """Draw a heat map: share_BC of bin B (from below) in column C, which lies between edges_C[C] and edges_C[C + 1]."""
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm
    from matplotlib.ticker import MaxNLocator

    shades = colormaps["Blues"].resampled(len(SHADES) - 1)
    cells = axes.pcolormesh(
        edges_C, np.arange(len(bins) + 1), share_BC, cmap=shades, norm=BoundaryNorm(SHADES, shades.N), rasterized=True
    )
    axes.set_yticks(np.arange(len(bins)) + 0.5, bins)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(visible=False)
    place = axes.get_position()
    axes.set_position((place.x0, place.y0, place.width * 0.84, place.height))
    canvas = axes.get_figure()
    assert canvas is not None  # noqa: S101 - for the type checker
    canvas.colorbar(cells, cax=axes.inset_axes((1.03, 0.0, 0.05, 1.0)), ticks=SHADES[2:], format="{x:.0%}")


def _short(name: str, limit: int) -> str:
    """Shorten a name for a drawing. The ends of names differ between runs more often than the middle."""
    name = clean(name)
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw a panel with its title and its axes."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.set_xlabel(panel.x_label)
    axes.set_title(_short(panel.title, 44))
    panel.draw(axes)


def panel_canvas(panel: Panel) -> Canvas:
    """Return the panel as a figure of matplotlib."""
    return _canvas([panel], 1)


def _canvas(panels: Sequence[Panel], columns: int, above: int = 0, below: int = 0) -> Canvas:
    """Return a figure with panels in rows of `columns`, and room above and below them.

    The margins are fixed, because a layout engine takes several times as long as the drawing.
    """
    from matplotlib.figure import Figure as Canvas

    cell = max(TOP + BOTTOM + ROW * panel.rows if panel.rows else HEIGHT for panel in panels)
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * cell + above + below
    canvas = Canvas(figsize=(width / 72, height / 72), dpi=72)
    canvas.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        top=1 - (TOP + above) / height,
        bottom=(BOTTOM + below) / height,
        wspace=(LEFT + RIGHT) / (WIDTH - LEFT - RIGHT),
        hspace=(TOP + BOTTOM) / (cell - TOP - BOTTOM),
    )
    for place, panel in enumerate(panels, start=1):
        draw_panel(canvas.add_subplot(rows, columns, place), panel)
    return canvas


@contextmanager
def drawing() -> Iterator[None]:
    """Use the project's settings of matplotlib, not the user's. The font may lack letters of a run's name."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def panel_svg(panel: Panel) -> bytes:
    """Return the panel as an SVG file."""
    written = io.BytesIO()
    with drawing():
        panel_canvas(panel).savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator")))
    return written.getvalue()


def write_pngs(figures: Sequence[Figure], names: Sequence[str], folder: Path) -> list[Path]:
    """Write one PNG file per figure that has panels.

    Args:
        figures: The figures. Their keys name the files.
        names: The names of the methods, for the legends.
        folder: Where the files go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = {folder / f"{figure.key}.png": figure for figure in figures if figure.panels}
    for path, figure in shown.items():
        with drawing():
            drawn = io.BytesIO()
            _figure_canvas(figure, names).savefig(drawn, format="png", dpi=PNG_DPI, metadata={"Software": "nemo-ada"})
        write_result(path, drawn.getvalue(), "--png")
    return list(shown)


def _figure_canvas(figure: Figure, names: Sequence[str]) -> Canvas:
    """Return all panels of a figure, with a title and a legend."""
    from matplotlib.lines import Line2D

    columns = min(PNG_COLUMNS, len(figure.panels))
    canvas = _canvas(figure.panels, columns, above=30, below=10 + 18 * -(-len(figure.methods) // columns))
    canvas.suptitle(figure.title, fontsize=16)
    if figure.methods:
        lines = [Line2D([], [], label=_short(names[method], 40), **_mark(method)) for method in figure.methods]
        canvas.legend(handles=lines, loc="lower center", ncols=columns)
    return canvas
