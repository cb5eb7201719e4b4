"""One HTML page that needs nothing else: style, figures and tables are inline.

The page makes no request, and its own policy forbids every request. Its only script is the reload of --watch. All text
from run directories goes through `esc` or, in figures, through draw.py.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from operator import itemgetter

from nemo_ada.report import summary
from nemo_ada.report.draw import panel_svg, run_symbols
from nemo_ada.report.figures import all_figures
from nemo_ada.report.run import Run, clean
from nemo_ada.report.series import MAX_POINTS, Blocks, Figure, Grid, number_text

# A reader who has opened a table keeps it: the page reloads only while all tables are closed.
RELOAD = "setInterval(()=>{{if(!document.querySelector('details[open]'))location.reload()}},{milliseconds})"


def render(
    runs: Sequence[Run], *, written: str, reload_seconds: int | None = None, left_out: Sequence[str] = ()
) -> str:
    """The report page of these runs.

    written: when. reload_seconds: the page reloads itself. left_out: which runs are not in it, and why.
    """
    figures = all_figures(runs)
    names = [run.name for run in runs]
    seen: set[str] = set()
    symbols = run_symbols(len(runs), seen)
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    sections = [
        ("overview", "Overview", _overview(runs, left_out)),
        *((figure.key, figure.title, _figure(figure, names, seen)) for figure in figures),
        *_samples(runs),
        ("configuration", "Configuration", _configuration(runs)),
        ("provenance", "Provenance", _provenance(runs)),
    ]
    plans = summary.predictions(runs)
    if plans is not None:
        after = next(place for place, (key, _, _) in enumerate(sections, start=1) if key == "time")
        sections.insert(after, ("plan", "Plan", _grid(plans, "What nemo-ada plan predicted, and what happened")))
    links = "".join(f'<li><a href="#{esc(key)}">{esc(name)}</a>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{esc(key)}" aria-labelledby="h-{esc(key)}">'
        f'<h2 id="h-{esc(key)}">{esc(name)}</h2>{html}</section>'
        for key, name, html in sections
    )
    script = "" if reload_seconds is None else RELOAD.format(milliseconds=int(reload_seconds * 1000))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    live = f" Reloads every {reload_seconds} s while its tables are closed." if script else ""
    style = files("nemo_ada.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"{allowed}base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>nemo-ada: {esc(title)}</title><style>{style}</style></head><body>"
        f'<svg class="defs" width="0" height="0" aria-hidden="true">{symbols}</svg>'
        f'<header><h1>Training report: {esc(title)}</h1><p class="muted">Written {esc(written)} by nemo-ada '
        f"report.{live}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def esc(value: object) -> str:
    """Untrusted text for HTML and attributes."""
    return escape(clean(value), quote=True)


def swatch(run: int) -> str:
    """Line and marker of a run, for legends and tables."""
    return f'<svg class="swatch" width="36" height="14" aria-hidden="true"><use href="#run-{run}"/></svg>'


def _overview(runs: Sequence[Run], left_out: Sequence[str]) -> str:
    notes = [*left_out, *summary.warnings(runs)]
    listed = "".join(f"<li>{esc(note)}" for note in notes)
    warned = f'<div class="notes"><h3>Before you compare</h3><ul>{listed}</ul></div>' if notes else ""
    html = _grid(summary.overview(runs), "What each run reached and what it cost", swatches=True)
    sizes = {run.name: Blocks.of(run.column("step")).size for run in runs}
    longest = max(sizes.values())
    blocks = (
        f" Long runs are shown as means over blocks of steps (up to {longest} steps per point, at most {MAX_POINTS} "
        "points per line) in figures and tables; metrics.jsonl in the run directory has every step."
        if longest > 1
        else " Figures and tables show every step."
    )
    html += f'<p class="muted">"At the end" is the mean over the last tenth of the steps.{blocks}</p>'
    equal = summary.equal_cost(runs)
    if equal is not None:
        html += "<h3>At equal cost</h3>" + _grid(
            equal, "Mean held-out accuracy up to the cost that every run reached", swatches=True
        )
        html += (
            '<p class="muted">Area under the accuracy curve per unit of cost, linear between evaluations. One run is '
            "one seed: small differences are noise until several seeds agree.</p>"
        )
    return warned + html


def _grid(grid: Grid, caption: str, *, swatches: bool = False) -> str:
    """A table. With swatches its rows are runs; few runs become columns, easier to compare and narrower."""
    turned = swatches and len(grid.rows) <= summary.MAX_TURNED
    column_marks = [""] * len(grid.columns)
    row_marks = [swatch(run) if swatches else "" for run in range(len(grid.rows))]
    if turned:
        grid, column_marks, row_marks = grid.turned(), ["", *row_marks], column_marks[1:]
    head = "".join(
        f'<th scope="col">{mark}<span>{_breakable(name)}</span>'
        for mark, name in zip(column_marks, grid.columns, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{mark}<span>{_breakable(row[0])}</span>' + "".join(f"<td>{esc(cell)}" for cell in row[1:])
        for mark, row in zip(row_marks, grid.rows, strict=True)
    )
    kind = ' class="turned"' if turned else ""
    return _scroll(f"<table{kind}>{_caption(caption)}<thead><tr>{head}<tbody>{rows}</table>", caption)


def _breakable(text: str) -> str:
    """Names and dotted keys may break after their separators."""
    return re.sub(r"([._/-])", r"\1<wbr>", esc(text))


def _caption(text: str) -> str:
    """As wide as the window, not as a table that is wider."""
    return f"<caption><span>{esc(text)}</span></caption>"


def _scroll(html: str, label: str) -> str:
    """A table wider than the page scrolls by itself, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(label)}">{html}</div>'


def _figure(figure: Figure, names: Sequence[str], seen: set[str]) -> str:
    if not figure.panels:
        return f'<p class="muted">{esc(figure.caption)}</p>'
    panels = "".join(f'<div class="cell">{panel_svg(panel, names, seen)}</div>' for panel in figure.panels)
    shown = sorted({run for run, _ in figure.rows}) if figure.legend else []
    legend = "".join(f"<li>{swatch(run)}<span>{esc(names[run])}</span>" for run in shown)
    listed = f'<ul class="legend" aria-label="Runs">{legend}</ul>' if legend else ""
    return (
        f'<figure>{listed}<div class="panels">{panels}</div>'
        f"<figcaption>{esc(figure.caption)}</figcaption>{_values(figure, names)}</figure>"
    )


def _values(figure: Figure, names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{esc(name)}' for name in ("run", *figure.columns))
    caption = f"Values of: {figure.title}"
    return (
        f"<details><summary>All values as a table ({len(figure.rows)} rows)</summary>"
        + _scroll(
            f"<table>{_caption(caption)}<thead><tr>{head}{''.join(_bodies(figure, names))}</table>",
            caption,
        )
        + "</details>"
    )


def _bodies(figure: Figure, names: Sequence[str]) -> Iterator[str]:
    """One <tbody> per run, headed by its name."""
    width = len(figure.columns)
    for run, group in groupby(figure.rows, key=itemgetter(0)):
        rows = [_cells(values, width) for _, values in group]
        yield f'<tbody><tr><th scope="rowgroup" rowspan="{len(rows)}">{_breakable(names[run])}' + "<tr>".join(rows)


def _cells(values: Sequence[float | str], width: int) -> str:
    if len(values) == 1 < width:
        return f'<td colspan="{width}">{esc(values[0])}'
    return "".join(f"<td>{esc(value) if isinstance(value, str) else number_text(value)}" for value in values)


def _samples(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """A section with answers before and after, where an evaluation has kept some."""
    tables = []
    for run in runs:
        grid = summary.samples(run)
        if grid is not None:
            tables.append(_grid(grid, f"{run.name}: held-out problems, answered at the first and the last evaluation"))
    return [("answers", "Sample answers", "".join(tables))] if tables else []


def _configuration(runs: Sequence[Run]) -> str:
    html = ""
    if len(runs) > 1:
        different = summary.differences(runs)
        html = (
            _grid(different, "Settings that differ between the runs")
            if different.rows
            else "<p>The configurations do not differ.</p>"
        )
    for run in runs:
        rows = "".join(f'<tr><th scope="row">{_breakable(key)}<td>{esc(value)}' for key, value in run.config.items())
        if rows:
            head = '<thead><tr><th scope="col">key<th scope="col">value'
            table = f"<table>{_caption(run.name)}{head}<tbody>{rows}</table>"
            html += f"<details><summary>Configuration of {esc(run.name)}</summary>{_scroll(table, run.name)}</details>"
    return html or '<p class="muted">No config.yaml was found.</p>'


def _provenance(runs: Sequence[Run]) -> str:
    cards = []
    for run in runs:
        items = "".join(
            f"<dt>{esc(name)}<dd>{f'<code>{esc(value)}</code>' if name in ('command', 'folder') else esc(value)}"
            for name, value in summary.provenance(run).items()
        )
        cards.append(f"<article><h3>{esc(run.name)}</h3><dl>{items}</dl></article>")
    return f'<div class="cards">{"".join(cards)}</div>'
