"""A signal while a run is being set up ends it with the code of a stop, whatever part is starting at that moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nemo_ada.run.job_control import EXIT_STOPPED
from tests.patience import PATIENCE

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]


def maps(process, part):
    return part in Path(f"/proc/{process.pid}/maps").read_text()


def child(process, part):
    return any(part in " ".join(one.cmdline()) for one in psutil.Process(process.pid).children(recursive=True))


MOMENTS = {
    "numpy is imported": lambda process: maps(process, "numpy"),
    "Ray is imported": lambda process: maps(process, "_raylet"),
    "Ray's head starts": lambda process: child(process, "gcs_server"),
    "Ray's node starts": lambda process: child(process, "raylet"),
    "an actor starts": lambda process: child(process, "default_worker"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_stopped_while_it_starts_says_so(moment, tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "nemo_ada.cli.main", "train", ROOT / "configs" / "cpu" / "mini_sudoku.yaml",
               f"run_dir={run_dir}", "grpo.max_num_steps=1", f"base.cache_dir={tmp_path / 'cache'}"]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None and not MOMENTS[moment](process):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == EXIT_STOPPED, said[-2000:]
    if moment != "numpy is imported":
        assert json.loads((run_dir / "status.json").read_text())["state"] == "stopped"
