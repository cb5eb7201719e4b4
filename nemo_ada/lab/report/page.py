"""One HTML page that needs nothing else: style, figures and tables are inline.

The page makes no request, has no script, and its own policy forbids both. Jinja escapes every value of a run, and
`clean` hides secrets in it first.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from nemo_ada.lab.evaluation.results import Evaluation
from nemo_ada.lab.report import evaluations, summary
from nemo_ada.lab.report.curves import by_method
from nemo_ada.lab.report.draw import colour_of, panel_svg, symbol_of
from nemo_ada.lab.report.figures import all_figures
from nemo_ada.lab.report.run import Run, clean
from nemo_ada.lab.report.series import AXES, MAX_POINTS, Panel, block_size, number_text


def render(
    runs: Sequence[Run],
    *,
    written: str,
    scored: Sequence[Evaluation] = (),
    left_out: Sequence[str] = (),
) -> str:
    """Return the report page.

    Args:
        runs: The runs to compare.
        written: When the page is written.
        scored: Evaluations to compare, of `nemo-ada eval`.
        left_out: Which runs are not in the page, and why.
    """
    figures = all_figures(runs) if runs else []
    plans = summary.predictions(runs)
    answers = {run.name: table for run in runs if (table := summary.samples(run)) is not None}
    names = [run.name for run in runs] or [evaluation.folder.name for evaluation in scored]
    sections = {"overview": "Overview"} | ({"evaluations": "Evaluations"} if scored else {})
    for figure in figures:
        sections[figure.key] = figure.title
        if figure.key == "time" and plans is not None:
            sections["plan"] = "Plan"
    sections |= {"answers": "Sample answers"} if answers else {}
    sections |= {"configuration": "Configuration", "provenance": "Provenance"} if runs else {}
    return _environment().get_template("page.html").render(
        title=names[0] if len(names) == 1 else f"{len(names)} {'runs' if runs else 'evaluations'}",
        written=written,
        sections=sections,
        runs=runs,
        names=list(by_method(runs)),
        notes=[*left_out, *summary.warnings(runs), *evaluations.warnings(scored)],
        told=summary.answer(runs),
        overview=summary.narrow(summary.overview(runs)) if runs else None,
        equal_cost=None if (equal := summary.equal_cost(runs)) is None else summary.narrow(equal),
        longest=max((block_size(len(run.steps)) for run in runs), default=1),
        figures=figures,
        most_axes=len(AXES),
        plans=plans,
        answers=answers,
        different=summary.differences(runs),
        scores=evaluations.scores(scored) if scored else None,
        compared=evaluations.comparison(scored),
    )  # fmt: skip


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nemo_ada.lab.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {"cell": _cell, "image": _image}
    environment.globals |= {
        "colour_of": colour_of,
        "symbol_of": symbol_of,
        "provenance": summary.provenance,
        "max_points": MAX_POINTS,
    }
    return environment


def _cell(value: object) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def _image(panel: Panel) -> Markup:
    """Return the panel as an address that holds the picture. Nothing of a run is in it as text."""
    return Markup("data:image/svg+xml;base64," + base64.b64encode(panel_svg(panel)).decode())
