"""One HTML page that needs nothing else: style, figures and tables are inline.

The page makes no request, has no script, and its own policy forbids both. Jinja escapes every value of a run, and
`clean` hides secrets in it first.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from nemo_ada.lab.report import summary
from nemo_ada.lab.report.curves import MAX_POINTS, group_by_method
from nemo_ada.lab.report.draw import draw_figure
from nemo_ada.lab.report.figures import Figure
from nemo_ada.lab.report.run import Run, clean


def render_page(runs: Sequence[Run], figures: Sequence[Figure], *, written: str, left_out: Sequence[str] = ()) -> str:
    """Return the report page.

    Args:
        runs: The runs to compare.
        figures: Their figures.
        written: When the page is written.
        left_out: Which runs are not in the page, and why.
    """
    names = list(group_by_method(runs))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nemo_ada.lab.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    return environment.get_template("page.html").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        written=written,
        notes=[*left_out, *summary.find_warnings(runs)],
        told=summary.answer_in_sentences(runs),
        tables=[(title, summary.turn_if_narrow(table)) for title, table in summary.make_tables(runs).items()],
        figures=[(figure, _embed_image(figure, names)) for figure in figures if figure.lines],
        missing=[figure.title for figure in figures if not figure.lines],
        most=MAX_POINTS,
    )


def _embed_image(figure: Figure, names: Sequence[str]) -> Markup:
    """Return the figure as an address that holds the picture. Nothing of a run is in it as text."""
    return Markup("data:image/svg+xml;base64," + base64.b64encode(draw_figure(figure, names, "svg")).decode())
