"""`nemo-ada status`: a run's folder and SLURM's words, told on the login node.

1. It reads the folder that a run of slots leaves, and one of a laptop's run, whatever is damaged in it.
2. Which slots there are, and how each stands, is what SLURM says by the array's id. Nothing is inferred.
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
from nemo_ada.lab.status import Queue, ask_slurm, read_status, render_status
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
        f"7\t7_{n}\t1\t{step}\t7_{n}\t9\t{reason}\tfailed: no reward\n"
        for n, (step, reason) in enumerate(zip(saved, REASONS, strict=True))
    ]
    (folder / "attempts.tsv").write_text("".join(lines))
    (folder / "left_out.tsv").write_text("7\t7_2\tn3\tnvidia-smi sees 7 GPUs\n")
    (folder / "job").write_text("7_3\n")
    return folder


def test_a_run_tells_its_steps_reasons_slots_and_last_error(tmp_path: Path) -> None:
    found = read_status(chain(tmp_path), Queue([f"7|7_{n}|PENDING|2026-11-27T08:00:00||Priority" for n in (4, 5)]))
    assert (found["state"], found["step"], found["saved_step"], found["max_steps"]) == ("waiting", 45, 44, 100)
    assert found["reasons"] == list(REASONS) and found["last_reason"] == "own failure"
    assert found["slots_left"] == 3, "56 steps are left, and two slots that met the wall saved 44"
    assert found["left_out"] == {"n3": "nvidia-smi sees 7 GPUs"}
    text = render_status(found)
    for part in ("step 45 of 100", "step 44", "next start 2026-11-27T08:00:00", "failed: no reward", "7_3", "n3",
                 "2 slots wait: 7_4 is PENDING (Priority)"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (["7|7_5|PENDING|N/A||Resources", "7|7_4|RUNNING|2026-11-26T08:00:00|n[1-2]|None"], "running"),
        (["7|7_4|COMPLETING|2026-11-26T08:00:00|n1|None", "7|7_5|PENDING|N/A||JobArrayTaskLimit"], "completing"),
        (["7|7_4|SUSPENDED|2026-11-26T08:00:00|n1|None"], "suspended"),
        (["7|7_5|RESV_DEL_HOLD|N/A||ReservationDeleted"], "waiting"),
        (["7|7_5|PENDING|N/A||launch failed requeued held"], "waiting"),
        (["77|77_1|RUNNING|N/A|n1|None", "6|7|RUNNING|N/A|n1|None"], "no slot is left: submit again"),
        ([], "no slot is left: submit again"),
    ],
)
def test_a_run_stands_as_slurm_says(tmp_path: Path, rows: list[str], state: str) -> None:
    assert read_status(chain(tmp_path), Queue(rows))["state"] == state
    assert read_status(tmp_path)["state"] == "failed", "no answer: what the run wrote"


def test_slurms_words_on_slots_that_have_ended_are_shown_as_they_are(tmp_path: Path) -> None:
    ended = {"7_1": "TIMEOUT", "7_2": "NODE_FAIL", "8_1": "COMPLETED"}
    found = read_status(chain(tmp_path), Queue([], ended))
    assert found["ended"] == {"7_1": "TIMEOUT", "7_2": "NODE_FAIL"}
    assert "ended, as SLURM says: 7_1 TIMEOUT, 7_2 NODE_FAIL" in render_status(found)


SQUEUE = """#!/bin/bash
echo "$0 $*" >>{folder}/calls
[ -e {folder}/silent ] && exit 1
case "$*" in
  *"-t all"*) echo "7_1|TIMEOUT"; echo "7_2|RUNNING"; echo "7_[3-9]|CANCELLED" ;;
  *) echo "7|7_2|RUNNING|x|n1|None" ;;
esac
"""


def test_slurm_is_asked_by_the_arrays_id_and_silence_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    chain(tmp_path / "run")
    for name, text in {"squeue": SQUEUE.format(folder=tmp_path), "sacct": "#!/bin/bash\nexit 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ask_slurm([tmp_path / "run"]) == Queue(["7|7_2|RUNNING|x|n1|None"], {"7_1": "TIMEOUT"})
    assert all("-j 7,7" in line for line in (tmp_path / "calls").read_text().splitlines())
    (tmp_path / "sacct").write_text("#!/bin/bash\necho '7_1|CANCELLED by 0'; echo '7_[3-9]|PENDING'\n")
    found = ask_slurm([tmp_path / "run"])
    assert found is not None and found.ended == {"7_1": "CANCELLED"}
    (tmp_path / "silent").touch()
    assert ask_slurm([tmp_path / "run"]) is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 200_000, b"7\t1\n", b"null"])
def test_damaged_files_hide_nothing_else(tmp_path: Path, content: bytes) -> None:
    for name in ("status.json", "pace.json", "heartbeat", "attempts.tsv", "left_out.tsv", "job"):
        (chain(tmp_path) / name).write_bytes(content)
        assert render_status(read_status(tmp_path, Queue()))


def test_a_run_that_only_waits_is_shown_and_what_slurm_holds_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("9\n")
    found = read_status(tmp_path, Queue(["9|9_1|PENDING|N/A||launch failed requeued held"]))
    assert found["state"] == "waiting" and "scontrol release 9" in render_status(found)
    assert read_status(tmp_path, Queue(["9|9_1|PENDING|N/A||Priority"]))["remedy"] is None
    held = read_status(tmp_path, Queue(["9|9_1|RESV_DEL_HOLD|N/A||Reservation"]))
    assert "its reservation is gone" in render_status(held)


def test_a_run_that_is_over_says_why(tmp_path: Path) -> None:
    control = JobControl(chain(tmp_path), 100)
    control.status("running", 44)
    (tmp_path / "over").write_text("7\t9\tno progress\t4 attempts in a row\n")
    assert read_status(tmp_path, Queue())["state"] == "over: no progress"
    assert read_status(tmp_path)["state"] == "running", "no answer is no no"
    (tmp_path / "over").write_text("6\t9\tasked\t\n")
    assert read_status(tmp_path, Queue())["state"] == "no slot is left: submit again", "of an earlier submission"


def test_gpu_hours_are_those_of_all_attempts(tmp_path: Path) -> None:
    assert read_status(chain(tmp_path))["gpu_hours"] is None, "nothing says how many GPUs"
    (tmp_path / "config.yaml").write_text("cluster:\n  gpus_per_node: 8\n  num_nodes: 2\npolicy: {}\n")
    (tmp_path / "attempts.tsv").write_text("7\t7\t1000\t0\t7-0\t4600\twall\tx\n7\t8\t5000\t9\t8-0\t6800\tdone\t\n")
    found = read_status(tmp_path)
    assert found["gpu_hours"] == 24.0 and "GPU hours so far: 24.0" in render_status(found)
    (tmp_path / "attempts/7-0").mkdir(parents=True)
    (tmp_path / "attempts/7-0/node-n1.log").touch()  # the first attempt had one node, and the run went on with two
    assert read_status(tmp_path)["gpu_hours"] == 16.0


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        read_status(tmp_path)


def test_the_command_reads_one_run_and_all_of_them_without_heavy_libraries(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        chain(tmp_path / name)
    (tmp_path / "notes").mkdir()
    program = (
        "import sys\nfrom nemo_ada.cli.main import app, run_guarded\nimport nemo_ada.cli.status\n"
        "code = run_guarded(lambda: app(sys.argv[1:], standalone_mode=False))\n"
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
