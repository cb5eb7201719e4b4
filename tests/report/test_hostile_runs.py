"""Run directories that attack their reader: what they hold stays text, in a real browser.

1. Markup in every place that a run fills (names, settings, commit, command, packages, metrics, plan, damaged lines)
   makes no element, runs nothing and asks for nothing.
2. The same page without its own policy (which would refuse all that) is as harmless: the escaping holds alone.
3. Secrets are hidden, and text cannot change its direction.
"""

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
    """A report over runs that carry every payload in every place."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = []
    for i, payload in enumerate(PAYLOADS):
        run = make_run(folder / "runs" / f"{i}{payload}".replace("/", "|")[:200], 12, every=4)
        config = {
            "task": {"name": payload, payload: ALL},
            "policy": {"model": payload},
            payload: [ALL],
            "list": [payload],
        }
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"policy2": {"api_key": "hunter2", "max_tokens": 77}}))
        (run / "environment.json").write_text(
            json.dumps(
                {
                    "commit": payload,
                    "command": f"nemo-ada train --hf-token=s3cret a.token=s3cret {ALL} \u202egnp.exe",
                    "started": payload,
                    "python": payload,
                    "platform": payload,
                    "nemo_ada": payload,
                    "packages": {payload: payload},
                }
            )
        )
        (run / "status.json").write_text(json.dumps({"state": payload, "max_steps": payload}))
        forecast = {
            "step": {"p50": 1.0, "p95": 2.0, "worst": 3.0, "source": ALL},
            "phases": {payload: {"p50": payload}},
        }
        (run / "plan.json").write_text(json.dumps({"forecast": forecast, "caps": {"max_samples": payload}}))
        with (run / "metrics.jsonl").open("a") as file:
            file.write(
                json.dumps(step_record(13) | {payload: payload, f"ada/{payload}": 1.0, "train/entropy": payload}) + "\n"
            )
            file.write(json.dumps({"step": payload}) + "\n" + payload + "\n")
        with (run / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(evaluation_record(13) | {f"val/pass@{payload}": 0.5, "val/accuracy": payload}) + "\n")
        runs.append(run)
    page = render(read_usable(runs)[0], written=ALL, left_out=[ALL])
    return folder, page


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "without its policy"])
def test_nothing_in_a_run_becomes_markup_runs_or_asks(browser, hostile, policy):
    folder, page = hostile
    if not policy:
        page, removed = POLICY.subn("", page)
        assert removed == 1
    path = folder / f"{'with' if policy else 'without'}.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path, width=1280)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true }); return 0")
    browser.run("document.querySelectorAll('svg *, td, th, a').forEach(e => { "
                "e.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})) }); return 0")  # fmt: skip
    assert browser.run("return [typeof window.owned, document.title]") == [
        "undefined",
        f"nemo-ada: {len(PAYLOADS)} runs",
    ]
    assert browser.log("browser") == []
    assert browser.requests() == {path.resolve().as_uri()}
    unwanted = "script, img, iframe, base, link, object, embed, form, meta[http-equiv=refresh], style ~ style"
    assert browser.run(f"return document.querySelectorAll('{unwanted}').length") == 0
    handlers = "return [...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => /^on/i.test(a.name)"
    assert browser.run(f"{handlers} || /javascript:/i.test(a.value) && a.name == 'href')).length") == 0
    links = browser.run("return [...document.querySelectorAll('[href]')].map(e => e.getAttribute('href'))")
    assert links and all(re.fullmatch(r"#[a-z0-9-]+", link) for link in links)


def test_every_payload_is_shown_as_text_in_every_place(browser, hostile):
    """Then the first test has not passed because a place was left out."""
    folder, page = hostile
    path = folder / "shown.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path, width=390)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true }); return 0")
    text = browser.run("return document.body.textContent")
    for payload in PAYLOADS:
        for shown in (
            f"its step is {payload[:40]!r}",  # a damaged line
            f"line 13: {payload[:80]}",  # a metric's name
            f"task.{payload}",  # a key
        ):
            assert shown in text or shown.replace("/", "|") in text, shown
        assert text.count(payload) > 12
    assert browser.run("return document.documentElement.scrollWidth") == 390


def test_secrets_are_hidden_and_text_keeps_its_direction(hostile):
    _, page = hostile
    assert "hunter2" not in page and "s3cret" not in page and "\u202e" not in page
    assert page.count("[hidden]") >= 3 * len(PAYLOADS)
    assert page.count("<td>77") == len(PAYLOADS)
