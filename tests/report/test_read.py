"""What the report makes of run directories: damaged, incomplete, hostile, long, and of their numbers.

1. A run without a usable step is a user error that names the path; every other damage is counted and shown.
2. Numbers of the tables agree with the records.
3. Ten runs of 1000 steps: under 10 s and 5 MB.
"""

from __future__ import annotations

import json
import os
import re
import time

import numpy as np
import pytest
from made_runs import make_run, step_record
from PIL import Image
from typer.testing import CliRunner

from nemo_ada.cli import report as command
from nemo_ada.cli.main import app
from nemo_ada.errors import UserError
from nemo_ada.report import summary
from nemo_ada.report.figures import all_figures
from nemo_ada.report.page import render
from nemo_ada.report.plan import predictions
from nemo_ada.report.png import write_figures
from nemo_ada.report.run import Run, clean, read_runs
from nemo_ada.report.series import TREND, Blocks, trend
from nemo_ada.report.spec import span, text_of, tick_text, ticks


def figure(runs, key):
    return next(found for found in all_figures(runs) if found.key == key)


@pytest.mark.parametrize("content", [None, "", "\n\n", "not json\n", '{"step": "one"}\n', '[1]\n{"a": 1}\n'])
def test_a_run_without_a_step_is_an_error_with_its_path(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "metrics.jsonl"))):
        Run.read(tmp_path)


def test_a_folder_of_runs_is_an_error_that_names_one(tmp_path):
    make_run(tmp_path / "inside", 3)
    with pytest.raises(UserError, match=f"such as {re.escape(str(tmp_path / 'inside'))}"):
        Run.read(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        Run.read(tmp_path / "absent")


def test_damaged_lines_are_counted_and_named_and_the_rest_is_used(tmp_path):
    folder = make_run(tmp_path / "a", 5)
    good = (folder / "metrics.jsonl").read_bytes().splitlines()
    bad = [b'{"step": 3, "ada', b"\xff\xfe", b"null", b"[" * 100_000, b'{"step": 1e999}']
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*good[:2], *bad, *good[2:], good[0], b'{"step": 6, "cut of']))
    run = Run.read(folder)
    assert [record["step"] for record in run.steps] == [1, 2, 3, 4, 5]
    assert run.notes == (
        "metrics.jsonl: the last line (12) is cut off and left out (not JSON (Unterminated string starting at column "
        "13))",
        "metrics.jsonl: 5 damaged lines left out (line 3: not JSON (Unterminated string starting at column 13); "
        "line 4: not UTF-8; line 5: a JSON NoneType, not an object; line 6: nested too deeply; line 7: its step is "
        "'inf')",
        "metrics.jsonl: 1 step recorded twice, the later record is used (line 11: step 1)",
    )
    assert "5 damaged lines" in render([run], written="now")


def test_values_too_small_for_an_axis_are_zero(tmp_path):
    folder = make_run(tmp_path / "a", 4, **{"total/live_rows": 5e-324, "ada/weight_max": -1e-310})
    run = Run.read(folder)
    assert not run.column("total/live_rows").any() and not run.column("ada/weight_max").any()
    render([run], written="now")


def test_a_last_line_that_a_running_run_is_writing_is_no_damage(tmp_path):
    folder = make_run(tmp_path / "a", 5)
    (folder / "status.json").write_text('{"state": "running"}')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ada/pa')
    assert Run.read(folder).notes == ()


def test_gaps_and_missing_metrics_are_named_by_line(tmp_path):
    folder = make_run(tmp_path / "a", 4)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[1]["train/entropy"] = None
    records[2]["ada/failed/verifier_timeout"] = 1.0  # only in steps that had one
    del records[3]["ada/pass_rate"], records[3]["time/step"]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    assert Run.read(folder).notes == (
        "metrics.jsonl: 1 value not a finite number, shown as a gap (line 2: train/entropy)",
        "metrics.jsonl: 1 line without metrics that others have (line 4: ada/pass_rate and 1 more)",
    )


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"many"', "null", "[1]", "true", "1" + "0" * 400])
def test_values_that_are_no_numbers_are_gaps(tmp_path, value):
    folder = make_run(tmp_path / "a", 30)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[4] = re.sub(r'"ada/pass_rate": [\d.]+', f'"ada/pass_rate": {value}', lines[4])
    lines[5] = re.sub(r'"total/tokens": \d+', f'"total/tokens": {value}', lines[5])
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = Run.read(folder)
    assert np.flatnonzero(np.isnan(run.column("ada/pass_rate"))).tolist() == [4]
    page = render([run], written="now")
    assert re.search(r"\b(nan|inf)\b", page, re.IGNORECASE) is None


def test_missing_and_damaged_side_files_are_notes(tmp_path):
    folder = make_run(tmp_path / "a", 3)
    for name in ("environment.json", "evaluations.jsonl"):
        (folder / name).unlink()
    (folder / "config.yaml").write_text("a: [1")
    (folder / "status.json").write_text("[]")
    run = Run.read(folder)
    text = " ".join(run.notes)
    assert "environment.json is missing" in text and "evaluations.jsonl is missing" in text
    assert "config.yaml cannot be read" in text and "status.json holds no mapping" in text
    render([run], written="now")
    summary.overview([run])


@pytest.mark.parametrize(
    "config",
    ["a: &a {b: *a}", "a: &a [*a, *a]", "\n".join(f"k{i}: {i}" for i in range(5000)), "1: 2\n? [1, 2]\n: 3", "'': ''"],
)
def test_a_configuration_that_refers_to_itself_or_is_huge_is_bounded(tmp_path, config):
    folder = make_run(tmp_path / "a", 3)
    (folder / "config.yaml").write_text(config)
    assert len(render([Run.read(folder)], written="now")) < 2_000_000


def test_a_billion_laughs_is_bounded(tmp_path):
    folder = make_run(tmp_path / "a", 3)
    lines = ["a0: &a0 {x: 1}"] + [
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}" for i in range(1, 12)
    ]
    (folder / "config.yaml").write_text("\n".join(lines))
    run = Run.read(folder)
    assert len(run.config) == 3000 and any("first 3000" in note for note in run.notes)


def test_names_tell_runs_apart(tmp_path):
    names = [make_run(tmp_path / a / b, 3) for a, b in (("x", "run"), ("y", "run"), ("y", "other"))]
    assert [run.name for run in read_runs(names)] == ["x/run", "y/run", "y/other"]
    with pytest.raises(UserError, match="named twice"):
        read_runs([names[0], names[0]])


def test_a_name_that_is_no_text_is_shown(tmp_path):
    folder = make_run(tmp_path / os.fsdecode(b"bad\xff\x1b[31mname"), 3)
    page = render([Run.read(folder)], written="now")
    page.encode("utf-8")
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("train x.yaml logger.wandb.api_key=abc123 a=1", "abc123"),
        ("train --hf-token abc123", "abc123"),
        ("train hf_token=abc123", "abc123"),
        ("https://user:abc123@host/x", "abc123"),
        ("x hf_abcdefghijklmnopqrst y", "abcdefghijklmnopqrst"),
    ],
)
def test_secrets_are_hidden(text, hidden):
    assert hidden not in clean(text)


@pytest.mark.parametrize("text", ["max_tokens=100 expected_tokens=5", "my token bucket run", "policy.max_tokens: 7"])
def test_token_counts_are_no_secrets(text):
    assert clean(text) == text


def test_shares_are_of_the_prompts_that_were_drawn_for(tmp_path):
    run = Run.read(make_run(tmp_path / "a", 3))
    table = figure([run], "sampling").table
    assert table.columns[1:] == (
        "responses drawn per prompt",
        "resolved in the first wave (share)",
        "unresolved: lacks correct (share)",
        "unresolved: lacks incorrect (share)",
        "groups without signal (share)",
        "... if the first n were the group",
    )
    assert [row for _, row in table.rows] == [
        (str(step), 20.0, 32 / 64, 12 / 64, 4 / 64, 0.25, 0.5) for step in (1, 2, 3)
    ]


def test_rows_with_a_gradient_are_a_share_of_the_kept_rows_also_when_the_first_steps_are_gone(tmp_path):
    folder = make_run(tmp_path / "a", 6)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[2:]) + "\n")
    column = [row[3] for _, row in figure([Run.read(folder)], "weights").table.rows]
    assert np.isnan(column[0]) and column[1:] == [0.75, 0.75, 0.75]


def test_percentiles_of_phases_and_the_plan(tmp_path):
    folder = make_run(tmp_path / "a", 60)
    phases = {"sampling": {"p50": 2.0, "p95": 3.0}, "update": "?"}
    (folder / "plan.json").write_text(json.dumps({"forecast": {"phases": phases, "step": {"p50": 2.5, "p95": 3.5}}}))
    run = Run.read(folder)
    sampling = np.array([step_record(step)["time/sampling"] for step in range(1, 61)])
    rows = {row[0]: row[1:] for _, row in figure([run], "time").table.rows}
    expected = (60, sampling.mean(), *np.percentile(sampling, (50, 95)), sampling.max(), 2.0, 3.0)
    assert rows["sampling"] == pytest.approx(expected)
    assert rows["step"][-2:] == (2.5, 3.5)
    assert rows["evaluation"][0] == 7 and np.isnan(rows["update"][-1])
    assert "planned 2 to 3 s" in render([run], written="now")


def test_the_plan_is_compared_with_what_came(tmp_path):
    folder, bare = make_run(tmp_path / "a", 60), make_run(tmp_path / "b", 3)
    seconds = {"p50": 2.5, "p95": 2.7, "worst": 2.9, "source": "measured here"}
    phases = {"sampling": seconds, "training": {"p50": 0.25, "p95": 0.35, "worst": 1.0}}
    nothing = {"p50": 0.0, "p95": 0.0, "worst": 0.0, "source": "not measured"}
    plan = {"forecast": {"phases": phases, "step": seconds, "evaluation": nothing}, "caps": {"max_samples": 512}}
    (folder / "plan.json").write_text(json.dumps(plan | {"rates": "assumed"}))
    runs = read_runs([folder, bare])
    times = np.array([step_record(step)["time/step"] for step in range(1, 61)])
    grid = predictions(runs)
    assert grid is not None and [row[0] for row in grid.rows] == ["a"]
    seen = [text_of(float(value)) for value in (*np.percentile(times, (50, 95)), times.max())]
    assert grid.rows[0][1:3] == ("2.5 / 2.7 / 2.9", " / ".join(seen))
    assert grid.rows[0][4:] == (
        f"{(times > 2.7).mean():.1%}", f"{(times > 2.9).mean():.1%}", "max_samples 512", "measured here"
    )  # fmt: skip
    planned = {row[0]: row[-2:] for i, row in figure(runs, "time").table.rows if i == 0}
    assert planned["update"] == (0.25, 0.35) and np.isnan(planned["evaluation"]).all()
    assert 'id="plan"' in render(runs, written="now") and 'id="plan"' not in render(runs[1:], written="now")
    assert predictions(runs[1:]) is None
    (folder / "plan.json").write_text(json.dumps(plan | {"own_run": True}))
    assert "no prediction" in predictions(read_runs([folder])).rows[0][-1]


def test_pass_rates_are_shares_of_the_counted_prompts_in_blocks_of_steps(tmp_path):
    folder, old = make_run(tmp_path / "a", 100), make_run(tmp_path / "old", 5)
    lines = (old / "metrics.jsonl").read_text().splitlines()
    kept = [{k: v for k, v in json.loads(line).items() if k != "ada/pass_rate_histogram"} for line in lines]
    (old / "metrics.jsonl").write_text("\n".join(map(json.dumps, kept)) + "\n")
    found = figure(read_runs([old, folder]), "pass-rates")
    (panel,) = found.panels
    counts = np.array([step_record(step)["ada/pass_rate_histogram"] for step in range(1, 101)], float)
    assert panel.run == 1 and panel.share_BC.shape == (9, 34)  # blocks of three steps
    assert panel.share_BC[:, 1] == pytest.approx(counts[3:6].sum(axis=0) / counts[3:6].sum())
    assert (panel.left_C[1], panel.right_C[1], panel.right_C[-1]) == (3.5, 6.5, 100.5)
    assert found.caption.endswith("Not recorded by: old.")
    assert found.table.rows[1][1][:3] == ("4-6", 192.0, f"{panel.share_BC[0, 1]:.1%}")
    assert figure(read_runs([old]), "pass-rates").panels == []


@pytest.mark.parametrize("damage", [None, "x", 3, [1], [1] * 8 + ["x"], [1] * 8 + [-1], [1] * 8 + [1e999], {}])
def test_a_damaged_histogram_is_a_gap(tmp_path, damage):
    folder = make_run(tmp_path / "a", 4)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[2]["ada/pass_rate_histogram"] = damage
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    run = Run.read(folder)
    assert any("line 3: ada/pass_rate_histogram" in note for note in run.notes)
    (panel,) = figure([run], "pass-rates").panels
    assert panel.share_BC[:, 2].sum() == 0 and panel.share_BC[:, 3].sum() == pytest.approx(1.0)
    assert "NaN" not in render([run], written="now")


def test_what_bound_is_a_share_of_steps(tmp_path):
    folder = make_run(tmp_path / "a", 10, **{"ada/budget_used_samples": 1.0})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[:3]:
        line["ada/budget_bound"] = 1.0
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    bars = figure([Run.read(folder)], "budget").panels[-1]
    assert dict(zip(bars.parts, bars.value_RK[0], strict=True))["max_samples"] == 0.3
    assert bars.value_RK[0].sum() == pytest.approx(1.0)


def test_equal_cost_cuts_every_axis_at_what_all_runs_reached(tmp_path):
    runs = read_runs([make_run(tmp_path / "a", 60), make_run(tmp_path / "b", 30, lift=0.1)])
    grid = summary.equal_cost(runs)
    assert grid is not None and grid.columns[1] == "up to 30 training steps"
    x = np.array([0.0, 10.0, 20.0, 30.0])
    y = 0.2 + 0.4 * (1 - np.exp(-x / 40))
    assert float(grid.rows[0][1]) == pytest.approx(np.trapezoid(y, x) / 30, abs=2e-4)
    assert float(grid.rows[1][1]) == pytest.approx(np.trapezoid(y, x) / 30 + 0.1, abs=2e-4)


def test_settings_that_differ_are_named_and_folders_are_not(tmp_path):
    runs = read_runs(
        [
            make_run(tmp_path / "a", 3, config={"grpo": {"seed": 0, "n": 4}, "task": {"name": "t", "size": 1}}),
            make_run(tmp_path / "b", 3, config={"grpo": {"seed": 0, "n": 8}, "extra": None}),
        ]
    )
    rows = {row[0]: tuple(row[1:]) for row in summary.differences(runs).rows}
    assert rows == {"grpo.n": ("4", "8"), "task.size": ("1", "(not set)"), "extra": ("(not set)", "null")}
    assert any("different tasks" in note for note in summary.warnings(runs))


def test_steps_whose_rollout_disagreed_with_the_learner_are_told(tmp_path):
    folder = make_run(tmp_path / "a", 4, **{"train/token_mult_prob_error": 1.05})
    assert not any("token_mult_prob_error" in note for note in summary.warnings([Run.read(folder)]))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["train/token_mult_prob_error"], lines[3]["train/token_mult_prob_error"] = 1.2, 1.4
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (note,) = [note for note in summary.warnings([Run.read(folder)]) if "token_mult_prob_error" in note]
    assert note.startswith("a, 2 of 4 steps, first step 2: ") and "1.400" in note and "BF16" in note


def test_long_runs_are_means_over_blocks_and_the_page_says_so(tmp_path):
    run = Run.read(make_run(tmp_path / "a", 250))
    table = figure([run], "pools").table
    rates = np.array([step_record(step)["ada/pass_rate"] for step in range(1, 251)])
    assert [row[0] for _, row in table.rows][:2] == ["1-3", "4-6"] and table.rows[-1][1][0] == "250"
    assert table.rows[1][1][3] == pytest.approx(rates[3:6].mean())
    assert "up to 3 steps per point" in render([run], written="now")


def test_blocks_leave_gaps_out_of_their_means():
    blocks = Blocks(np.arange(1.0, 8.0), 3)
    assert blocks.labels() == ["1-3", "4-6", "7"]
    mean = blocks.mean(np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 7.0]))
    assert mean.tolist()[::2] == [2.0, 7.0] and np.isnan(mean[1])


def test_the_trend_is_the_mean_of_its_neighbours():
    values = np.random.default_rng(0).normal(size=40)
    values[20] = np.nan
    found = trend(values)
    half = TREND // 2
    for i in range(40):
        near = values[max(0, i - half) : i + half + 1]
        assert np.isnan(found[i]) if i == 20 else found[i] == pytest.approx(np.nanmean(near))
    assert trend(values[: 2 * TREND - 1]) is None


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.22, 0.45), (0, 86224), (-3, 2), (1e-6, 3e-6), (0, 1e12), (5, 5)])
def test_ticks_are_few_round_and_within_the_range(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 6 and all(low <= value <= high for value in found)
    assert len({tick_text(value) for value in found}) == len(found)
    assert all(len(tick_text(value)) <= 6 for value in found)


def test_texts_of_numbers():
    assert [text_of(value) for value in (0.12345, 12345.6, float("nan"), 3.0)] == ["0.1235", "12,346", "–", "3"]
    assert [tick_text(value) for value in (12000, 1.5e6, 5e-5, 0.25)] == ["12k", "1.5M", "5e-5", "0.25"]
    assert span([np.array([np.nan])], zero=True) == (0.0, 1.0)


def test_ten_runs_of_a_thousand_steps_are_fast_and_small(tmp_path):
    folders = [make_run(tmp_path / f"run-{i}-with-a-name-of-some-length", 1000, lift=0.01 * i) for i in range(10)]
    started = time.process_time()  # CPU time: a busy machine must not fail the test
    page = render(read_runs(folders), written="now")
    seconds = time.process_time() - started
    assert seconds < 10
    assert len(page.encode()) < 5_000_000


def test_the_command_writes_page_figures_and_summary(tmp_path):
    runs = [make_run(tmp_path / "a$b_{c", 30), make_run(tmp_path / "[red]b", 30, lift=0.1)]
    out = tmp_path / "made" / "r.html"
    done = CliRunner().invoke(app, ["report", *map(str, runs), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "[red]b" in done.output and "0.200 → 0.411" in done.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    pictures = sorted((tmp_path / "made" / "r_figures").glob("*.png"))
    assert len(pictures) == len(all_figures(read_runs(runs)))
    for path in pictures:
        with Image.open(path) as picture:
            assert min(picture.size) > 300 and len(picture.getcolors(10**6)) > 10


def test_figures_of_a_run_without_evaluations_and_times(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "ada/pass_rate": 0.5}\n{"step": 2, "ada/pass_rate": 0.5}\n')
    run = Run.read(folder)
    figures = all_figures([run])
    written = write_figures(figures, [run.name], tmp_path / "png")
    assert [path.stem for path in written] == ["pass-rate", "pools"]
    assert render([run], written="now").count("Not recorded by these runs.") == len(figures) - 2
    assert summary.equal_cost([run, run]) is None


def test_bad_arguments_end_with_one_line(tmp_path):
    with pytest.raises(UserError, match="is no folder"):
        command.report([tmp_path / "x"], tmp_path / "r.html", False, False, 30)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        command.report([make_run(tmp_path / "a", 3)], tmp_path / "file" / "r.html", False, False, 30)
    with pytest.raises(UserError, match="is no folder"):
        command.report([tmp_path / "x"], tmp_path / "r.html", False, True, 30)


def test_watching_follows_a_run_until_it_ends(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "a", 3)
    out = tmp_path / "r.html"
    status, metrics = folder / "status.json", folder / "metrics.jsonl"
    status.write_text('{"state": "running", "max_steps": 5}')
    (folder / "hidden").write_text(metrics.read_text())
    metrics.unlink()
    seen = []

    def next_look(_seconds):
        """What happens to the run between two looks: its first steps, nothing, its last steps."""
        seen.append(out.read_text(encoding="utf-8").count("location.reload") if out.exists() else None)
        if len(seen) == 1:
            (folder / "hidden").rename(metrics)
        elif len(seen) == 3:
            with metrics.open("a") as file:
                file.write("".join(json.dumps(step_record(step)) + "\n" for step in (4, 5)))
            status.write_text('{"state": "done", "max_steps": 5}')
        elif len(seen) > 3:
            raise AssertionError("it should have ended")

    monkeypatch.setattr(command.time, "sleep", next_look)
    command.report([folder], out, False, True, 1)
    assert seen == [None, 1, 1]
    page = out.read_text(encoding="utf-8")
    assert "location.reload" not in page and re.search(r"steps<td>5<", page)
