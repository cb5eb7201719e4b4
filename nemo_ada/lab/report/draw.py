"""Draw the report's figures with matplotlib: as SVG for the page, and as PNG files for slides and papers.

A figure is 360 units wide, about as many CSS pixels. So its text keeps its size on a phone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_ada.lab.report.figures import Figure
from nemo_ada.lab.report.run import clean
from nemo_ada.run.files import write_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette without yellow, which is too pale on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#17202a")
MUTED, GRID = "#55606c", "#e7eaee"
MARKERS = "osD^vPX"
WIDTH, HEIGHT = 360, 232
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 30, 42  # around the axes of a figure
LEGEND = 14  # height of a line of the legend
PNG_DPI = 220
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


def choose_colour(method: int) -> str:
    """Return the colour of a method. Colours repeat after seven methods, with other markers."""
    return COLOURS[method % len(COLOURS)]


def _shorten_name(name: str, limit: int) -> str:
    """Shorten a name for a drawing. The ends of names differ between runs more often than the middle."""
    name = clean(name)
    return name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"


def make_canvas(figure: Figure, names: Sequence[str]) -> Canvas:
    """Draw the curves of a figure over axes that start at 0, with title, labels and a legend of the methods.

    The margins are fixed, because a layout engine takes several times as long as the drawing.
    """
    from matplotlib.figure import Figure as Canvas

    below = BOTTOM + LEGEND * len(figure.lines)
    height = HEIGHT + LEGEND * len(figure.lines)
    canvas = Canvas(figsize=(WIDTH / 72, height / 72), dpi=72)
    canvas.subplots_adjust(left=LEFT / WIDTH, right=1 - RIGHT / WIDTH, top=1 - TOP / height, bottom=below / height)
    axes = canvas.add_subplot()
    axes.set_xlabel(figure.x_label)
    axes.set_title(_shorten_name(figure.title, 44))
    for line in figure.lines:
        colour, shape = choose_colour(line.method), (line.method + line.method // len(COLOURS)) % len(MARKERS)
        if line.half_width is not None:
            axes.fill_between(line.x, line.y - line.half_width, line.y + line.half_width, color=colour, alpha=0.2, lw=0)
        axes.plot(
            line.x, line.y, linewidth=1.6, color=colour, marker=MARKERS[shape], markersize=5.5,
            markevery=max(1, len(line.x) // 5), label=_shorten_name(names[line.method], 40),
        )  # fmt: skip
    axes.set(xlim=(0.0, None), ylim=(0.0, None))
    axes.locator_params(axis="x", nbins=5)  # more labels than that run into each other
    canvas.legend(loc="lower left")
    return canvas


def draw_figure(figure: Figure, names: Sequence[str], form: str) -> bytes:
    """Return a figure as the content of an SVG or PNG file.

    The project's settings of matplotlib count, not those of a file, so a figure looks the same on every machine. A
    warning about letters of a run's name that the font lacks is no news to the user, and is not shown.
    """
    with chdir(Path(__file__).parent):  # the first import reads a file matplotlibrc of the working folder
        import matplotlib

    written = io.BytesIO()
    metadata = {"Software": "nemo-ada"} if form == "png" else dict.fromkeys(("Date", "Creator"))
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        make_canvas(figure, names).savefig(
            written, format=form, dpi=PNG_DPI if form == "png" else 72, metadata=metadata
        )
    return written.getvalue()


def write_pngs(figures: Sequence[Figure], names: Sequence[str], folder: Path) -> list[Path]:
    """Write one PNG file per figure that has lines.

    Args:
        figures: The figures. Their keys name the files.
        names: The names of the methods, for the legends.
        folder: Where the files go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = {folder / f"{figure.key}.png": figure for figure in figures if figure.lines}
    for path, figure in shown.items():
        write_result(path, draw_figure(figure, names, "png"), "--png")
    return list(shown)
