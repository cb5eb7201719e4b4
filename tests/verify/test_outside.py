"""The trial of a reward is the run: what it is refused there is said before, by name; what it declares, it gets."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.verify import kernel
from nemo_ada.verify.judge import make_judge
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.verdict import TIMEOUT, Verdict
from tests.patience import PATIENCE

MODULE = "tests.verify.outside_rewards"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "table.json").write_text(json.dumps({"a": "a"}))
    monkeypatch.setenv("NEMO_ADA_TEST_PLACE", str(tmp_path))
    monkeypatch.setenv("MY_REWARD_MODE", "strict")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("NEMO_ADA_TEST_PORT", str(server.getsockname()[1]))

        def accept() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield tmp_path
        server.shutdown(socket.SHUT_RDWR)


def judge_by(name: str, deadline_s: float = PATIENCE):
    return make_judge(reward=f"{MODULE}:{name}", limits=VerifierLimits(deadline_s, workers=1), key="task.reward")


REFUSED = {
    "program": ("refuses subprocess.Popen('true'", "program.needs = {'processes'}"),
    "file": ("refuses open('{place}/table.json')", "file.needs = {'files': [PATH]}"),
    "file_in_silence": ("it gave 0: the verifier's confinement refuses open('{place}/table.json')", "'files': [PATH]"),
    "cached_file": ("refuses open('{place}/table.json')", "while the module is imported"),
    "http": ("http.client.connect('127.0.0.1'", "http.needs = {'network'}"),
    "temporary": ("refuses open('", "temporary.needs = {'processes'}"),
    "thread": ("refuses a new thread", "thread.needs = {'network'}"),
    "variable": ("do not have the variable MY_REWARD_MODE", "NEMO_ADA_PASS='MY_REWARD_MODE'"),
    "minus_one": ("a number outside [0, 1]: -1", "minus_one.range = (-1, 1)"),
    "breaks_without_text": ("called with an empty answer", "IndexError"),
    "waits": ("it awaits something", "waits.needs = {'network'}"),
    "odd_need": ("needs={'gpu'}", "processes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_reward_does_not_get_is_said_before_anything_starts(name, place):
    judge = judge_by(name)
    with pytest.raises(UserError) as caught:
        judge.try_on("a")
    told = str(caught.value)
    assert told.startswith(f"task.reward={MODULE}:{name}: called with ") and "\n" not in told
    for part in REFUSED[name]:
        assert part.replace("{place}", str(place)) in told


@pytest.mark.parametrize(
    "name",
    ["declared_minus_one", "coroutine", "score", "prompted", "time_zone", "late_import", "declared_file",
     "declared_network", "declared_network_later", "declared_processes"],
)  # fmt: skip
def test_what_a_reward_declares_it_gets_in_the_trial_and_in_the_run(name):
    if name == "declared_file" and kernel.read_landlock_version() == 0:
        pytest.skip("this kernel has no Landlock")
    judge = judge_by(name)
    try:
        judge.try_on("a")
        assert judge.verdicts([("a", "a"), ("b", "a")]) == [Verdict(1.0), Verdict(0.0)]
    finally:
        judge.close()


def test_the_network_brings_nothing_else_along(place):
    judge = judge_by("hostile_with_network")
    try:
        assert judge.verdicts([("a", "a")]) == [Verdict(0.0)]
    finally:
        judge.close()
    assert not (place / "written").exists()


def test_processes_of_a_reward_end_with_its_worker(place: Path, gone):
    judge = judge_by("leaves_a_process", 0.5)
    try:
        assert judge.verdicts([("hang", "a")])[0].cause == TIMEOUT
        assert gone(int((place / "group").read_text()))
    finally:
        judge.close()


def test_a_variable_that_is_handed_on_is_there(monkeypatch):
    monkeypatch.setenv("NEMO_ADA_PASS", "MY_REWARD_MODE")
    judge = judge_by("variable")
    judge.try_on("a")
    try:
        assert judge.verdicts([("a", "a")]) == [Verdict(1.0)]
    finally:
        judge.close()


def test_a_variable_that_is_read_when_the_module_is_imported_is_said_too(tmp_path, monkeypatch):
    (tmp_path / "reads_early.py").write_text(
        "import os\nMODE = os.environ.get('MY_REWARD_MODE')\ndef f(text, answer):\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="do not have the variable MY_REWARD_MODE that it reads"):
        make_judge(reward="reads_early:f", limits=VerifierLimits(PATIENCE, 1)).try_on("a")
