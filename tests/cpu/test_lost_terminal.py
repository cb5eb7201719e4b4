"""A training whose terminal is closed saves and stops. One whose reader goes away trains on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from nemo_ada.run.folder import RunDir, read_lines
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STOPPED
from tests.cpu.conftest import JSONL
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow


def training(bandit, name, steps, output, **options):
    """`nemo-ada train` in a session of its own, with this output."""
    settings = [
        f"task.path={bandit.root}/bandit.jsonl", f"run_dir={bandit.root}/{name}",
        f"base.cache_dir={bandit.root}/cache_of_commands", "base.steps=5", "grpo.num_prompts_per_step=4",
        f"grpo.max_num_steps={steps}", "grpo.val_period=0", "grpo.val_at_start=false", "logger.tensorboard=false",
        "policy.generation.max_new_tokens=6", "policy.model.hidden_size=64", "policy.model.num_attention_heads=2",
        "resume=auto",
    ]  # fmt: skip
    command = [sys.executable, "-m", "nemo_ada.cli", "train", str(JSONL), *settings]
    return subprocess.Popen(command, stdin=output, stdout=output, stderr=output, start_new_session=True, **options)


def first_step(folder, process):
    """Wait for the first step's record."""
    while not read_lines(folder / "metrics.jsonl"):
        assert process.poll() is None, "the training ended before its first step"
        time.sleep(0.1)


def state(folder):
    return json.loads((folder / "status.json").read_text())["state"]


def test_a_closed_terminal_saves_and_stops_and_a_closed_pipe_changes_nothing(bandit):
    folder = bandit.root / "left"
    ours, terminal = pty.openpty()
    process = training(bandit, "left", 100_000, terminal)
    os.close(terminal)
    first_step(folder, process)
    os.close(ours)  # what is written from now on fails with EIO
    os.kill(process.pid, signal.SIGHUP)  # as the kernel does for the session of a terminal
    assert process.wait(PATIENCE) == EXIT_STOPPED
    assert state(folder) == "stopped"
    saved = int(RunDir(folder).find_newest_checkpoint().name.removeprefix("step_"))
    assert saved == read_lines(folder / "metrics.jsonl")[-1]["step"]

    reader, writer = os.pipe()
    process = training(bandit, "left", saved + 2, writer)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)  # as `| head -1` does
    assert process.wait(PATIENCE) == EXIT_DONE
    assert state(folder) == "done"
    assert [line["step"] for line in read_lines(folder / "metrics.jsonl")] == list(range(1, saved + 3))
