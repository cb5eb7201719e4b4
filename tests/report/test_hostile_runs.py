"""Run directories that attack their reader: what they hold stays text, in a real browser."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from made_runs import evaluation_record, make_run, step_record

from nemo_ada.report.page import render
from nemo_ada.report.run import read_usable

PAYLOADS = (
    "<script>window.owned=1</script>",
    '"><img src=http://127.0.0.1:9/a onerror=window.owned=1>',
    "'><svg onload=window.owned=1>",
    "</title></style></svg><script>window.owned=1</script>",
    '" onmouseover="window.owned=1" autofocus onfocus="window.owned=1',
    "--><iframe src=http://127.0.0.1:9/b></iframe><!--",
    "<base href=http://127.0.0.1:9/><link rel=stylesheet href=c>",
    '<meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/d">',
    "url(http://127.0.0.1:9/e);background:url(http://127.0.0.1:9/f)",
    "javascript:window.owned=1",
    "&lt;script&gt;window.owned=1&lt;/script&gt;",
)
ALL = " ".join(PAYLOADS)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Runs that carry every payload in every place, up to three payloads in each run."""
    folder = tmp_path_factory.mktemp("hostile")
    groups = [PAYLOADS[start : start + 3] for start in range(0, len(PAYLOADS), 3)]
    folders = [attacking_run(folder / "runs" / f"{i}{' '.join(group)}".replace("/", "|"), group)
            for i, group in enumerate(groups)]  # fmt: skip
    return folder, read_usable(folders)[0]


@pytest.fixture(scope="module")
def page(hostile):
    return render(hostile[1], written=ALL, left_out=[ALL])


def attacking_run(folder, group):
    """A run that holds the payloads of its group wherever a run can hold text."""
    run, together = make_run(folder, 8, every=4), " ".join(group)
    names = dict.fromkeys(group, ALL)
    config = {"task": {"name": together, **names}, "policy": {"model": together}, **names, "list": [together]}
    secret = {"api_key": "hunter2", "max_tokens": 77}
    environment = dict.fromkeys(("commit", "started", "python", "platform", "nemo_ada"), together) | {
        "command": f"nemo-ada train --hf-token=s3cret a.token=s3cret {ALL} \u202egnp.exe",
        "packages": {payload: payload for payload in group},
    }
    step = {"p50": 1.0, "p95": 2.0, "worst": 3.0, "origin": ALL}
    forecast = {"step": step, "phases": {payload: {"p50": payload} for payload in group}}
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"policy2": secret}))
    (run / "environment.json").write_text(json.dumps(environment))
    (run / "status.json").write_text(json.dumps({"state": together, "max_steps": together}))
    (run / "plan.json").write_text(json.dumps({"forecast": forecast, "caps": {"max_samples": together}}))
    records = [
        step_record(9 + i) | {payload: payload, f"ada/{payload}": 1.0} | ({} if i else {"train/entropy": payload})
        for i, payload in enumerate(group)
    ]
    lines = [json.dumps(record) for record in (*records, *({"step": payload} for payload in group))]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n".join([*lines, *group]) + "\n")
    with (run / "evaluations.jsonl").open("a") as file:
        for payload in group:
            texts = dict.fromkeys(("problem", "reference", "response", "reward"), payload)
            record = evaluation_record(9) | {f"val/pass@{payload}": 0.5, "val/accuracy": payload, "samples": [texts]}
            file.write(json.dumps(record) + "\n")
    return run


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "without its policy"])
def test_nothing_in_a_run_becomes_markup_runs_or_asks(browser, hostile, page, policy):
    folder, _ = hostile
    if not policy:
        page, removed = POLICY.subn("", page)
        assert removed == 1
    path = folder / f"{'with' if policy else 'without'}.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path, width=1280)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true }); return 0")
    browser.run("document.querySelectorAll('svg *, td, th, a').forEach(e => { "
                "e.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})) }); return 0")  # fmt: skip
    assert browser.run("return [typeof window.owned, document.title]") == ["undefined", "nemo-ada: 4 runs"]
    assert browser.log("browser") == []
    assert browser.requests() == {path.resolve().as_uri()}
    unwanted = "script, img, iframe, base, link, object, embed, form, meta[http-equiv=refresh], style ~ style"
    assert browser.run(f"return document.querySelectorAll('{unwanted}').length") == 0
    handlers = "return [...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => /^on/i.test(a.name)"
    assert browser.run(f"{handlers} || /javascript:/i.test(a.value) && a.name == 'href')).length") == 0
    links = browser.run("return [...document.querySelectorAll('[href]')].map(e => e.getAttribute('href'))")
    assert links and all(re.fullmatch(r"#[a-z0-9-]+", link) for link in links)


def test_every_payload_is_shown_as_text_in_every_place(browser, hostile, page):
    """Then the first test has not passed because a place was left out."""
    path = hostile[0] / "shown.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path, width=390)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true }); return 0")
    text = browser.run("return document.body.textContent")
    for payload in PAYLOADS:
        for shown in (
            f"its step is {payload[:40]!r}",  # a damaged line
            f": {payload[:80]}",  # a metric's name
            f"task.{payload}",  # a key
        ):
            assert shown in text or shown.replace("/", "|") in text, shown
        assert text.count(payload) > 12
    assert browser.run("return document.documentElement.scrollWidth") == 390


def test_secrets_are_hidden_and_text_keeps_its_direction(hostile, undrawn):
    page = render(hostile[1], written="now", left_out=[ALL])
    assert "hunter2" not in page and "s3cret" not in page and "\u202e" not in page
    assert page.count("[hidden]") >= 3 * 4
    assert page.count("<td>77") == 4
