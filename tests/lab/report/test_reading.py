"""What the report reads of a run directory that is damaged or incomplete: usable records, and notes about the rest."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from made_runs import make_run, rewrite
from markupsafe import escape

from nemo_ada.errors import UserError
from nemo_ada.lab.report import summary
from nemo_ada.lab.report.page import render
from nemo_ada.lab.report.run import Run, clean, read_usable


def test_damaged_lines_are_named_by_number_and_the_rest_is_used(tmp_path, undrawn):
    folder = make_run(tmp_path / "a", 5)
    good = (folder / "metrics.jsonl").read_bytes().splitlines()
    bad = [b'{"step": 3, "ada', b"\xff\xfe", b"null", b"[" * 100_000, b'{"step": 1e999}']
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*good[:2], *bad, *good[2:], good[0], b'{"step": 6, "cut of']))
    run = Run.read(folder)
    assert [record["step"] for record in run.steps] == [1, 2, 3, 4, 5]
    assert [re.findall(r"line (\d+)|last line \((\d+)\)", note) for note in run.notes] == [
        [("", "12")],
        [(str(line), "") for line in (3, 4, 5, 6, 7)],
        [("11", "")],
    ]
    page = render([run], written="now")
    assert all(str(escape(clean(note))) in page for note in run.notes)


def test_answers_of_the_first_and_the_last_evaluation_stand_side_by_side(tmp_path, undrawn):
    folder = make_run(tmp_path / "a", 20)
    path = folder / "evaluations.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        answer = {"problem": "2 < 3?", "reference": "yes", "response": f"answer {record['step']}", "reward": 0.5}
        record["samples"] = [answer, "damaged"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = Run.read(folder)
    assert run.notes == ()
    grid = summary.samples(run)
    assert grid.reset_index().to_numpy().tolist() == [
        ["2 < 3?", "yes", "answer 0 [reward 0.5]", "answer 20 [reward 0.5]"]
    ]
    assert "2 &lt; 3?" in render([run], written="now")
    assert summary.samples(Run.read(make_run(tmp_path / "b", 5))) is None


def test_a_last_line_that_a_running_run_is_writing_is_no_damage(tmp_path):
    folder = make_run(tmp_path / "a", 5)
    (folder / "status.json").write_text('{"state": "running"}')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ada/pa')
    assert Run.read(folder).notes == ()


def test_gaps_and_missing_metrics_are_named_by_line(tmp_path):
    folder = make_run(tmp_path / "a", 4)
    with rewrite(folder) as records:
        records[1]["train/entropy"] = None
        records[2]["ada/failed/verifier_timeout"] = 1.0  # only in steps that had one
        del records[3]["ada/pass_rate"], records[3]["time/step"]
    gap, lacking = Run.read(folder).notes
    assert "(line 2: train/entropy)" in gap
    assert "(line 4: ada/pass_rate and 1 more)" in lacking


def test_values_that_are_no_numbers_are_gaps(tmp_path, undrawn):
    runs = []
    for i, value in enumerate(("NaN", "Infinity", '"many"', "null", "[1]", "true", "1" + "0" * 299)):
        folder = make_run(tmp_path / f"{i}", 8)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines[4] = re.sub(r'"ada/pass_rate": [\d.]+', f'"ada/pass_rate": {value}', lines[4])
        lines[5] = re.sub(r'"total/tokens": \d+', f'"total/tokens": {value}', lines[5])
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        runs.append(Run.read(folder))
        assert np.flatnonzero(np.isnan(runs[-1].column("ada/pass_rate"))).tolist() == [4]
    assert re.search(r"\b(nan|inf)\b", render(runs[:2], written="now"), re.IGNORECASE) is None


def test_values_too_small_for_an_axis_are_zero(tmp_path):
    run = Run.read(make_run(tmp_path / "a", 4, **{"total/live_rows": 5e-324, "ada/weight_max": -1e-310}))
    assert not run.column("total/live_rows").any() and not run.column("ada/weight_max").any()


def test_nemo_rls_name_of_the_entropy_is_read_as_ours(tmp_path):
    folder = make_run(tmp_path / "a", 4, **{"train/entropy": 3.0})
    with rewrite(folder) as records:
        for record in records:
            record["train/approx_entropy"] = record.pop("train/entropy")
    run = Run.read(folder)
    assert run.notes == () and run.column("train/entropy").tolist() == [3.0] * 4


LAUGHS = "\n".join(
    ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}" for i in range(1, 12)]
)


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    ["a: &a {b: *a}", "a: &a [*a, *a]", "\n".join(f"k{i}: {i}" for i in range(5000)), "1: 2\n? [1, 2]\n: 3", LAUGHS],
    ids=["itself", "itself twice", "5000 keys", "no texts as keys", "a billion laughs"],
)
def test_a_configuration_that_refers_to_itself_or_is_huge_is_bounded(tmp_path, config):
    folder = make_run(tmp_path / "a", 3)
    (folder / "config.yaml").write_text(config)
    config = Run.read(folder).config
    assert sum(len(key) + len(value) for key, value in config.items()) < 1_000_000


def test_names_tell_runs_apart(tmp_path):
    folders = [make_run(tmp_path / a / b, 3) for a, b in (("x", "run"), ("y", "run"), ("y", "other"))]
    assert [run.name for run in read_usable(folders)[0]] == ["x/run", "y/run", "y/other"]
    with pytest.raises(UserError, match="named twice"):
        read_usable([folders[0], folders[0]])


def test_a_name_that_is_no_text_is_shown(tmp_path, undrawn):
    folder = make_run(tmp_path / os.fsdecode(b"bad\xff\x1b[31m\xef\xbf\xbfname"), 3)
    page = render([Run.read(folder)], written="now")
    page.encode("utf-8")
    assert "\x1b" not in page and "\uffff" not in page


@pytest.mark.parametrize(("longer", "harder", "warned"), [(2.0, 8, True), (2.0, 0, False), (1.0, 8, False)])
def test_a_run_whose_responses_grow_while_they_fail_is_reported(tmp_path, longer, harder, warned):
    folder = make_run(tmp_path / "a", 40)
    with rewrite(folder) as records:
        for i, record in enumerate(records):
            record["ada/pass_rate_histogram"] = [8 + harder * i // 39, *[2] * 8]
            record["ada/response_length_pools"] = 100 * (1 + (longer - 1) * i / 39)
    assert bool(summary.warnings([Run.read(folder)])) == warned


def test_steps_whose_rollout_disagreed_with_the_learner_are_told(tmp_path):
    folder = make_run(tmp_path / "a", 4, **{"train/token_mult_prob_error": 1.05})
    assert summary.warnings([Run.read(folder)]) == []
    with rewrite(folder) as records:
        records[1]["train/token_mult_prob_error"], records[3]["train/token_mult_prob_error"] = 1.2, 1.4
    (note,) = summary.warnings([Run.read(folder)])
    assert note.startswith("a, 2 of 4 steps, first step 2: ") and "1.400" in note


def test_the_report_begins_with_an_answer_about_grpo(tmp_path, undrawn):
    ours = make_run(tmp_path / "ours", 60, lift=0.1, config={"reinforce_ada": {"preset": "ada_single"}})
    grpo = make_run(tmp_path / "theirs", 60, config={"reinforce_ada": {"preset": "grpo"}})
    runs = summary.baseline_first([Run.read(ours), Run.read(grpo)])
    assert [run.name for run in runs] == ["theirs", "ours"]
    told = summary.answer(runs)
    assert told[0].startswith("ours against theirs: +0.") and "at equal responses" in told[0]
    assert "noise" in told[1]
    assert told[0] in render(runs, written="now")
    assert summary.answer(runs[:1]) == []


def test_a_run_whose_groups_are_nearly_all_silent_gets_a_note(tmp_path):
    silent = Run.read(make_run(tmp_path / "a", 20, **{"ada/zero_signal_groups": 0.97}))
    assert any("97% of the groups" in note for note in summary.warnings([silent]))
    assert not any("have no signal" in note for note in summary.warnings([Run.read(make_run(tmp_path / "b", 20))]))
