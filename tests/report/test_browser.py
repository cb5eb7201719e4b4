"""The page in a real browser, opened from a file: only what a browser alone can show."""

from __future__ import annotations

import json

import pytest
from made_runs import make_run

from nemo_ada.report.figures import all_figures
from nemo_ada.report.page import render
from nemo_ada.report.run import read_usable

WIDE, NARROW = 1280, 390
OVERLAPS = """
const overlaps = [];
for (const svg of document.querySelectorAll('svg.panel')) {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  const frame = svg.getBoundingClientRect();
  texts.forEach(([a, r], i) => {
    if (r.width && (r.left < frame.left - 1 || r.right > frame.right + 1)) overlaps.push(`${a} leaves its panel`);
    for (const [b, s] of texts.slice(i + 1))
      if (r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 3 && s.top < r.bottom - 3)
        overlaps.push(`${a} | ${b}`);
  });
}
return overlaps;
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    capped = {"ada/budget_used_samples": 0.9, "ada/budget_used_tokens": 0.5, "ada/budget_used_seconds": 0.7}
    folders = [
        make_run(folder / "plain", 60),
        make_run(folder / "a name that goes on and on, as names of sweeps with many settings do-lr=0.0001-seed=3", 40),
        make_run(folder / "capped", 60, lift=0.05, **capped, **{"ada/budget_bound": 1.0}),
        make_run(folder / "ten", 10),
        make_run(folder / "long", 700, lift=-0.05),
        make_run(folder / "old", 20, **{"ada/pass_rate_histogram": None}),
    ]
    (folders[0] / "plan.json").write_text(json.dumps({"forecast": {"step": {"p50": 2.5, "p95": 3.0, "worst": 9.0}}}))
    return read_usable(folders)[0]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(runs, written="now"), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_without_messages_or_requests_and_its_policy_refuses_requests(browser, page, scheme):
    browser.open(page, width=WIDE, scheme=scheme)
    assert browser.log("browser") == []
    assert browser.requests() == {page.resolve().as_uri()}
    assert browser.run("return document.scripts.length") == 0
    browser.run("const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); return 0")
    assert any("Content Security Policy" in entry["message"] for entry in browser.log("browser"))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_figure_is_visible_readable_and_within_the_window(browser, page, runs, width):
    browser.open(page, width=width)
    figures = browser.run("""
      return [...document.querySelectorAll('section figure')].map(f => [f.closest('section').id,
        [...f.querySelectorAll('svg.panel')].map(p => p.getBoundingClientRect()).map(r => [r.left, r.right, r.height])])
    """)
    assert [(key, len(panels)) for key, panels in figures] == [(f.key, len(f.panels)) for f in all_figures(runs)]
    for _, panels in figures:
        assert all(left >= 0 and right <= width and height > 80 for left, right, height in panels)
    assert browser.run("return document.documentElement.scrollWidth") == width
    sizes = browser.run("""
      return [...document.querySelectorAll('svg.panel text, td, th, p, figcaption')].map(t => {
        const scale = t.ownerSVGElement ? t.ownerSVGElement.getBoundingClientRect().width / 360 : 1;
        return parseFloat(getComputedStyle(t).fontSize) * scale })
    """)
    assert min(sizes) > 10
    assert browser.run(OVERLAPS) == []


def test_each_figure_has_a_spoken_name_and_a_table_that_opens_with_the_keyboard(browser, page):
    browser.open(page, width=WIDE)
    spoken, opened = browser.run("""
      return [[...document.querySelectorAll('svg.panel')].map(p => {
          const title = [...p.querySelectorAll('text')].pop().textContent;
          return p.getAttribute('role') == 'img' && p.getAttribute('aria-label').startsWith(title.slice(0, 9)) }),
        [...document.querySelectorAll('figure')].map(f => {
          const s = f.querySelector('details summary'); s.focus();
          const focused = document.activeElement === s; s.click();
          return focused && f.querySelector('table').getBoundingClientRect().height > 50
            && f.querySelector('.scroll').tabIndex === 0 })]
    """)
    assert all(spoken) and all(opened) and len(opened) > 9


def test_lines_have_the_colours_of_the_legend_also_in_the_dark(browser, page):
    colours = {}
    for scheme in ("light", "dark"):
        browser.open(page, width=WIDE, scheme=scheme)
        colours[scheme], legend, text, paper = browser.run("""
          const f = document.querySelector('#pools figure'), css = (e, name) => getComputedStyle(e)[name];
          const strokes = root => [...new Set([...root.querySelectorAll('path')].map(p => css(p, 'stroke')))];
          return [strokes(f.querySelector('svg.panel')), strokes(document.querySelector('.defs')),
                  css(f.querySelector('svg.panel text'), 'fill'), css(document.body, 'backgroundColor')]
        """)
        assert len(set(legend) & set(colours[scheme])) >= 5 and text != paper
    assert set(colours["light"]) != set(colours["dark"])


def test_print_shows_every_figure_on_white(browser, page):
    browser.open(page, width=1000, media="print", scheme="dark")
    heights = browser.run(
        "return [...document.querySelectorAll('svg.panel')].map(p => p.getBoundingClientRect().height)"
    )
    assert min(heights) > 60
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.devtools("Page.printToPDF", {})["data"]) > 20000


def test_a_watched_page_reloads_only_while_no_table_is_open(browser, runs, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render(runs[:1], written="now", reload_seconds=5), encoding="utf-8")
    hook = "window.setInterval = look => { window.look = look }"  # the test decides when the interval is over
    hooked = browser.devtools("Page.addScriptToEvaluateOnNewDocument", {"source": hook})
    try:
        browser.open(page, width=WIDE)
        assert browser.log("browser") == []
        browser.run("window.first = true; document.querySelector('details').open = true; look(); return 0")
        assert browser.run("return window.first") is True
        browser.run("document.querySelector('details').open = false; look(); return 0")
        assert browser.settles(lambda: browser.run("return window.first === undefined"))
    finally:
        browser.devtools("Page.removeScriptToEvaluateOnNewDocument", hooked)
