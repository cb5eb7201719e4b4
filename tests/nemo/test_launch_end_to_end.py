"""`nemo-ada train` on a recipe of configs/, in processes of its own, with NeMo-RL's real set-up (launch_driver.py).

A run is stopped by its stop file (exit 75), refused with a changed configuration (exit 2), goes on and is killed in the
middle of a step, gives a step up because its job ends (exit 75), and goes on to its end (exit 0). Beside it the same
run goes through without a stop.

1. Losses, samples, validation scores and the final weights are those of the uninterrupted run.
2. status.json, records, checkpoints and the W&B run say so; report and plan read the folder.
3. A full disk under the log, and a closed terminal, lose nothing.
4. The math environment of the recipes judges the answers; one reference that hangs costs its deadline per validation.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from nemo_support.lab import KILLED, picked, same_weights

from nemo_ada.lab.plan.history import History
from nemo_ada.lab.report.run import Run
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STOPPED, EXIT_USER_ERROR

pytestmark = [pytest.mark.nemo_rl, pytest.mark.slow]

STEPS = 6
SHORT = f"grpo.max_num_steps={STEPS}"


@pytest.fixture(scope="module")
def story(lab):
    """All launches, in three processes; what each ended with, and the status after it."""
    wandb = "logger.wandb_enabled=true"
    stop = {"kind": "stop file", "phase": "update", "after": 2}
    kill = {"kind": "driver killed", "phase": "update", "after": 1}

    def arguments(*overrides):
        return lab.arguments("broken", SHORT, *overrides)

    told: dict[str, Any] = {}
    told["first"] = lab.launch(
        {"arguments": lab.arguments("straight", SHORT)},
        {"arguments": arguments(wandb, "grpo.max_num_steps=4"), "fault": stop},
    )
    told["stopped"] = lab.status("broken")
    (lab.folder / "broken" / "STOP").unlink()
    told["second"] = lab.launch(
        {"arguments": arguments("loss_fn.ratio_clip_max=0.5", "+grpo.advantage_clip_low=-5")},
        {"arguments": arguments(), "fault": kill},
    )
    told["killed"] = lab.status("broken")
    told["third"] = lab.launch({"arguments": arguments(), "seconds": 20}, {"arguments": arguments(wandb)})
    told["done"] = lab.status("broken")
    return told


def test_exit_codes_and_status_tell_what_happened(story):
    assert story["first"][:2] == (EXIT_STOPPED, [EXIT_DONE, EXIT_STOPPED]), story["first"][2][-2000:]
    assert (story["stopped"]["state"], story["stopped"]["step"]) == ("stopped", 3)
    assert story["second"][:2] == (KILLED, [EXIT_USER_ERROR]), story["second"][2][-2000:]
    assert (story["killed"]["state"], story["killed"]["step"]) == ("running", 4)
    assert story["third"][:2] == (EXIT_DONE, [EXIT_STOPPED, EXIT_DONE]), story["third"][2][-2000:]
    assert (story["done"]["state"], story["done"]["step"], story["done"]["max_steps"]) == ("done", STEPS, STEPS)


def test_a_changed_configuration_is_refused_by_its_keys(story):
    message = " ".join(story["second"][2].split())
    assert "belongs to another configuration" in message
    assert "loss_fn.ratio_clip_max: 0.28 -> 0.5" in message and "grpo.advantage_clip_low: None -> -5" in message, (
        message
    )


def test_the_interrupted_run_is_the_uninterrupted_one(lab, story):
    straight, broken = lab.folder / "straight", lab.folder / "broken"
    steps, scores = picked(straight)
    assert [line[0] for line in steps] == list(range(1, STEPS + 1)) and any(line[1] for line in steps)
    assert [line[0] for line in scores] == [0, 2, 4, 6]
    assert picked(broken) == (steps, scores)
    assert same_weights(straight, broken, STEPS)


def test_every_validation_counts_the_answer_that_could_not_be_judged(lab, story):
    evaluations = read_lines(lab.folder / "straight" / "evaluations.jsonl")
    assert [line["val/without_label"] for line in evaluations] == [1.0] * 4
    assert all(line["val/accuracy"] in (0.0, 0.25, 0.5, 0.75) for line in evaluations)
    assert any(line["val/accuracy"] > 0 for line in evaluations)


def test_no_training_batch_is_written_out(lab, story):
    """The recipes switch off NeMo-RL's dump of every batch; its small one of a validation stays."""
    logs = lab.folder / "straight" / "logs"
    assert [path.name for path in logs.rglob("*_data_step*.jsonl") if path.name.startswith("train")] == []
    assert list(logs.rglob("val_data_step*.jsonl"))


def test_durations_of_saves_and_validations_are_kept_for_later_attempts(lab, story):
    pace = json.loads((lab.folder / "broken" / "pace.json").read_text())
    assert pace["saved_step"] == STEPS and len(pace["save_seconds"]) >= 3
    folders = sorted((lab.folder / "broken" / "checkpoints").glob("step_*"))
    read = [json.loads((folder / "inputs.json").read_text()) for folder in folders]
    assert read and all(one == read[0] and any(what.startswith("tokenizer") for what in one) for one in read)
    assert len(pace["validation_seconds"]) >= 4 and min(pace["validation_seconds"]) > 2.0, "one reference hangs for 3 s"


def test_the_tracking_run_goes_on(lab, story):
    run_id = json.loads((lab.folder / "broken" / "tracking.json").read_text())["wandb_id"]
    kept = [path.name for path in (lab.folder / "broken" / "logs").glob("exp_*/wandb/wandb/offline-run-*")]
    assert len(kept) == 2 and all(name.endswith(f"-{run_id}") for name in kept)


def test_report_and_plan_read_the_run(lab, story):
    run = Run.read(lab.folder / "broken")
    assert run.notes == () and run.state == "done" and len(run.steps) == STEPS
    assert run.config["reinforce_ada.preset"] == "ada_seq_balance"
    history = History.read(lab.folder / "broken")
    assert len(history.lengths_L) > 0 and (history.sampling_S > 0).all()


def test_a_full_disk_under_the_log_changes_nothing_and_a_closed_terminal_saves_and_stops(lab):
    def launch(kind, after):
        arguments = lab.arguments("left", SHORT)
        return {"arguments": arguments, "fault": {"kind": kind, "phase": "update", "after": after}}

    code, codes, told = lab.launch(launch("terminal closed", 1), launch("disk of the log full", 1))
    assert (code, codes) == (EXIT_DONE, [EXIT_STOPPED, EXIT_DONE]), told[-2000:]
    assert lab.status("left")["state"] == "done"
    assert [line["step"] for line in read_lines(lab.folder / "left" / "metrics.jsonl")] == list(range(1, STEPS + 1))
