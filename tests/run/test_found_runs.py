"""`status` and `report` on folders that anybody may have made, and on runs whose process is gone.

1. No pipe, digit or nesting in a run's folder hangs or ends a command, and one bad folder hides no other.
2. A run that was killed is not called running, and `--watch` ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_ada.lab.status import GONE, Queue, find_runs, read_state, read_status, read_statuses
from nemo_ada.run.files import is_in_use, lock_file
from nemo_ada.run.job_control import JobControl
from tests.lab.report.made_runs import make_run
from tests.patience import PATIENCE

FILES = ("status.json", "pace.json", "heartbeat", "attempts.tsv", "left_out.tsv", "job", "lock", "metrics.jsonl")
LINE = "7\t7\t1\t{}\t7-1\t9\twall\td\n"
BAD = {
    "superscript": {"attempts.tsv": LINE.format("²") * 2, "pace.json": '{"saved_step": 3}'},
    "digits": {"attempts.tsv": LINE.format("9" * 5000), "pace.json": '{"saved_step": ' + "9" * 5000 + "}"},
    "many digits": {"status.json": '{"state": "running", "step": 1, "max_steps": ' + "9" * 4000 + "}"},
    "below zero": {"attempts.tsv": LINE.format("9") + LINE.format("3"), "pace.json": '{"saved_step": -9}'},
    "no texts": {
        "status.json": '{"state": [1], "step": "x", "max_steps": {}, "pid": "y"}',
        "heartbeat": '{"phase": {}}',
    },
    "nested": {"status.json": "[" * 100_000, "heartbeat": '{"a":' * 50_000},
    "huge": {"job": "7" * (5 << 20), "attempts.tsv": LINE.format("1") * 100_000},
}


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    JobControl(folder, 100).status("stopped", 44)
    (folder / "pace.json").write_text('{"saved_step": 44, "save_seconds": [], "validation_seconds": []}')
    return folder


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-P", "-c", "from nemo_ada.cli.main import main; main()", *map(str, words)]
    return subprocess.run(
        program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_folder_hangs_nothing(tmp_path: Path, name: str) -> None:
    good, bad = made(tmp_path / "runs" / "good"), made(tmp_path / "runs" / "bad")
    (bad / name).unlink(missing_ok=True)
    os.mkfifo(bad / name)
    done = command("status", "all", "--json", RUN_ROOT=str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert str(good) in done.stdout and "Traceback" not in done.stderr


def test_runs_in_the_folders_of_users_are_found_and_what_a_run_holds_is_no_run(tmp_path: Path) -> None:
    own, users = made(tmp_path / "runs" / "own"), [made(tmp_path / "runs" / name / "first") for name in ("ann", "bob")]
    made(own / "inner")
    (tmp_path / "runs" / "notes.txt").touch()
    assert sorted(find_runs(tmp_path / "runs")) == sorted([own, *users])


@pytest.mark.parametrize("files", BAD.values(), ids=BAD)
def test_no_content_ends_the_command_or_hides_another_run(tmp_path: Path, files: dict[str, str]) -> None:
    good, bad = made(tmp_path / "runs" / "good"), made(tmp_path / "runs" / "bad")
    for name, text in files.items():
        (bad / name).write_text(text)
    found = {one["run"]: one for one in read_statuses(find_runs(tmp_path / "runs"), Queue())}
    assert found[str(good)]["state"] == "stopped" and str(bad) in found
    assert len(json.dumps(found[str(bad)])) < 100_000


HOLDER = """
import sys, time
from pathlib import Path
from nemo_ada.run.files import lock_file
from nemo_ada.run.job_control import JobControl
folder = Path(sys.argv[1])
held = lock_file(folder / "lock", "x")
JobControl(folder, 9).status("running", 1)
JobControl(folder, 9).heartbeat(1, "rollout")
print("ready", flush=True)
time.sleep(3600)
"""


def test_a_run_that_was_killed_is_gone_and_watching_ends(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 3)
    with subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
        assert read_state(folder) == "running" and is_in_use(folder / "lock") is True
        program = "from nemo_ada.cli.main import main; main()"
        watching = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "status", folder, "--watch", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path,
        )  # fmt: skip
        assert watching.stdout is not None and watching.stdout.readline() and watching.poll() is None
        run.send_signal(signal.SIGKILL)
        run.wait()
    watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0
    assert read_status(folder, None)["state"] == GONE
    lock_file(folder / "lock", "x").close()


def test_a_process_id_counts_where_there_is_no_lock(tmp_path: Path) -> None:
    JobControl(tmp_path, 9).status("running", 1)
    assert read_state(tmp_path) == "running"
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "pid": ended.pid}))
    assert read_state(tmp_path) == GONE


def test_a_run_of_another_machine_is_gone_after_an_hour_of_silence(tmp_path: Path) -> None:
    JobControl(tmp_path, 9).status("running", 1)
    (tmp_path / "lock").write_text("process 1 on another-node\n")
    assert read_state(tmp_path) == "running"
    before = time.time() - 3700
    os.utime(tmp_path / "status.json", (before, before))
    assert read_state(tmp_path) == GONE


def test_asking_for_a_lock_takes_it_from_nobody(tmp_path: Path) -> None:
    """`status` looks at a lock by sharing it for a moment. A run that starts then waits for that moment."""
    for _ in range(50):
        lock_file(tmp_path / "lock", "x").close()
        assert is_in_use(tmp_path / "lock") is False
    with lock_file(tmp_path / "lock", "x"):
        assert is_in_use(tmp_path / "lock") is True
