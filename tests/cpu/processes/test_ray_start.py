"""Ray that does not come up is started again, and nothing of a failed attempt is left (private_ray.start)."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from nemo_ada.cpu.processes import actors as processes
from nemo_ada.errors import InvariantError, StallError, UserError
from tests.lazy import Lazy
from tests.patience import PATIENCE

private_ray = Lazy("nemo_ada.cpu.processes.private_ray")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Ray's folder; the tests may run in a process that has a Ray, which they leave alone."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    yield tmp_path
    processes.end_processes(processes.find_naming(tmp_path), grace=0.0)


def half_started(folder: Path) -> subprocess.Popen[bytes]:
    """What a node that failed leaves: a process with a path below Ray's folder in its command line."""
    process = subprocess.Popen([f"{folder}/session_1/raylet", "60"], executable=shutil.which("sleep"))
    while process.pid not in processes.find_naming(
        folder
    ):  # the kernel shows the command line a moment after the start
        time.sleep(0.01)
    return process


def test_a_node_that_did_not_come_up_is_ended_and_started_again(folder, monkeypatch, caplog):
    left, started = [], []

    def late_once(**options):
        if not left:
            left.append(half_started(folder))
            raise Exception("The current node timed out during startup.\nmore")
        started.append(options)

    monkeypatch.setattr("ray.init", late_once)
    private_ray.start(folder, num_cpus=1)
    assert [(options["_temp_dir"], options["num_cpus"]) for options in started] == [(str(folder), 1)]
    assert not processes.is_alive(left[0].pid)
    assert f"The current node timed out during startup.): attempt 2 of {private_ray.ATTEMPTS}" in caplog.text


HANGS = """
import ctypes, sys
from pathlib import Path
import ray
from nemo_ada.cpu.processes import private_ray
folder = Path(sys.argv[1])
private_ray.START_SECONDS = 3.0
ray.init = lambda **_options: ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock
private_ray.start(folder)
"""


@pytest.mark.long
def test_a_start_that_hangs_says_so_and_ends_the_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, timeout=PATIENCE)
    assert done.returncode == -signal.SIGALRM
    assert b"Ray has not answered" in done.stderr


def test_the_ray_of_somebody_else_is_left_alone(folder, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.shutdown", lambda: pytest.fail("it is not ours"))
    with pytest.raises(UserError, match=r"call ray\.shutdown"):
        private_ray.start(folder)


def test_the_last_attempt_tells_why(folder, monkeypatch):
    left = []

    def late(**_options):
        left.append(half_started(folder))
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", late)
    with pytest.raises(StallError, match=r"attempts: The current node timed out during startup\."):
        private_ray.start(folder)
    assert len(left) == private_ray.ATTEMPTS
    assert not any(processes.is_alive(process.pid) for process in left)


def test_a_node_that_registers_late_is_waited_for(folder, monkeypatch):
    answers = [RuntimeError("no such node"), RuntimeError("no such node"), {"node_id": "late"}]

    def get_node(_address, _node_id):
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    monkeypatch.setattr("ray._private.services.get_node", get_node)
    nodes = []
    monkeypatch.setattr("ray.init", lambda **_options: nodes.append(private_ray.services.get_node("address", "id")))
    private_ray.start(folder)
    assert nodes == [{"node_id": "late"}]
    assert private_ray.services.get_node is get_node


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("AF_UNIX path length cannot exceed 107 bytes"), InvariantError),
        (ValueError("the object store is larger than /dev/shm"), InvariantError),
        (TimeoutError("no answer"), StallError),
        (Exception("The current node timed out during startup."), StallError),
    ],
)
def test_a_cause_that_stays_has_no_exit_code_that_continues_a_chain(folder, monkeypatch, error, expected):
    def fails(**_options):
        raise error

    monkeypatch.setattr("ray.init", fails)
    with pytest.raises(expected) as raised:
        private_ray.start(folder)
    assert type(raised.value) is expected
