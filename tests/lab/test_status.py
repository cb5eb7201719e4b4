"""`nemo-ada status`: a run's folder and SLURM's queue, told on the login node.

1. It reads the folder that a chain of jobs leaves, and one of a laptop's run, whatever is damaged in it.
2. The next start is the queue's, also that of a job that waits for the run's own.
3. No heavy library is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.status import read_status, render
from nemo_ada.run.job_control import JobControl
from tests.patience import PATIENCE

REASONS = ("wall", "preempted", "wall", "own failure")


def chain(folder: Path) -> Path:
    """A run of 100 steps whose four attempts began at steps 0, 20, 20 and 44, and whose last save is step 44."""
    control = JobControl(folder, 100)
    control.observe_step(2.0)
    control.heartbeat(44, "rollout")
    control.status("running", 44)
    control.observe_save(1.0)
    control.status("failed", 45)
    saved = (0, 20, 20, 44)
    lines = [
        f"7\t7\t1\t{step}\t7-{n}\t9\t{reason}\tfailed: no reward\n"
        for n, (step, reason) in enumerate(zip(saved, REASONS, strict=True))
    ]
    (folder / "attempts.tsv").write_text("".join(lines))
    (folder / "left_out.tsv").write_text("7\t7\tn3\tnvidia-smi sees 7 GPUs\n")
    (folder / "job").write_text("7\n")
    return folder


def test_a_chain_tells_its_steps_reasons_slots_and_last_error(tmp_path: Path) -> None:
    found = read_status(chain(tmp_path), ["7|PENDING|2026-11-27T08:00:00|Priority|(null)"])
    assert (found["state"], found["step"], found["saved_step"], found["max_steps"]) == ("waiting", 45, 44, 100)
    assert found["reasons"] == list(REASONS) and found["last_reason"] == "own failure"
    assert found["slots_left"] == 3, "56 steps are left, and two slots that met the wall saved 44"
    assert found["left_out"] == {"n3": "nvidia-smi sees 7 GPUs"}
    text = render(found)
    for part in ("step 45 of 100", "step 44", "next start 2026-11-27T08:00:00", "failed: no reward", "7-3", "n3"):
        assert part in text


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("9|PENDING|N/A|Dependency|afterany:7(unfulfilled)", "PENDING"),
        ("7|RUNNING|2026-11-26T08:00:00|None|(null)", "RUNNING"),
        ("9|PENDING|N/A|Dependency|afterany:77(unfulfilled)", None),
    ],
)
def test_the_next_job_is_the_runs_own_or_one_that_waits_for_it(tmp_path: Path, line: str, state: str | None) -> None:
    job = read_status(chain(tmp_path), [line])["queue"]
    assert (job and job["state"]) == state


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 200_000, b"7\t1\n", b"null"])
def test_damaged_files_hide_nothing_else(tmp_path: Path, content: bytes) -> None:
    for name in ("status.json", "pace.json", "heartbeat", "attempts.tsv", "left_out.tsv", "job"):
        (chain(tmp_path) / name).write_bytes(content)
        assert render(read_status(tmp_path, []))


def test_a_run_that_only_waits_is_shown_and_what_slurm_holds_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "jobs.tsv").write_text("9\t9\t-\t1\n")
    (tmp_path / "job").write_text("9\n")
    found = read_status(tmp_path, ["9|PENDING|N/A|launch failed requeued held|(null)"])
    assert found["state"] == "waiting" and "scontrol release 9" in render(found)
    assert read_status(tmp_path, ["9|PENDING|N/A|Priority|(null)"])["remedy"] is None


def test_a_run_whose_job_slurm_does_not_know_is_gone_and_one_that_was_called_off_says_so(tmp_path: Path) -> None:
    control = JobControl(chain(tmp_path), 100)
    control.status("running", 44)
    assert read_status(tmp_path, ["7|RUNNING|N/A|None|(null)"])["state"] == "running"
    assert read_status(tmp_path)["state"] == "running", "no answer is no no"
    assert read_status(tmp_path, [])["state"] == "gone"
    (tmp_path / "jobs.tsv").write_text("7\t7\t-\t1\n7\tover\tasked\t9\n")
    assert read_status(tmp_path, [])["state"] == "asked"


def test_gpu_hours_are_those_of_all_attempts(tmp_path: Path) -> None:
    assert read_status(chain(tmp_path))["gpu_hours"] is None, "nothing says how many GPUs"
    (tmp_path / "config.yaml").write_text("cluster:\n  gpus_per_node: 8\n  num_nodes: 2\npolicy: {}\n")
    (tmp_path / "attempts.tsv").write_text("7\t7\t1000\t0\t7-0\t4600\twall\tx\n7\t8\t5000\t9\t8-0\t6800\tdone\t\n")
    found = read_status(tmp_path)
    assert found["gpu_hours"] == 24.0 and "GPU hours so far: 24.0" in render(found)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        read_status(tmp_path)


def test_the_command_reads_one_run_and_all_of_them_without_heavy_libraries(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        chain(tmp_path / name)
    (tmp_path / "notes").mkdir()
    program = (
        "import sys\nfrom nemo_ada.cli.main import app, guarded\nimport nemo_ada.cli.status\n"
        "code = guarded(lambda: app(sys.argv[1:], standalone_mode=False))\n"
        "heavy = {'torch', 'ray', 'numpy', 'omegaconf', 'vllm'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    for words, runs in (([str(tmp_path / "a")], 1), (["all"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", program, "status", *words, "--json"], capture_output=True, text=True,
            env=os.environ | {"RUN_ROOT": str(tmp_path)}, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)) == runs
