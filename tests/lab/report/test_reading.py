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
from nemo_ada.lab.report.figures import make_figures
from nemo_ada.lab.report.page import render_page
from nemo_ada.lab.report.run import Run, clean, read_usable


def test_damaged_lines_are_counted_and_the_rest_is_used(tmp_path, undrawn):
    folder = make_run(tmp_path / "a", 5)
    good = (folder / "metrics.jsonl").read_bytes().splitlines()
    bad = [b'{"step": 3, "ada', b"\xff\xfe", b"null", b"[" * 100_000, b'{"step": 1e999}']
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*good[:2], *bad, *good[2:], good[0], b'{"step": 6, "cut of']))
    run = Run.read(folder)
    assert [record["step"] for record in run.steps] == [1, 2, 3, 4, 5]
    (note,) = run.notes
    assert "damaged lines are left out: 6, the first is line 3" in note
    assert str(escape(clean(note))) in render_page([run], [], written="now")


def test_a_last_line_that_a_running_run_is_writing_is_no_damage(tmp_path):
    folder = make_run(tmp_path / "a", 5)
    (folder / "status.json").write_text('{"state": "running"}')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ada/pa')
    assert Run.read(folder).notes == ()


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
    assert (
        re.search(r"\b(nan|inf)\b", render_page(runs[:2], make_figures(runs[:2]), written="now"), re.IGNORECASE) is None
    )


def test_values_too_small_for_an_axis_are_zero(tmp_path):
    run = Run.read(make_run(tmp_path / "a", 4, **{"total/live_rows": 5e-324, "ada/weight_max": -1e-310}))
    assert not run.column("total/live_rows").any() and not run.column("ada/weight_max").any()


@pytest.mark.parametrize("config", ["a: &a {b: *a}", "a: &a [*a, *a]", "1: 2\n? [1, 2]\n: 3"])
def test_a_configuration_that_cannot_be_read_is_a_note(tmp_path, config):
    folder = make_run(tmp_path / "a", 3)
    (folder / "config.yaml").write_text(config)
    run = Run.read(folder)
    assert run.config == {} and run.notes[0].startswith("config.yaml cannot be read: ")


def test_names_tell_runs_apart(tmp_path):
    folders = [make_run(tmp_path / a / b, 3) for a, b in (("x", "run"), ("y", "run"), ("y", "other"))]
    assert [run.name for run in read_usable(folders)[0]] == ["x/run", "y/run", "y/other"]
    with pytest.raises(UserError, match="named twice"):
        read_usable([folders[0], folders[0]])


def test_a_name_that_is_no_text_is_shown(tmp_path, undrawn):
    folder = make_run(tmp_path / os.fsdecode(b"bad\xff\x1b[31m\xef\xbf\xbfname"), 3)
    page = render_page([Run.read(folder)], [], written="now")
    page.encode("utf-8")
    assert "\x1b" not in page and "\uffff" not in page


def test_steps_whose_rollout_disagreed_with_the_learner_are_told(tmp_path):
    folder = make_run(tmp_path / "a", 4, **{"train/token_mult_prob_error": 1.05})
    assert summary.find_warnings([Run.read(folder)]) == []
    with rewrite(folder) as records:
        records[1]["train/token_mult_prob_error"], records[3]["train/token_mult_prob_error"] = 1.2, 1.4
    (note,) = summary.find_warnings([Run.read(folder)])
    assert note.startswith("a, 2 of 4 steps, first step 2: ") and "1.400" in note


def test_the_report_begins_with_an_answer_about_grpo(tmp_path, undrawn):
    ours = make_run(tmp_path / "ours", 60, lift=0.1, config={"reinforce_ada": {"preset": "ada_single"}})
    grpo = make_run(tmp_path / "theirs", 60, config={"reinforce_ada": {"preset": "grpo"}})
    runs = summary.put_baseline_first([Run.read(ours), Run.read(grpo)])
    assert [run.name for run in runs] == ["theirs", "ours"]
    told = summary.answer_in_sentences(runs)
    assert told[0].startswith("ours against theirs: +0.") and "at equal responses" in told[0]
    assert "noise" in told[1]
    assert told[0] in render_page(runs, [], written="now")
    assert summary.answer_in_sentences(runs[:1]) == []


def test_an_axis_that_stands_still_gives_no_number_to_another(tmp_path):
    def told(*still):
        runs = []
        for name, lift in (("grpo", 0.0), ("ada_single", 0.1)):
            folder = make_run(tmp_path / f"{len(still)}" / name, lift=lift, config={"reinforce_ada": {"preset": name}})
            path = folder / "evaluations.jsonl"
            records = [json.loads(line) | dict.fromkeys(still, 0) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            runs.append(Run.read(folder))
        return summary.answer_in_sentences(runs)

    (first, *_) = told("total/responses")
    assert "at equal seconds" in first and "responses" not in first
    assert told("total/responses", "total/seconds") == []


def test_a_run_whose_groups_are_nearly_all_silent_gets_a_note(tmp_path):
    silent = Run.read(make_run(tmp_path / "a", 20, **{"ada/zero_signal_groups": 0.97}))
    assert any("97% of the groups" in note for note in summary.find_warnings([silent]))
    assert not any("have no signal" in note for note in summary.find_warnings([Run.read(make_run(tmp_path / "b", 20))]))
