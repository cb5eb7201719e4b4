"""Why did an attempt end? Each cause on a real SLURM, with the stand-in driver; only the user or a finished run ends
the chain.

1. The wall, a preemption by REQUEUE, a job that may not be requeued: the chain goes on.
2. A lost node: the old driver ends, the next attempt does not meet its lock, and each step is made once.
3. A full disk: the chain waits for room.
4. Each task of --array is a run of its own, with a folder, a seed and a chain.
5. scancel leaves the time to save that KillWait promises, and ends the chain. A new submission waits for that save.
6. Of two jobs that start in one folder at once, one trains.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import SCRIPT, Run
from cluster import Cluster, search_path

pytestmark = pytest.mark.slurm


@pytest.mark.slow  # a time limit has whole minutes
def test_a_step_longer_than_the_signals_lead_meets_the_wall_and_the_chain_goes_on(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    """No step ends before the limit, so nothing is saved."""
    run = start(
        one_node, "step_seconds=600", "term=node", options=("--time=1", "--signal=B:USR1@5"), PREEMPT_SECONDS="5"
    )
    run.until(lambda: run.attempts() == 2)
    one_node.run("scancel", run.current())
    run.over("asked")
    run.until(lambda: not one_node.processes())
    assert run.reasons() == ["wall", "asked"]


def test_a_preemption_that_requeues_leaves_time_to_save_and_does_not_count(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The partition has PreemptMode=REQUEUE and no grace time: TERM, KillWait, KILL."""
    run = start(
        one_node, "steps=9", "step_seconds=3", "term=node", options=("--partition=again",), PREEMPT_SECONDS="10"
    )
    short = tmp_path / "urgent.sh"
    short.write_text("#!/bin/bash\ntrue\n")
    run.until(lambda: len(run.steps()) >= 1)
    one_node.submit(short, cwd=tmp_path, options=("--partition=urgent", "--exclusive"))
    run.over("done")
    assert run.steps() == list(range(1, 10)), "each step once, in order"
    assert run.reasons() == ["preempted", "done"]


def test_scancel_leaves_the_run_its_time_to_save_and_ends_the_chain(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    run = start(one_node, "steps=1000", "step_seconds=4", "term=node", PREEMPT_SECONDS="12")
    run.until(lambda: len(run.steps()) >= 1)
    one_node.run("scancel", str(run.job))
    run.ends("CANCELLED")
    run.until(lambda: not one_node.processes())
    assert (run.run_dir / "saved.json").exists(), run.log()
    run.over("asked")
    assert run.reasons() == ["asked"]


def test_scancel_in_the_last_moment_of_a_job_ends_the_chain(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The attempt has ended, and the batch script still asks SLURM for the job that waits."""
    slow = tmp_path / "bad" / "squeue"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/bash\n[ -e {tmp_path}/late ] && sleep 60\nexec {shutil.which("squeue")} "$@"\n')
    slow.chmod(0o755)
    run = start(one_node, "steps=1000", "step_seconds=0.2", "save_each=1", PATH=f"{slow.parent}:{search_path()}")
    run.until(lambda: len(run.steps()) >= 2 and len(run.ledger()) == 2)
    (tmp_path / "late").touch()
    run.signal()
    run.until(lambda: "attempt 1 ended: stopped" in run.log())
    (tmp_path / "late").unlink()
    one_node.run("scancel", str(run.job))
    run.over("asked")
    assert run.attempts() == 1


def test_a_job_that_is_submitted_right_after_scancel_waits_for_the_save_and_goes_on_from_it(
    two_nodes: Cluster, start: Callable[..., Run]
) -> None:
    """The other node is free, so the new job starts while the old one saves."""
    words = ("steps=6", "step_seconds=3", "term=node")
    first = start(two_nodes, *words, PREEMPT_SECONDS="12")
    first.until(lambda: len(first.steps()) >= 1)
    two_nodes.run("scancel", str(first.job))
    second = start(two_nodes, *words, PREEMPT_SECONDS="12")
    second.over("done")
    assert f"job {first.job} has not ended yet" in second.log()
    assert second.steps() == list(range(1, 7)), "each step once, in order"
    assert second.reasons() == ["asked", "done"]


def test_of_two_jobs_that_are_submitted_at_once_one_trains_and_the_other_says_why_not(
    two_nodes: Cluster, start: Callable[..., Run]
) -> None:
    runs = [start(two_nodes, "steps=5", "wait_at=2", "step_seconds=0.1") for _ in range(2)]
    runs[0].until(lambda: "FAILED" in [two_nodes.state(run.job) for run in runs])
    (refused,) = [run for run in runs if two_nodes.state(run.job) == "FAILED"]
    (trained,) = [run for run in runs if run is not refused]
    (trained.run_dir / "go").touch()
    trained.over("done")
    assert trained.log().count("still runs in") == 1
    assert trained.steps() == list(range(1, 6)) and trained.reasons() == ["done"]


def test_the_chain_waits_for_room_on_a_full_disk(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=6", "step_seconds=0.1", "save_each=1", "full_at=3", RETRY_SECONDS="1")
    run.over("done")
    assert run.steps() == list(range(1, 7)) and run.reasons() == ["no space", "done"]


def test_what_runs_on_a_lost_node_ends_when_the_next_attempt_starts(
    two_nodes: Cluster, start: Callable[..., Run]
) -> None:
    run = start(two_nodes, "steps=9", "wait_at=2", "step_seconds=0.5", "save_each=1")
    run.until(lambda: len(run.steps()) >= 2)
    two_nodes.lose_node("n1")
    try:
        run.until(lambda: "on 1 node(s): n2" in run.log())
        run.over("done")
    finally:
        two_nodes.raise_node("n1")
        two_nodes.run("scontrol", "update", "nodename=n1", "state=resume")
    assert run.steps() == list(range(1, 10)), "each step once, in order"
    assert run.reasons() == ["node lost", "done"], "also where SLURM had not seen it when the attempt ended"
    run.until(lambda: not two_nodes.processes())


def test_each_task_of_an_array_is_a_run_with_a_folder_a_seed_and_a_chain(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    words = ("steps=5", "wait_at=2", "step_seconds=0.5", f"--output={tmp_path}/slurm-%j.log", "--array=3,4")
    run = start(two_nodes, *words, itself=True)
    tasks = [Run(two_nodes, tmp_path, run.job, f"run-seed{seed}") for seed in (3, 4)]
    for task in tasks:
        task.until(lambda task=task: len(task.steps()) >= 2)
    for seed in (3, 4):
        two_nodes.run("scancel", "--signal=USR1", "--batch", f"{run.job}_{seed}")
    for seed, task in zip((3, 4), tasks, strict=True):
        task.until(lambda task=task: (task.run_dir / "attempts.tsv").is_file() and task.reasons() == ["wall", "done"])
        assert task.steps() == list(range(1, 6)), "each step once, in order"
        logs = [path.read_text() for path in task.run_dir.rglob("node-*.log")]
        assert len(logs) == 2 and all(f"grpo.seed={seed}\n" in log for log in logs)
    assert not (tmp_path / "run").exists()


def test_inside_an_interactive_shell_the_run_trains_and_one_line_says_how_to_go_on(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """`salloc`, then `srun bash` in it: that step holds the job's CPUs. The shell's folder is not the project's."""
    start(one_node, "steps=2", "step_seconds=0.1").over("done")
    where = {"NEMO_ADA_SITE": str(tmp_path / "site.env"), "HERE": "train"}
    command = f"cd {tmp_path} && srun --nodes=1 --ntasks=1 bash {SCRIPT}"
    shown = one_node.run("salloc", "--quiet", "bash", "-c", f"{command} steps=4 step_seconds=0.1", **where)
    assert "ended: done, step 4 of 4" in shown
    stopped = one_node.run("salloc", "--quiet", "bash", "-c", f"{command} steps=9 lose_at=6", **where)
    assert "the same command in a new one goes on" in stopped


def test_a_job_shorter_than_the_signals_lead_says_so_and_trains(one_node: Cluster, start: Callable[..., Run]) -> None:
    """A direct sbatch has the lead of the script's header, and SLURM sends USR1 at once."""
    run = start(one_node, "steps=3", "step_seconds=0.1", options=("--time=1",), REQUEUE="none")
    run.until(lambda: not one_node.jobs())
    assert "the signal comes" in run.log()
    assert run.reasons() in (["done"], ["wall"])
