"""A rehearsal's two runs side by side: the second starts at the first one's checkpoint and never outlives it.

A script stands in for the policy interpreter and its driver. The real driver runs in `.ci/run`.
"""

import os
import sys
from pathlib import Path

import pytest

from nemo_ada.rehearsal import command, installation
from nemo_ada.rehearsal.report import Report
from nemo_ada.rehearsal.shrink import Layout

pytestmark = pytest.mark.long

DRIVER = """
import json, os, sys, time
from pathlib import Path
CONFIG = Path(next(word for word in sys.argv if word.endswith(".json")))
config = json.loads(CONFIG.read_text())
root = CONFIG.parent
def wait(path):
    while not path.exists():
        time.sleep(0.05)
if CONFIG.stem == "undisturbed":
    if config["fails"] != "before":
        (Path(config["checkpointing"]["checkpoint_dir"]) / "step_1").mkdir(parents=True)
        wait(root / "pid")
    sys.exit(1)
(root / "pid.new").write_text(str(os.getpid()))
(root / "pid.new").rename(root / "pid")
time.sleep(600)
"""


def fails(folder: Path, when: str) -> tuple[int, Report]:
    """Both runs with a first run that fails before its checkpoint, or when the second run has started."""
    driver, policy = folder / "driver.py", folder / "python"
    driver.write_text(DRIVER, encoding="utf-8")
    policy.write_text(f'#!/bin/sh\nexec {sys.executable} {driver} "$@"\n', encoding="utf-8")
    policy.chmod(0o755)
    installed = installation.Installation(folder, folder, folder, policy, policy)
    layout = Layout("megatron", tp=1, pp=1, cp=1, ep=1, dp=1)
    config = {
        "fails": when,
        "run_dir": str(folder / "run"),
        "grpo": {"max_num_steps": 3},
        "checkpointing": {"enabled": True, "checkpoint_dir": str(folder / "run" / "checkpoints")},
        "logger": {},
    }
    report = Report("x.yaml", "nemo-ada rehearse x.yaml", layout, [], [])
    code = command._make_runs(
        command.Rehearsal(installed, folder, layout, lambda text: None), report, config, resume=True
    )
    return code, report


def test_a_first_run_that_fails_before_its_checkpoint_starts_no_second(tmp_path):
    code, report = fails(tmp_path, "before")
    assert code == 1 and report.failure is not None and not (tmp_path / "pid").exists()


def test_a_first_run_that_fails_ends_the_second(tmp_path):
    code, report = fails(tmp_path, "after")
    assert code == 1 and report.failure is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
