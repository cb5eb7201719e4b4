"""One self-contained HTML page: style, figures and tables inline, no script (but the reload of --watch), no request.

The page's own policy forbids every request. All text from run directories goes through `esc`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from nemo_ada.report import summary
from nemo_ada.report.figures import all_figures
from nemo_ada.report.plan import predictions
from nemo_ada.report.run import Run
from nemo_ada.report.series import MAX_POINTS, TREND, Blocks
from nemo_ada.report.spec import BarPanel, Figure, Grid, HeatPanel, LinePanel, text_of
from nemo_ada.report.svg import PALE_RUNS, draw
from nemo_ada.report.svg_base import definitions, esc, swatch

FEW = 4
# A reader who has opened a table keeps it: the page reloads only while all tables are closed.
RELOAD = "setInterval(()=>{{if(!document.querySelector('details[open]'))location.reload()}},{milliseconds})"


def render(
    runs: Sequence[Run], *, written: str, reload_seconds: int | None = None, left_out: Sequence[str] = ()
) -> str:
    """The report page of these runs; `written` is when, `reload_seconds` makes the page reload itself, `left_out` says
    which runs are not in it and why."""
    figures = all_figures(runs)
    names = [run.name for run in runs]
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    sections = [
        ("overview", "Overview", _overview(runs, left_out)),
        *((figure.key, figure.title, _figure(figure, names)) for figure in figures),
        ("configuration", "Configuration", _configuration(runs)),
        ("provenance", "Provenance", _provenance(runs)),
    ]
    plans = predictions(runs)
    if plans is not None:
        after = next(place for place, (key, _, _) in enumerate(sections, start=1) if key == "time")
        sections.insert(after, ("plan", "Plan", _grid(plans, "What nemo-ada plan predicted, and what came")))
    links = "".join(f'<li><a href="#{esc(_id(key))}">{esc(name)}</a>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{esc(_id(key))}" aria-labelledby="h-{esc(_id(key))}">'
        f'<h2 id="h-{esc(_id(key))}">{esc(name)}</h2>{html}</section>'
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
        f"<title>nemo-ada: {esc(title)}</title><style>{style}</style></head><body>{definitions()}"
        f'<header><h1>Training report: {esc(title)}</h1><p class="muted">Written {esc(written)} by nemo-ada '
        f"report.{live}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def _id(key: str) -> str:
    return key.replace("@", "-at-")


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
    if swatches and len(grid.rows) <= FEW:
        return _turned(grid, caption)
    head = "".join(f'<th scope="col">{_breakable(name)}' for name in grid.columns)
    rows = "".join(
        f'<tr><th scope="row">{swatch(i) if swatches else ""}<span>{_breakable(row[0])}</span>'
        + "".join(f"<td>{esc(cell)}" for cell in row[1:])
        for i, row in enumerate(grid.rows)
    )
    return _scroll(f"<table>{_caption(caption)}<thead><tr>{head}<tbody>{rows}</table>", caption)


def _turned(grid: Grid, caption: str) -> str:
    """Runs as columns: easier to compare, and on a phone, while they are few."""
    head = "".join(f'<th scope="col">{swatch(i)}<span>{_breakable(row[0])}</span>' for i, row in enumerate(grid.rows))
    rows = "".join(
        f'<tr><th scope="row">{esc(name)}' + "".join(f"<td>{esc(row[i])}" for row in grid.rows)
        for i, name in enumerate(grid.columns)
        if i
    )
    return _scroll(
        f'<table class="turned">{_caption(caption)}<thead><tr><td>{head}<tbody>{rows}</table>',
        caption,
    )


def _breakable(text: str) -> str:
    """Names and dotted keys may break after their separators."""
    return re.sub(r"([._/-])", r"\1<wbr>", esc(text))


def _caption(text: str) -> str:
    """As wide as the window, not as a table that is wider."""
    return f"<caption><span>{esc(text)}</span></caption>"


def _scroll(html: str, label: str) -> str:
    """A table wider than the page scrolls by itself, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(label)}">{html}</div>'


def _figure(figure: Figure, names: Sequence[str]) -> str:
    if not figure.panels:
        return f'<p class="muted">{esc(figure.caption)}</p>'
    panels = "".join(f'<div class="cell">{draw(panel, names)}</div>' for panel in figure.panels)
    named = all(isinstance(panel, HeatPanel) for panel in figure.panels)  # each panel says which run it shows
    shown = [] if named else sorted({run for run, _ in figure.table.rows})
    legend = "".join(f"<li>{swatch(run)}<span>{esc(names[run])}</span>" for run in shown)
    listed = f'<ul class="legend" aria-label="Runs">{legend}</ul>' if legend else ""
    rolling = any(isinstance(p, LinePanel) and any(line.trend is not None for line in p.lines) for p in figure.panels)
    bars = any(isinstance(panel, BarPanel) for panel in figure.panels)
    rest = " Colours inside stacked bars stand for parts, not runs." if bars else ""
    if rolling:
        rest += f" Lines are rolling means over {TREND} points; the values themselves are behind them in pale (up to "
        rest += f"{PALE_RUNS} runs) and in the table."
    return (
        f'<figure>{listed}<div class="panels">{panels}</div>'
        f"<figcaption>{esc(figure.caption)}{rest}</figcaption>{_values(figure, names)}</figure>"
    )


def _values(figure: Figure, names: Sequence[str]) -> str:
    table = figure.table
    head = "".join(f'<th scope="col">{esc(name)}' for name in ("run", *table.columns))
    caption = f"Values of: {figure.title}"
    return (
        f"<details><summary>All values as a table ({len(table.rows)} rows)</summary>"
        + _scroll(
            f"<table>{_caption(caption)}<thead><tr>{head}{''.join(_bodies(figure, names))}</table>",
            caption,
        )
        + "</details>"
    )


def _bodies(figure: Figure, names: Sequence[str]) -> Iterator[str]:
    """One <tbody> per run, headed by its name."""
    rows = figure.table.rows
    start = 0
    while start < len(rows):
        run = rows[start][0]
        end = next((i for i in range(start, len(rows)) if rows[i][0] != run), len(rows))
        yield f'<tbody><tr><th scope="rowgroup" rowspan="{end - start}">{_breakable(names[run])}'
        width = len(figure.table.columns)
        yield "<tr>".join(_cells(rows[i][1], width) for i in range(start, end))
        start = end


def _cells(values: Sequence[float | str], width: int) -> str:
    if len(values) == 1 < width:
        return f'<td colspan="{width}">{esc(values[0])}'
    return "".join(f"<td>{esc(value) if isinstance(value, str) else text_of(value)}" for value in values)


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
