"""Draw the report's panels with matplotlib: as SVG for the page, and as PNG files for slides and papers.

A panel is 360 units wide, about as many CSS pixels. So its text keeps its size on a phone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_ada.lab.report.run import clean
from nemo_ada.lab.report.series import Figure, Line, Panel, span, tick_text
from nemo_ada.run.files import write_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette without yellow, which is too pale on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#17202a")
MUTED, GRID = "#55606c", "#e7eaee"
MARKERS, SYMBOLS = "osD^vPX", "●■◆▲▼✚✖"  # the same shapes, for matplotlib and as text
MAX_PALE_LINES = 4  # with more lines the values behind the rolling means are only noise
WIDTH, HEIGHT = 360, 232
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


def _marker_places(line: Line, shown: np.ndarray) -> list[int]:
    """Return few places, not the same for every line, so that lines differ without colour too."""
    finite = np.flatnonzero(np.isfinite(line.x) & np.isfinite(shown))
    if len(finite) > 12:
        finite = finite[((np.arange(5) + (line.method * 0.37) % 1) * len(finite) / 5).astype(int)]
    return [int(place) for place in finite]


def _short(name: str, limit: int) -> str:
    """Shorten a name for a drawing. The ends of names differ between runs more often than the middle."""
    name = clean(name)
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the curves of a panel over an axis that starts at 0, with title and labels."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.set_xlabel(panel.x_label)
    axes.set_title(_short(panel.title, 44))
    for line in panel.lines:
        shown = line.y if line.trend is None else line.trend
        colour = colour_of(line.method)
        if line.trend is not None and len(panel.lines) <= MAX_PALE_LINES:
            axes.plot(line.x, line.y, color=colour, alpha=0.32, linewidth=0.9)
        if line.half_width is not None:
            axes.fill_between(line.x, shown - line.half_width, shown + line.half_width, color=colour, alpha=0.2, lw=0)
        axes.plot(line.x, shown, linewidth=1.6, markevery=_marker_places(line, shown), **_mark(line.method))
    axes.set_ylim(*panel.y_range)
    highest = max((float(np.nanmax(line.x)) for line in panel.lines), default=0.0)
    axes.set_xlim(*((0.0, highest) if highest > 0 else span([line.x for line in panel.lines])))


def panel_canvas(panel: Panel) -> Canvas:
    """Return the panel as a figure of matplotlib."""
    return _canvas([panel], 1)


def _canvas(panels: Sequence[Panel], columns: int, above: int = 0, below: int = 0) -> Canvas:
    """Return a figure with panels in rows of `columns`, and room above and below them.

    The margins are fixed, because a layout engine takes several times as long as the drawing.
    """
    from matplotlib.figure import Figure as Canvas

    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT + above + below
    canvas = Canvas(figsize=(width / 72, height / 72), dpi=72)
    canvas.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        top=1 - (TOP + above) / height,
        bottom=(BOTTOM + below) / height,
        wspace=(LEFT + RIGHT) / (WIDTH - LEFT - RIGHT),
        hspace=(TOP + BOTTOM) / (HEIGHT - TOP - BOTTOM),
    )
    for place, panel in enumerate(panels, start=1):
        draw_panel(canvas.add_subplot(rows, columns, place), panel)
    return canvas


@contextmanager
def drawing() -> Iterator[None]:
    """Use the project's settings of matplotlib, not those of a file. The font may lack letters of a run's name."""
    with chdir(Path(__file__).parent):  # the first import reads a file matplotlibrc of the working folder
        import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
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
