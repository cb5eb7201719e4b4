"""slurm/train_7b_ada.sh on a real SLURM, with a stand-in for the driver that keeps the run's side of the contract.

1. USR1 before the limit: the run saves, the next job resumes where it was and ends `done`; no step is lost.
2. A failed run is not repeated, a killed one is; attempts in a row without a new step end the chain.
3. A stall is noticed, stacks are written, the next job goes on.
4. scancel leaves no process.
5. Ray spans two nodes; a node that does not come is named.
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


def test_usr1_saves_and_the_next_job_resumes_and_ends_done(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=5", "wait_at=2", "step_seconds=0.1")
    run.until(lambda: len(run.steps()) >= 2)
    one_node.run("scancel", "--signal=USR1", "--batch", str(run.job))
    run.over("done")
    assert run.steps() == list(range(1, 6)), "each step once, in order"
    assert run.attempts() == 2
    follows = [before for _, before in run.ledger()]
    assert follows == ["-", str(run.job), str(run.job + 1), "done"], "two jobs trained, the third was cancelled"
    assert "ended: done, step 5 of 5" in run.log()


def test_slurm_itself_sends_the_signal_and_the_run_knows_the_job_end(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    submitted = time.time()
    run = start(one_node, "steps=900", "step_seconds=0.2", options=("--time=2", "--signal=B:USR1@60"), REQUEUE="none")
    run.ends("COMPLETED")
    assert "USR1: the job's end is near" in run.log()
    assert "ended: stopped" in run.log()
    assert "the clock of" not in run.log(), "the controller says what time it is, not when it started"
    end = float((run.run_dir / "job_end").read_text())
    assert 115 < end - submitted < 240
    assert 0 < len(run.steps()) < 900


def test_a_failed_run_is_not_requeued(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "fail_at=2", "step_seconds=0.1")
    run.ends("FAILED")
    assert run.attempts() == 1
    assert "not continuing" in run.log()


def test_attempts_in_a_row_without_a_new_step_end_the_chain(one_node: Cluster, start: Callable[..., Run]) -> None:
    words = ("kill_at=2", "always=1", "save_each=1", "step_seconds=0.1")
    run = start(one_node, *words, MAX_WITHOUT_STEP="2", RETRY_SECONDS="1")
    run.over("own failure")
    assert run.attempts() == 3, "the first reached step 2, the next two nothing new"
    assert "2 attempts in a row (MAX_WITHOUT_STEP) saved no step beyond 2: own failure, own failure" in run.log()


def test_a_chain_that_never_saves_ends(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "kill_at=2", "always=1", "step_seconds=0.1", MAX_WITHOUT_STEP="2", RETRY_SECONDS="1")
    run.over("own failure")
    assert run.attempts() == 2 and run.steps() == [1, 2, 1, 2]


@pytest.mark.parametrize("fault", ["kill", "quit", "lose"])
def test_a_driver_that_is_killed_or_lost_a_process_resumes_from_its_last_save(
    one_node: Cluster, start: Callable[..., Run], fault: str
) -> None:
    run = start(one_node, f"{fault}_at=3", "save_each=1", "step_seconds=0.1")
    run.over("done")
    assert run.steps() == [1, 2, 3, 4, 5]
    assert "attempt 1 ended: interrupted" in run.log()


def test_a_stall_is_noticed_dumped_and_requeued(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "hang_at=2", "save_each=1", "step_seconds=0.1", STALL_SECONDS="4")
    run.over("done")
    assert "watchdog: no heartbeat for" in run.log()
    stacks = (run.run_dir / "attempts" / f"{run.job}-0" / "stacks-n1.txt").read_text()
    assert "standin.py" in stacks
    assert run.steps() == [1, 2, 3, 4, 5]


def test_where_a_user_may_submit_one_job_only_it_is_requeued(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=5", "wait_at=2", "step_seconds=0.1", REQUEUE="requeue")
    run.until(lambda: len(run.steps()) >= 2)
    run.signal()
    run.over("done")
    assert run.steps() == list(range(1, 6)) and run.reasons() == ["wall", "done"]
    assert run.ledger() == [[str(run.job), "-"], ["over", "done"]]


def test_a_stop_file_of_the_user_ends_the_chain(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "wait_at=2", "step_seconds=0.1")
    run.until(lambda: len(run.steps()) >= 2)
    (run.run_dir / "STOP").write_text("enough\n")
    run.over("asked")
    assert run.attempts() == 1
    assert "a stop file that was not ours" in run.log()
    assert not (run.run_dir / "STOP").exists(), "a new submission goes on"


def test_a_stop_file_that_comes_between_two_jobs_ends_the_chain(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "STOP").touch()
    run = start(one_node, "steps=2", "step_seconds=0.1")
    run.over("asked")
    assert not (run.run_dir / "attempts.tsv").exists() and run.steps() == []
    assert "STOP ends this chain before its next attempt" in run.log()
    (run.run_dir / "STOP").write_text("slurm: job 1 is about to end\n")
    again = start(one_node, "steps=2", "step_seconds=0.1")
    again.over("done")
    assert again.steps() == [1, 2]


def test_a_follow_up_job_has_the_options_of_the_first_submission(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(
        two_nodes,
        "steps=5",
        "wait_at=2",
        "step_seconds=0.1",
        f"--output={tmp_path}/slurm-%j.log",
        "--time=00:17:00",
        "--comment=carried over",
        "--exclude=n2",
        "--mem=1",
        itself=True,
        PREFLIGHT="0",
    )
    run.until(lambda: len(run.steps()) >= 2)
    assert "MinMemoryNode=1M" in two_nodes.run("scontrol", "show", "job", str(run.job))
    two_nodes.run("scancel", "--signal=USR1", "--batch", str(run.job))
    run.ends("COMPLETED")
    follow_up = two_nodes.run("scontrol", "show", "job", run.ledger()[1][0])
    for part in ("TimeLimit=00:17:00", "Comment=carried over", "ExcNodeList=n2", "MinMemoryNode=1M"):
        assert part in follow_up
    run.over("done")
    assert run.steps() == list(range(1, 6))


def test_scancel_leaves_no_process(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=1000", "step_seconds=0.2")
    run.until(lambda: len(run.steps()) >= 2)
    assert one_node.processes(), "the search for processes finds them while the job runs"
    one_node.run("scancel", str(run.job))
    run.ends("CANCELLED")
    run.until(lambda: not one_node.processes())


def test_ray_spans_both_nodes(two_nodes: Cluster, start: Callable[..., Run]) -> None:
    pytest.importorskip("ray")
    run = start(
        two_nodes,
        "cluster.num_nodes=2",
        driver="ray_count.py",
        options=("--nodes=2",),
        RAY_START="1",
        RAY_SECONDS=str(int(PATIENCE)),
    )
    run.over("done")
    assert (run.run_dir / "nodes.txt").read_text().split() == ["n1", "n2"]
    run.until(lambda: not two_nodes.processes())


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
        options=("--nodes=2",),
        RAY_START="1",
        RAY_SECONDS="20",
        REQUEUE="none",
        extra=absent,
    )
    run.until(lambda: "ended: interrupted" in run.log())
    attempt = run.run_dir / "attempts" / f"{run.job}-0"
    head = (attempt / "node-n1.log").read_text()
    assert re.search(r"Ray runs on [01] of 2 nodes; missing: (n1, )?n2\.", head)
    if late == "n1":
        assert "n2 did not reach Ray on n1" in (attempt / "node-n2.log").read_text()
    assert run.reasons() == ["own failure"], "it counts, or the chain would repeat it for ever"
    run.until(lambda: not two_nodes.processes())


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


def test_a_node_that_counts_errors_of_its_memory_during_the_run_is_left_out_of_the_next_job(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """It has 7 errors of earlier jobs, which condemn nobody."""
    words = ("steps=5", "kill_at=3", "save_each=1", "step_seconds=0.1")
    run = start(
        two_nodes, *words, options=("--nodes=1", "--nodelist=n1"), HEALTH="1", MIN_TMP_GIB="0",
        extra=gpus(tmp_path, errors=2),
    )  # fmt: skip
    run.over("done")
    log = run.log()
    assert "node n1 is unhealthy: GPU 0 counted 2 uncorrected ECC errors in this job's time" in log
    assert "on 1 node(s): n2" in log and run.steps() == [1, 2, 3, 4, 5] and run.reasons() == ["node lost", "done"]


def test_an_unhealthy_node_is_left_out_of_the_next_job(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(
        two_nodes, "steps=3", options=("--nodes=1", "--nodelist=n1"), HEALTH="1", MIN_TMP_GIB="0",
        extra=gpus(tmp_path, "n1"),
    )  # fmt: skip
    run.over("done")
    log = run.log()
    assert "node n1 is unhealthy: nvidia-smi sees 1 GPUs, cluster.gpus_per_node is 8" in log
    assert "on 1 node(s): n2" in log and run.steps() == [1, 2, 3]


def test_an_unhealthy_node_stays_left_out_beside_the_users_own_exclude(
    four_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """sbatch takes the last --exclude. The user's stood behind ours once, and SLURM gave the bad node again."""
    run = start(
        four_nodes, "steps=3", f"--output={tmp_path}/slurm-%j.log", "--exclude=n3", itself=True, HEALTH="1",
        MIN_TMP_GIB="0", RETRY_SECONDS="1", extra=gpus(tmp_path, "n1 n2"),
    )  # fmt: skip
    run.over("done")
    log = run.log()
    assert "on 1 node(s): n4" in log and run.steps() == [1, 2, 3]
    assert log.count("is unhealthy") == 2 and "on 1 node(s): n3" not in log


def test_a_cause_that_all_nodes_share_ends_the_chain(
    four_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    health = {"HEALTH": "1", "MIN_TMP_GIB": "0", "extra": gpus(tmp_path, "n1 n2 n3 n4"), "RETRY_SECONDS": "1"}
    run = start(four_nodes, "steps=3", options=("--nodes=1",), MAX_WITHOUT_STEP="3", **health)
    run.over("node lost")
    assert run.log().count("is unhealthy") == 3 and run.steps() == []
    assert len({line.split("\t")[2] for line in (run.run_dir / "left_out.tsv").read_text().splitlines()}) == 3


def test_a_preempted_job_saves_and_goes_on(one_node: Cluster, start: Callable[..., Run], tmp_path: Path) -> None:
    """The partition has PreemptMode=CANCEL and a grace time, at whose beginning SLURM sends TERM."""
    run = start(one_node, "wait_at=2", "step_seconds=0.1", "term=node")
    run.until(lambda: len(run.steps()) >= 2)
    short = tmp_path / "urgent.sh"
    short.write_text("#!/bin/bash\ntrue\n")
    one_node.submit(short, cwd=tmp_path, options=("--partition=urgent", "--exclusive"))
    run.over("done")
    assert "ended: stopped" in run.log()
    assert run.steps() == list(range(1, 6)), "each step once, in order"


@pytest.mark.parametrize("code", [1, 2])
def test_a_direct_sbatch_checks_the_config_before_the_driver_starts(
    one_node: Cluster, start: Callable[..., Run], code: int
) -> None:
    """2: the check finds an error. 1: the check itself crashed, which is no pass."""
    refuse = f"nemo-ada() {{ echo checked $1; return {code}; }}"
    run = start(one_node, "steps=2", PREFLIGHT="1", LAUNCH="nemo-ada train", extra=refuse)
    run.ends("FAILED")
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
    run = start(one_node, LAUNCH="nemo-ada train", CONFIG=config, extra=check, **settings)
    run.ends("FAILED", "COMPLETED")
    logs = "".join(path.read_text() for path in run.run_dir.rglob("node-*.log"))
    assert re.search("not checked here: .*CONTAINER", logs) and "ERROR   CONTAINER" not in logs, logs
