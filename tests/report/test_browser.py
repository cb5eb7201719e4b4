"""The page in a real browser, opened from a file.

1. No console message, no request but the page itself; and the policy in the page would refuse one.
2. Every figure is visible, inside the window, with no two labels of a panel on top of each other, wide and narrow.
3. Every figure has a table that opens with the keyboard and holds the values that it draws.
4. Printing hides nothing but navigation.
"""

from __future__ import annotations

import json

import pytest
from made_runs import make_run

from nemo_ada.report.page import render
from nemo_ada.report.run import read_runs

WIDE, NARROW = 1280, 390
FIGURES = [
    "heldout-accuracy",
    "heldout-pass-at-4",
    "pass-rate",
    "pass-rates",
    "frontier",
    "sampling",
    "pools",
    "budget",
    "time",
    "weights",
    "optimiser",
]
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll('svg.panel')) {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  const frame = svg.getBoundingClientRect();
  texts.forEach(([a, r], i) => {
    if (r.width && (r.left < frame.left - 1 || r.right > frame.right + 1)) found.push(`${a} leaves its panel`);
    for (const [b, s] of texts.slice(i + 1))
      if (r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 3 && s.top < r.bottom - 3)
        found.push(`${a} | ${b}`);
  });
}
return found;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    capped = {"ada/budget_used_samples": 0.9, "ada/budget_used_tokens": 0.5, "ada/budget_used_seconds": 0.7}
    names = [
        make_run(folder / "plain", 60),
        make_run(folder / "a name that goes on and on, as names of sweeps with many settings do-lr=0.0001-seed=3", 40),
        make_run(folder / "capped", 60, lift=0.05, **capped, **{"ada/budget_bound": 1.0}),
        make_run(folder / "ten", 10),
        make_run(folder / "long", 700, lift=-0.05),
        make_run(folder / "old", 20, **{"ada/pass_rate_histogram": None}),
    ]
    (names[0] / "plan.json").write_text(json.dumps({"forecast": {"step": {"p50": 2.5, "p95": 3.0, "worst": 9.0}}}))
    path = folder / "report.html"
    path.write_text(render(read_runs(names), written="now"), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_opens_without_messages_and_without_requests(browser, page, width, scheme):
    browser.open(page, width=width, scheme=scheme)
    assert browser.log("browser") == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("return document.scripts.length") == 0


def test_the_policy_of_the_page_refuses_requests(browser, page):
    browser.open(page, width=WIDE)
    browser.run("const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); return 0")
    assert any("Content Security Policy" in entry["message"] for entry in browser.log("browser"))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_figure_is_visible_and_within_the_window(browser, page, width):
    browser.open(page, width=width)
    found = browser.run("""
      return [...document.querySelectorAll('section figure')].map(f => [f.closest('section').id,
        [...f.querySelectorAll('svg.panel')].map(p => p.getBoundingClientRect()).map(r => [r.left, r.right, r.height])])
    """)
    assert [key for key, _ in found] == FIGURES
    for _, panels in found:
        assert len(panels) >= 3
        assert all(left >= 0 and right <= width and height > 80 for left, right, height in panels)
    assert browser.run("return document.documentElement.scrollWidth") == width
    columns = browser.run("return getComputedStyle(document.querySelector('.panels')).gridTemplateColumns").split()
    assert len(columns) == (3 if width == WIDE else 1)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_label_lies_on_another_one(browser, page, width):
    browser.open(page, width=width)
    assert browser.run(OVERLAPS) == []


def test_text_can_be_read_on_a_phone(browser, page):
    browser.open(page, width=NARROW)
    sizes = browser.run("""
      return [...document.querySelectorAll('svg.panel text, td, th, p, figcaption')].map(t => {
        const scale = t.ownerSVGElement ? t.ownerSVGElement.getBoundingClientRect().width / 360 : 1;
        return parseFloat(getComputedStyle(t).fontSize) * scale })
    """)
    assert min(sizes) > 10


def test_each_table_opens_with_the_keyboard_and_holds_the_drawn_values(browser, page):
    browser.open(page, width=WIDE)
    assert browser.run("return document.querySelectorAll('figure').length") == len(FIGURES)
    opened = browser.run("""
      return [...document.querySelectorAll('figure details')].map(d => {
        const s = d.querySelector('summary'); s.focus();
        const focused = document.activeElement === s; s.click();
        return [focused, d.open, d.querySelector('table').getBoundingClientRect().height > 50,
                d.querySelector('.scroll').tabIndex] })
    """)
    assert opened == [[True, True, True, 0]] * len(FIGURES)
    tips, cells = browser.run("""
      const f = document.querySelector('#pass-rate figure');
      return [[...f.querySelector('svg.panel').querySelectorAll('title')].map(t => t.textContent),
              [...f.querySelectorAll('td')].map(t => t.textContent)]
    """)
    assert len(tips) > 50
    for tip in tips:
        label, value = tip.split("\n")[1].split(" (")[0].split(": ")
        assert value in cells and label.removeprefix("step ") in cells


def test_a_heat_map_per_run_that_recorded_one_shows_its_shares(browser, page):
    browser.open(page, width=WIDE)
    titles, cells, columns, tip, shades = browser.run("""
      const f = document.querySelector('#pass-rates figure'), p = f.querySelector('svg.panel');
      p.scrollIntoView({block: 'center'});
      const c = p.querySelectorAll('.column rect')[2], r = c.getBoundingClientRect();
      const e = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);
      const row = [...f.querySelectorAll('tbody tr')].find(t => t.textContent.startsWith('5-6'));
      return [[...f.querySelectorAll('svg.panel .title')].map(t => t.textContent),
              [...row.cells].map(t => t.textContent),
              [...p.querySelectorAll('.column rect')].length, e.querySelector('title').textContent,
              new Set([...p.querySelectorAll('path[class^=h]')].map(h => getComputedStyle(h).fillOpacity)).size]
    """)
    assert len(titles) == 5 and "old" not in titles and columns == 30
    assert tip.startswith("step 5-6: 128 prompts\n1: ") and shades > 3
    shown = [line.split(": ")[1] for line in tip.split("\n")[:0:-1]]
    assert [f"{float(cell.rstrip('%')):.0f}%" for cell in cells[2:]] == shown


def test_the_plan_is_there_where_a_run_has_one(browser, page):
    browser.open(page, width=NARROW)
    assert "2.5 / 3 / 9" in browser.run("return document.querySelector('section#plan table').textContent")


def test_tooltips_are_under_the_pointer(browser, page):
    browser.open(page, width=WIDE)
    hit = browser.run("""
      const p = document.querySelector('#heldout-accuracy svg.panel'); p.scrollIntoView({block: 'center'});
      const c = p.querySelector('.hit circle'), r = c.getBoundingClientRect();
      const e = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);
      return e.querySelector('title').textContent
    """)
    assert "after step 0: 0." in hit


def test_print_shows_every_figure(browser, page):
    browser.open(page, width=1000, media="print", scheme="dark")
    heights = browser.run(
        "return [...document.querySelectorAll('svg.panel')].map(p => p.getBoundingClientRect().height)"
    )
    assert min(heights) > 60
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = browser.devtools("Page.printToPDF", {})
    assert len(pdf["data"]) > 20000


def test_a_watched_page_reloads_only_while_no_table_is_open(browser, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render(read_runs([make_run(tmp_path / "a")]), written="now", reload_seconds=1), encoding="utf-8")
    browser.open(page, width=WIDE)
    assert browser.log("browser") == []
    browser.run("window.first = true; document.querySelector('details').open = true; return 0")
    script = "return new Promise(done => setTimeout(() => done(window.first === true), 1500))"
    assert browser.run(script) is True
    browser.run("document.querySelector('details').open = false; return 0")
    assert browser.settles(lambda: browser.run("return window.first === undefined"), 10)
