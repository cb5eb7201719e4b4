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
from nemo_ada.lab.report.draw import panel_svg, write_pngs
from nemo_ada.lab.report.figures import all_figures
from nemo_ada.lab.report.page import render
from nemo_ada.lab.report.run import read_usable

pytestmark = pytest.mark.long

FOLDERS = ["a$b_{c}$", "[red]b", "..x/run", "y/run", r"..\..\z", "%2e%2e%2fz", "~", "6", "7"]
METRICS = ["step", "ada/pass_rate", "ada/pass_rate_histogram", "ada/pool_size_mean", "ada/samples_drawn",
           "ada/prompts_drawn", "ada/weight_mean", "train/lr", "time/update", "total/responses"]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the command did with nine runs of few metrics: output, runs, page, and the folder of the page."""
    folder = tmp_path_factory.mktemp("report")
    plain = {"ada/pass_rate_histogram": None}
    runs = [make_run(folder / "runs" / name, 6, every=3, **plain) for name in FOLDERS[1:]]
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
    assert len(re.findall(r'<img src="data:image/svg', page)) == sum(len(figure.panels) for figure in all_figures(runs))
    curves = next(figure for figure in all_figures(runs) if figure.key == "pass-rate").panels[0]
    drawn = panel_svg(replace(curves, title="/a$b_{c}$"))
    assert b"/a$b_{c}$</text>" in drawn, "a name is no formula"
    pictures = list(folder.glob("r_figures/*.png"))
    assert len(pictures) == page.count("<figure>") == sum(bool(figure.panels) for figure in all_figures(runs))
    for path in pictures:
        with Image.open(path) as picture:
            assert min(picture.size) > 300 and len(picture.getcolors(10**6)) > 10
            title = picture.crop((0, 0, picture.width, 30))
            assert len(title.getcolors(10**6)) > 2


def test_names_of_runs_and_metrics_cannot_leave_the_folder_of_the_figures(report):
    _, runs, _, folder = report
    assert {"..x/run", "y/run"} < {run.name for run in runs}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["made", "runs"]
    assert sorted(path.name for path in folder.iterdir()) == ["r.html", "r_figures"]
    assert all(re.fullmatch(r"[a-z0-9-]+\.png", path.name) for path in (folder / "r_figures").iterdir())


def test_the_page_asks_for_nothing_and_every_link_has_its_target(report):
    page = report[2]
    ids = re.findall(r'\sid="([^"]+)"', page)
    links = re.findall(r'href="#([^"]+)"', page)
    assert len(set(ids)) == len(ids) and links and set(links) <= set(ids)
    assert not re.search(r"<script|<link|<iframe|https?://|url\(|@import", page)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in re.findall(r'src="([^"]+)"', page))
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert 'name="viewport" content="width=device-width' in page


def test_a_hostile_run_stays_text_and_its_secrets_are_hidden(tmp_path):
    attack = "<script>alert(1)</script>\" onload='x'"
    folder = make_run(tmp_path / attack.replace("/", "|"), 3, config={attack: attack, "api_key": "hunter2"})
    environment = {"command": f"train --hf-token=s3cret {attack} \u202egnp", "packages": {attack: attack}}
    (folder / "environment.json").write_text(json.dumps(environment))
    page = render(read_usable([folder])[0], written=attack, left_out=[attack])
    assert "<script" not in page and "onload='x'" not in page
    assert page.count("&lt;script&gt;") > 10
    assert "hunter2" not in page and "s3cret" not in page and "\u202e" not in page and "[hidden]" in page


def evaluation(folder, correct, benchmark="sums"):
    """A finished evaluation of 40 problems, four responses each."""
    problems = [
        {"id": str(i), "responses": 4, "correct": c, "failed": 0, "timed_out": 0, "tokens": 40, "finished": 4}
        for i, c in enumerate(correct)
    ]
    (folder / benchmark).mkdir(parents=True)
    (folder / benchmark / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    content = {
        "settings": {"k": 4, "model": {"name": folder.name, "fingerprint": folder.name}, "seed": 0},
        "benchmarks": {benchmark: {"rejected_problems": 0}},
    }
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_evaluations_are_compared_on_a_page_of_their_own_or_beside_runs(tmp_path):
    base = evaluation(tmp_path / "base", [1] * 20 + [2] * 20)
    trained = evaluation(tmp_path / "trained", [3] * 20 + [4] * 20)
    other = evaluation(tmp_path / "other", [0] * 10, benchmark="words")
    out = tmp_path / "out" / "r.html"
    done = CliRunner().invoke(app, ["report", *map(str, (base, trained, other)), "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = out.read_text(encoding="utf-8")
    assert "0.375 [" in page and "+0.500 [" in page and "other, words: 10 problems are few" in page
    assert "base and other have no benchmark in common" in page
    assert not (tmp_path / "out" / "r_figures").exists(), "evaluations are tables"
    both = CliRunner().invoke(app, ["report", str(base), str(make_run(tmp_path / "run", 3)), "--out", str(out)])
    assert both.exit_code == 0, both.output
    assert 'id="evaluations"' in (page := out.read_text(encoding="utf-8")) and 'id="sampling"' in page


def test_figures_of_a_run_without_evaluations_and_times(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "ada/pass_rate": 0.5}\n{"step": 2, "ada/pass_rate": 0.5}\n')
    runs = read_usable([folder])[0]
    figures = all_figures(runs)
    written = write_pngs(figures, ["a"], tmp_path / "png")
    assert [path.stem for path in written] == ["pass-rate"]
    assert render(runs, written="now").count("Not recorded by these runs.") == len(figures) - 1
    assert summary.equal_cost(runs * 2) is None


def test_bad_arguments_are_errors_of_the_user(tmp_path, undrawn):
    with pytest.raises(UserError, match="is no folder"):
        command.make_report([tmp_path / "x"], tmp_path / "r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        command.make_report([make_run(tmp_path / "a", 3)], tmp_path / "file" / "r.html")
