"""When a run stops before the end of its job, and what it tells the batch script."""

from __future__ import annotations

import json
import signal

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run import job_control
from nemo_ada.run.job_control import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    JOB_END,
    MARGIN_SECONDS,
    RECENT_PAUSES,
    JobControl,
    find_key_to_lower,
    handle_signals,
)


def test_a_run_without_an_end_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv(JOB_END, raising=False)
    assert JobControl(tmp_path, 10).find_stop_reason() is None


@pytest.fixture
def hundred_seconds_left(monkeypatch):
    """The job ends in MARGIN_SECONDS + 100 s, and the clock stands still."""
    monkeypatch.setattr(job_control.time, "time", lambda: 1000.0)
    monkeypatch.setenv(JOB_END, str(1000 + MARGIN_SECONDS + 100))


def test_a_run_stops_when_one_more_step_and_a_save_may_not_fit(tmp_path, hundred_seconds_left):
    control = JobControl(tmp_path, 10)
    control.observe_step(40)
    control.observe_step(30)
    assert control.find_stop_reason() is None
    control.observe_save(70)  # 40 + 70 > 100: the longest step counts, not the mean
    assert "are left of the job" in control.find_stop_reason()


def test_an_attempt_reserves_for_a_validation_and_a_save_that_earlier_attempts_timed(tmp_path, hundred_seconds_left):
    first = JobControl(tmp_path, 10)
    first.observe_validation(30)
    first.observe_save(40)
    second = JobControl(tmp_path, 10)
    assert second.closing == 70 + MARGIN_SECONDS
    second.observe_step(20)
    assert second.find_stop_reason() is None
    second.observe_step(31)  # 31 + 30 + 40 > 100
    assert "are left of the job" in second.find_stop_reason()


def test_one_long_save_is_not_reserved_for_for_ever(tmp_path):
    control = JobControl(tmp_path, 10)
    control.observe_save(7000)
    for _ in range(RECENT_PAUSES):
        control.observe_save(5)
    assert JobControl(tmp_path, 10).closing == 5 + MARGIN_SECONDS


def test_the_last_saved_step_is_kept_over_attempts(tmp_path):
    control = JobControl(tmp_path, 10)
    control.status("running", 4)
    control.observe_save(1)
    control.status("running", 5)
    assert json.loads((tmp_path / "pace.json").read_text())["saved_step"] == 4
    second = JobControl(tmp_path, 10)
    second.status("running", 0)
    second.observe_validation(1)
    assert json.loads((tmp_path / "pace.json").read_text())["saved_step"] == 4


@pytest.mark.parametrize(
    "content", ["", "[]", '{"saved_step": "x"}', '{"saved_step": 1, "save_seconds": 3, "validation_seconds": []}']
)
def test_a_damaged_pace_file_is_as_none(tmp_path, content):
    (tmp_path / "pace.json").write_text(content)
    assert JobControl(tmp_path, 10).closing == MARGIN_SECONDS


def test_the_stop_file_and_a_signal_stop_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv(JOB_END, raising=False)
    control = JobControl(tmp_path, 10)
    (tmp_path / "STOP").touch()
    assert "STOP" in control.find_stop_reason()
    control.request("signal SIGTERM")
    assert control.find_stop_reason() == "signal SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_a_stop_and_the_handlers_before_come_back(number):
    before, reasons = signal.getsignal(number), []
    with handle_signals(reasons.append):
        signal.raise_signal(number)
    assert reasons == [f"signal {number.name}"] and signal.getsignal(number) is before


def test_a_job_end_that_is_no_number_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_END, "tomorrow")
    with pytest.raises(UserError, match="epoch seconds"):
        JobControl(tmp_path, 10)


@pytest.mark.parametrize(
    ("reason", "saved", "state", "code", "said"),
    [
        (None, False, "done", EXIT_DONE, ""),
        ("signal SIGINT", True, "stopped", EXIT_STOPPED, "stopped after step 3: signal SIGINT; resume=auto continues"),
        ("signal SIGINT", False, "failed", EXIT_FAILED, "checkpointing.enabled=false"),
    ],
)
def test_only_a_stop_with_a_checkpoint_can_be_continued(tmp_path, reason, saved, state, code, said):
    found, message = JobControl(tmp_path, 10).report_end(3, reason, saved=saved)
    assert found == code and said in message and bool(message) == bool(said)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"]) == (state, 3)


def test_status_and_heartbeat_are_json(tmp_path):
    control = JobControl(tmp_path, 10)
    for seconds in (1.0, 9.0, 2.0):
        control.observe_step(seconds)
    control.status("running", 3)
    control.heartbeat(3, "update")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("running", 3, 10)
    beat = json.loads((tmp_path / "heartbeat").read_text())
    assert beat == {"step": 3, "phase": "update", "median_step_seconds": 2.0}


def test_a_closed_terminal_asks_for_a_stop_and_nohup_does_not(monkeypatch):
    asked: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under nohup
    try:
        with handle_signals(asked.append):
            signal.raise_signal(signal.SIGHUP)
        assert asked == ["signal SIGHUP"]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with handle_signals(asked.append):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked == ["signal SIGHUP"]


KEYS = {"get_logprobs(": "policy.logprob_batch_size", "PolicyWorker": "policy.train_micro_batch_size"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            "ray::MegatronPolicyWorker.train() torch.OutOfMemoryError: CUDA out of memory. Tried",
            "train_micro_batch_size",
        ),
        ("ray::MegatronPolicyWorker.get_logprobs()\nCUDA out of memory", "logprob_batch_size"),
        ("ray::MegatronPolicyWorker.train() ValueError: shapes differ", None),
        ("CUDA out of memory", None),
    ],
)
def test_an_error_that_memory_ran_out_names_the_setting_to_lower(text, key):
    for error in (RuntimeError(text), _caused(RuntimeError("the step failed"), RuntimeError(text))):
        advice = find_key_to_lower(error, KEYS)
        assert (advice is None) if key is None else (f"lower policy.{key}," in advice)


def _caused(error, cause):
    error.__cause__ = cause
    return error
