"""slurm/train_7b_ada.sh on a real SLURM: a plain sbatch is a run of slots, with a stand-in for the driver.

1. USR1 before the limit: the run saves, the next slot resumes where it was and ends `done`; no step is lost.
2. A failed run is not repeated, a killed one is; attempts in a row without a new step end the run.
3. A stall is noticed, stacks are written, the next slot goes on.
4. scancel of a slot, and of the run.
5. Ray spans two nodes; a node that does not come is named; a start that fails is repeated.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import ROOT, Run
from cluster import Cluster

from tests.patience import PATIENCE

pytestmark = pytest.mark.slurm


def test_usr1_saves_the_next_slot_resumes_and_done_cancels_what_waits(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(one_node, "steps=5", "wait_at=2", "step_seconds=0.1")
    after = tmp_path / "after.sh"
    after.write_text(f"#!/bin/bash\ncp {run.run_dir}/over {tmp_path}/seen\n")
    run.until(lambda: len(run.steps()) >= 2)
    assert len(run.left("PENDING")) == 19, "the header asks for 20 slots"
    one_node.submit(after, cwd=tmp_path, options=(f"--dependency=afterany:{run.job}", "--output=/dev/null"))
    run.signal()
    run.over("done")
    assert run.steps() == list(range(1, 6)), "each step once, in order"
    assert run.reasons() == ["wall", "done"] and run.current() == f"{run.job}_2"
    assert "ended: done, step 5 of 5" in run.log()
    run.until(lambda: (tmp_path / "seen").exists())  # a job after the whole run


def test_slurm_itself_sends_the_signal_and_the_run_knows_the_job_end(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    submitted = time.time()
    options = ("--time=2", "--signal=B:USR1@60", "--array=1")
    run = start(one_node, "steps=900", "step_seconds=0.2", options=options)
    run.gone()
    assert "USR1: the job's end is near" in run.log()
    assert "ended: stopped" in run.log()
    assert "no slot waits: this was the last one, and a new submission goes on" in run.log()
    assert "the clock of" not in run.log(), "the controller says what time it is, not when it started"
    end = float((run.run_dir / "job_end").read_text())
    assert 115 < end - submitted < 240
    assert 0 < len(run.steps()) < 900


def test_a_failed_run_is_not_repeated(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "fail_at=2", "step_seconds=0.1")
    run.over("own failure")
    assert run.attempts() == 1
    assert "not continuing" in run.log()


@pytest.mark.parametrize("save", ["save_each=1", "save_each_not=1"])
def test_attempts_in_a_row_without_a_new_step_end_the_run(
    one_node: Cluster, start: Callable[..., Run], save: str
) -> None:
    saves = save == "save_each=1"
    run = start(one_node, "kill_at=2", "always=1", "step_seconds=0.1", save, MAX_WITHOUT_STEP="2", RETRY_SECONDS="1")
    run.over("no progress")
    assert run.attempts() == (3 if saves else 2), "where it saves, the first reached step 2, the next two nothing new"
    log = run.log()
    assert f"2 attempts in a row (MAX_WITHOUT_STEP) saved no step beyond {2 if saves else 0}: own failure, own " in log
    assert "slots wait; they start in 1 s at the earliest" in log


@pytest.mark.parametrize("fault", ["kill", "quit", "lose"])
def test_a_driver_that_is_killed_or_lost_a_process_resumes_from_its_last_save(
    one_node: Cluster, start: Callable[..., Run], fault: str
) -> None:
    run = start(one_node, f"{fault}_at=3", "save_each=1", "step_seconds=0.1")
    run.over("done")
    assert run.steps() == [1, 2, 3, 4, 5]
    assert "attempt 1 ended: interrupted" in run.log()


def test_a_stall_is_noticed_and_dumped_and_the_next_slot_goes_on(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "hang_at=2", "save_each=1", "step_seconds=0.1", STALL_SECONDS="4")
    run.over("done")
    assert "watchdog: no heartbeat for" in run.log()
    stacks = (run.run_dir / "attempts" / f"{run.job}_1" / "stacks-n1.txt").read_text()
    assert "standin.py" in stacks
    assert run.steps() == [1, 2, 3, 4, 5]


def test_a_stop_file_of_the_user_ends_the_run_and_a_new_submission_goes_on(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    run = start(one_node, "wait_at=2", "step_seconds=0.1")
    run.until(lambda: len(run.steps()) >= 2)
    (run.run_dir / "STOP").write_text("enough\n")
    run.over("asked")
    assert run.attempts() == 1
    assert "a stop file that was not ours" in run.log()
    assert not (run.run_dir / "STOP").exists()
    (run.run_dir / "STOP").touch()
    os.utime(run.run_dir / "STOP", (1, 1))  # touched in all folders, also in this one, where nothing ran
    again = start(one_node, "step_seconds=0.1")
    again.over("done")
    assert "STOP was older than this submission, which goes on" in again.log()
    assert again.steps() == [1, 2, 3, 4, 5]


def test_a_stop_file_that_comes_while_slots_wait_ends_the_run(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "kill_at=2", "step_seconds=0.1", RETRY_SECONDS="4")
    run.until(lambda: run.attempts() == 1 and run.reasons() == ["own failure"])
    (run.run_dir / "STOP").touch()
    run.over("asked")
    assert run.attempts() == 1 and run.steps() == [1, 2]


def test_scancel_of_a_slot_saves_and_the_next_one_goes_on_and_of_the_array_ends_all(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    run = start(one_node, "steps=1000", "step_seconds=1", "term=node", PREEMPT_SECONDS="12")
    run.until(lambda: len(run.steps()) >= 1)
    assert one_node.processes(), "the search for processes finds them while the job runs"
    one_node.run("scancel", run.current())
    run.until(lambda: run.attempts() == 2 and len(run.steps()) > len(set(run.steps())) - 1 and run.current()[-1] == "2")
    made = len(run.steps())
    run.until(lambda: len(run.steps()) > made)
    one_node.run("scancel", str(run.job))
    run.gone()
    assert run.steps() == list(range(1, len(run.steps()) + 1)), "each step once, in order: both have saved"
    assert run.reasons() == ["asked", "asked"] and not run.said_over()


def test_ray_spans_both_nodes_also_where_its_first_start_fails(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "ray").write_text(
        f"#!/bin/bash\n[ -e {slow}/$SLURMD_NODENAME ] || {{ touch {slow}/$SLURMD_NODENAME; echo slow >&2; exit 1; }}\n"
        f'PATH=${{PATH#{slow}:}} exec ray "$@"\n'
    )
    (slow / "ray").chmod(0o755)
    run = start(
        two_nodes, "cluster.num_nodes=2", driver="ray_count.py", options=("--nodes=2",), RAY_START="1",
        RAY_SECONDS=str(int(PATIENCE)), extra=f"export PATH={slow}:$PATH",
    )  # fmt: skip
    run.over("done")
    assert (run.run_dir / "nodes.txt").read_text().split() == ["n1", "n2"]
    said = "".join(path.read_text() for path in run.run_dir.rglob("node-*.log"))
    assert said.count("ray start ended with exit code 1 before all nodes were there; trying again") >= 2
    run.gone()


@pytest.mark.parametrize("late", ["n2", pytest.param("n1", marks=pytest.mark.slow)])
def test_a_node_that_does_not_come_is_named(
    late: str, two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """Where it is the first one, the other must not give up before it: that would end the job without a name."""
    pytest.importorskip("ray")
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "ray").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "ray").chmod(0o755)
    absent = f"if [[ $SLURMD_NODENAME == {late} ]]; then export PATH={folder}:$PATH; fi"
    run = start(
        two_nodes,
        "cluster.num_nodes=2",
        driver="ray_count.py",
        options=("--nodes=2", "--array=1"),
        RAY_START="1",
        RAY_SECONDS="20",
        extra=absent,
    )
    run.until(lambda: "ended: interrupted" in run.log())
    attempt = run.run_dir / "attempts" / f"{run.job}_1"
    head = (attempt / "node-n1.log").read_text()
    assert re.search(r"Ray runs on [01] of 2 nodes; missing: (n1, )?n2\.", head)
    if late == "n1":
        assert "n2 did not reach Ray on n1" in (attempt / "node-n2.log").read_text()
    assert run.reasons() == ["own failure"], "it counts, or the run would repeat it for ever"
    run.gone()


NVIDIA_SMI = """#!/bin/bash
if [[ $1 == -L ]]; then echo "GPU 0"; [[ " {bad} " == *" $SLURM_NODE "* ]] || seq -f "GPU %g" 7; exit; fi
errors=0; if [[ $SLURM_NODE == n1 && -e {folder}/run/steps.txt ]]; then errors={errors}; fi
echo "GPU-0, 3, $((7 + errors)), 0, No, No"
"""


def gpus(folder: Path, bad: str = "", errors: int = 0) -> str:
    """NODE_SETUP in which the nodes `bad` have one GPU of eight, and n1 counts ECC errors as soon as the run steps."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "nvidia-smi").write_text(NVIDIA_SMI.format(folder=folder, bad=bad, errors=errors))
    (folder / "bin" / "nvidia-smi").chmod(0o755)
    return f"export PATH={folder}/bin:$PATH"


def test_a_node_that_counts_errors_of_its_memory_during_the_run_is_left_out(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """It has 7 errors of earlier jobs, which condemn nobody. That the user asked for it holds no slot back."""
    words = ("steps=5", "kill_at=3", "save_each=1", "step_seconds=0.1")
    run = start(
        two_nodes, *words, options=("--nodes=1", "--nodelist=n1"), HEALTH="1", MIN_TMP_GIB="0",
        extra=gpus(tmp_path, errors=2),
    )  # fmt: skip
    run.over("done")
    log = run.log()
    assert "node n1 is unhealthy: GPU 0 counted 2 uncorrected ECC errors in this job's time" in log
    assert "on 1 node(s): n2" in log and run.steps() == [1, 2, 3, 4, 5] and run.reasons() == ["node lost", "done"]


def test_a_node_whose_container_does_not_start_is_left_out(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """As where another user's folder is in enroot's way. No check can see it from the inside."""
    apptainer = tmp_path / "apptainer"
    denied = "mkdir: cannot create directory '/run/enroot': Permission denied"
    apptainer.write_text(
        f'#!/bin/bash\nif [[ $SLURMD_NODENAME == n1 ]]; then echo "{denied}" >&2; exit 1; fi\n'
        'until [[ $1 == x.sif ]]; do shift; done; shift\nexec "$@"\n'
    )
    apptainer.chmod(0o755)
    run = start(
        two_nodes, "steps=3", "step_seconds=0.1", CONTAINER="x.sif", RUNTIME="apptainer", APPTAINER=str(apptainer)
    )
    run.over("done")
    assert f"node n1 is unhealthy: its step did not begin: {denied}" in run.log()
    assert "on 1 node(s): n2" in run.log() and run.reasons() == ["node lost", "done"]


def test_unhealthy_nodes_stay_left_out_beside_the_users_own_exclude(
    four_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The second ExcNodeList replaces the first, so it has all of them."""
    run = start(
        four_nodes, "steps=3", "--exclude=n3", itself=True, HEALTH="1", MIN_TMP_GIB="0", RETRY_SECONDS="1",
        extra=gpus(tmp_path, "n1 n2"),
    )  # fmt: skip
    run.over("done")
    log = run.log()
    assert "on 1 node(s): n4" in log and run.steps() == [1, 2, 3]
    assert log.count("is unhealthy") == 2 and "on 1 node(s): n3" not in log


def test_a_cause_that_all_nodes_share_ends_the_run(
    four_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    health = {"HEALTH": "1", "MIN_TMP_GIB": "0", "extra": gpus(tmp_path, "n1 n2 n3 n4"), "RETRY_SECONDS": "1"}
    run = start(four_nodes, "steps=3", options=("--nodes=1",), MAX_WITHOUT_STEP="3", **health)
    run.over("no progress")
    assert run.log().count("is unhealthy") == 3 and run.steps() == []
    assert len({line.split("\t")[2] for line in (run.run_dir / "left_out.tsv").read_text().splitlines()}) == 3


def test_a_preempted_slot_saves_and_the_run_goes_on(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The partition has PreemptMode=CANCEL and a grace time, at whose beginning SLURM sends TERM."""
    run = start(one_node, "wait_at=2", "step_seconds=0.1", "term=node")
    run.until(lambda: len(run.steps()) >= 2)
    short = tmp_path / "urgent.sh"
    short.write_text("#!/bin/bash\ntrue\n")
    one_node.submit(short, cwd=tmp_path, options=("--partition=urgent", "--exclusive", "--output=/dev/null"))
    run.over("done")
    assert run.steps() == list(range(1, 6)), "each step once, in order"
    assert run.reasons() == ["preempted", "done"]


@pytest.mark.parametrize("code", [1, 2])
def test_a_direct_sbatch_checks_the_config_before_the_driver_starts(
    one_node: Cluster, start: Callable[..., Run], code: int
) -> None:
    """2: the check finds an error. 1: the check itself crashed, which is no pass."""
    refuse = f"nemo-ada() {{ echo checked $1; return {code}; }}"
    run = start(one_node, "steps=2", PREFLIGHT="1", LAUNCH="nemo-ada train", extra=refuse)
    run.over("own failure")
    logs = "".join(path.read_text() for path in run.run_dir.rglob("node-*.log"))
    assert f"nemo-ada check refuses the config or failed itself (exit code {code})" in logs
    assert run.steps() == [] and run.attempts() == 1


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
def test_a_direct_sbatch_with_a_container_passes_its_own_check(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The real `nemo-ada check` runs inside the container, where the image's file is not visible.

    A small apptainer stands for the container: it runs its command, and hides the image meanwhile.
    """
    image, hidden = tmp_path / "image.sif", tmp_path / "hidden.sif"
    image.touch()
    apptainer = tmp_path / "apptainer"
    apptainer.write_text(f'#!/bin/bash\nmv {image} {hidden}\nuntil [[ $1 == {image} ]]; do shift; done\nshift\n"$@"\n')
    apptainer.chmod(0o755)
    settings = {"CONTAINER": str(image), "RUNTIME": "apptainer", "APPTAINER": str(apptainer), "PREFLIGHT": "1"}
    settings["NEMO_RL_HOME"] = os.environ["NEMO_RL_HOME"]
    config = str(ROOT / "configs" / "qwen2.5-math-7b.yaml")
    check = 'nemo-ada() { if [[ $1 == check ]]; then command nemo-ada "$@"; else python standin.py "$@"; fi; }'
    run = start(one_node, LAUNCH="nemo-ada train", CONFIG=config, extra=check, options=("--array=1",), **settings)
    run.gone()
    logs = "".join(path.read_text() for path in run.run_dir.rglob("node-*.log"))
    assert re.search("not checked here: .*CONTAINER", logs) and "ERROR   CONTAINER" not in logs, logs
