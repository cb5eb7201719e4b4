"""When a run stops before the end of its job, and what it tells the batch script."""

from __future__ import annotations

import json
import time

import pytest

from nemo_ada.errors import UserError
from nemo_ada.jobcontrol import JOB_END, MARGIN_SECONDS, JobControl


def test_a_run_without_an_end_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv(JOB_END, raising=False)
    assert JobControl(tmp_path, 10).stop_reason() is None


def test_a_run_stops_when_one_more_step_and_a_save_may_not_fit(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_END, str(time.time() + MARGIN_SECONDS + 100))
    control = JobControl(tmp_path, 10)
    control.observe_step(40)
    control.observe_step(30)
    assert control.stop_reason() is None
    control.observe_save(70)  # 40 + 70 > 100: the longest step counts, not the mean
    assert "are left of the job" in control.stop_reason()


def test_the_stop_file_and_a_signal_stop_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv(JOB_END, raising=False)
    control = JobControl(tmp_path, 10)
    (tmp_path / "STOP").touch()
    assert "STOP" in control.stop_reason()
    control.request("signal SIGTERM")
    assert control.stop_reason() == "signal SIGTERM"


def test_a_job_end_that_is_no_number_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_END, "tomorrow")
    with pytest.raises(UserError, match="epoch seconds"):
        JobControl(tmp_path, 10)


def test_status_and_heartbeat_are_json(tmp_path):
    control = JobControl(tmp_path, 10)
    for seconds in (1.0, 9.0, 2.0):
        control.observe_step(seconds)
    control.status("running", 3)
    control.heartbeat(3, "update")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("running", 3, 10)
    assert json.loads((tmp_path / "heartbeat").read_text()) == {
        "step": 3,
        "phase": "update",
        "median_step_seconds": 2.0,
    }
