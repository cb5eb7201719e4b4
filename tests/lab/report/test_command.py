"""The command: page, PNG files, summary, bad arguments."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from made_runs import make_run
from PIL import Image
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.errors import UserError
from nemo_ada.lab.report import command, summary
from nemo_ada.lab.report.draw import draw_figure, write_pngs
from nemo_ada.lab.report.figures import make_figures
from nemo_ada.lab.report.page import render_page
from nemo_ada.lab.report.run import read_usable

pytestmark = pytest.mark.long

FOLDERS = ["a$b_{c}$", "[red]b", "..x/run", "y/run", r"..\..\z", "%2e%2e%2fz", "~", "6", "7"]
METRICS = ["step", "ada/samples_drawn", "ada/prompts_drawn", "ada/zero_signal_groups", "total/responses"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the command did with nine runs of few metrics: output, runs, page, and the folder of the page."""
    folder = tmp_path_factory.mktemp("report")
    runs = [make_run(folder / "runs" / name, 6, every=3) for name in FOLDERS[1:]]
    runs.insert(0, make_run(folder / "runs" / FOLDERS[0], 30))
    with (runs[0] / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 31, "val/pass@4/../../out": 0.5, "val/../out": 0.5}\n')
    for path in (folder / "runs").rglob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        few = [{key: record[key] for key in record if key.startswith("val/") or key in METRICS} for record in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in few))
    out = folder / "made" / "r.html"
    done = CliRunner().invoke(app, ["report", *map(str, runs), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done.output, read_usable(runs)[0], out.read_text(encoding="utf-8"), out.parent


def test_the_command_writes_page_figures_and_summary(report):
    output, runs, page, folder = report
    assert "[red]b" in output and "0.411" in output
    figures = [figure for figure in make_figures(runs) if figure.lines]
    assert [figure.key for figure in figures] == ["accuracy-responses", "zero-signal", "responses"]
    assert len(re.findall(r'<img src="data:image/svg', page)) == len(figures)
    svg = draw_figure(replace(figures[0], title="/a$b_{c}$"), [run.name for run in runs], "svg")
    assert b"/a$b_{c}$</text>" in svg, "a name is no formula"
    assert all(run.name.encode() in svg for run in runs), "the legend names every line"
    pictures = sorted(folder.glob("r_figures/*.png"))
    assert [path.stem for path in pictures] == sorted(figure.key for figure in figures)
    for path in pictures:
        with Image.open(path) as picture:
            assert min(picture.size) > 300 and len(picture.getcolors(10**6)) > 10
            title = picture.crop((0, 0, picture.width, 60))
            assert len(title.getcolors(10**6)) > 2


def test_names_of_runs_and_metrics_cannot_leave_the_folder_of_the_figures(report):
    _, runs, _, folder = report
    assert {"..x/run", "y/run"} < {run.name for run in runs}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["made", "runs"]
    assert sorted(path.name for path in folder.iterdir()) == ["r.html", "r_figures"]
    assert all(re.fullmatch(r"[a-z0-9-]+\.png", path.name) for path in (folder / "r_figures").iterdir())


def test_the_page_asks_for_nothing(report):
    page = report[2]
    assert not re.search(r"<script|<link|<iframe|https?://|url\(|@import", page)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in re.findall(r'src="([^"]+)"', page))
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert 'name="viewport" content="width=device-width' in page


def test_a_hostile_run_stays_text_and_its_secrets_are_hidden(tmp_path, undrawn):
    attack = "<script>alert(1)</script>\" onload='x'"
    secret = {"api_key": "hunter2", "note": "train --hf-token=s3cret \u202egnp"}
    folder = make_run(tmp_path / attack.replace("/", "|"), 3, config={attack: attack, **secret})
    runs = read_usable([folder, make_run(tmp_path / "other", 3, config={"api_key": "x", "note": "y"})])[0]
    page = render_page(runs, make_figures(runs), written=attack, left_out=[attack])
    assert "<script" not in page and "onload='x'" not in page
    assert page.count("&lt;script&gt;") > 5
    assert "hunter2" not in page and "s3cret" not in page and "\u202e" not in page and "[hidden]" in page


def test_figures_of_a_run_without_evaluations_and_times(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    record = '{"step": %d, "ada/zero_signal_groups": 0.5}\n'
    (folder / "metrics.jsonl").write_text("".join(record % step for step in (1, 2)))
    runs = read_usable([folder])[0]
    figures = make_figures(runs)
    assert [path.stem for path in write_pngs(figures, ["a"], tmp_path / "png")] == ["zero-signal"]
    assert "Not recorded by these runs: held-out accuracy" in render_page(runs, figures, written="now")
    assert summary.compare_at_equal_cost(runs * 2) is None


def test_a_page_that_cannot_be_written_is_an_error_of_the_user(tmp_path, undrawn):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        command.make_report([make_run(tmp_path / "a", 3)], tmp_path / "file" / "r.html")
