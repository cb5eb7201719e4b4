"""What a site does to a chain, on a real SLURM: commands that fail or take long, a suspension, a new limit, a
folder that is gone, a log that nobody keeps, exports of the user's shell.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Run
from cluster import Cluster, cluster, search_path, why_not

pytestmark = pytest.mark.slurm

FAILING = """#!/bin/bash
# Three of ten calls fail, one of them after it got through, and the first one of each command is slow.
turn=$(( $(cat {folder}/calls-{name} 2>/dev/null || echo {offset}) + 1 ))
echo $turn >{folder}/calls-{name}
case $((turn % 10)) in
  2) sleep {slow} ;;
  4 | 7) echo "{name}: error: Unspecified error" >&2; exit 1 ;;
  9) {real} "$@" >/dev/null; echo "{name}: error: Zero Bytes were transmitted or received" >&2; exit 1 ;;
esac
exec {real} "$@"
"""
COMMANDS = ("sbatch", "scontrol", "squeue", "scancel")


def failing(folder: Path, slow: int) -> str:
    """Stand-ins for SLURM's commands that fail now and then. A line of site.env that puts them in front."""
    for offset, name in enumerate(COMMANDS):
        path = folder / "bad" / name
        path.parent.mkdir(exist_ok=True)
        real = shutil.which(name, path=search_path())
        path.write_text(FAILING.format(folder=folder, name=name, real=real, slow=slow, offset=2 * offset))
        path.chmod(0o755)
    return f"{folder}/bad:{search_path()}"


@pytest.mark.slow  # two minutes and more: slow commands, growing waits
def test_a_chain_whose_slurm_fails_three_times_in_ten_and_is_slow_makes_each_step_once(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(two_nodes, "steps=60", "step_seconds=0.5", "save_each=1", PATH=failing(tmp_path, 20))
    for attempt in (1, 2, 3):
        run.until(lambda attempt=attempt: run.attempts() == attempt and len(run.ledger()) > attempt)
        made = len(run.steps())
        run.until(lambda made=made: len(run.steps()) >= made + 2)
        run.signal()
    run.over("done")
    assert run.steps() == list(range(1, 61)), "each step once, in order"
    assert run.reasons() == ["wall", "wall", "wall", "done"]
    jobs = [line for line in run.ledger() if line[0] != "over"]
    assert len({before for _, before in jobs}) == len(jobs), "no job has two that follow it"


def test_a_job_that_the_user_ends_ends_the_chain_wherever_its_log_goes(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    run = start(one_node, "steps=1000", "step_seconds=0.2", "term=node", options=("--output=/dev/null",))
    run.until(lambda: len(run.steps()) >= 2 and len(run.ledger()) == 2)
    one_node.run("scancel", run.current())
    run.over("asked")
    assert run.reasons() == ["asked"]


@pytest.mark.slow  # a pause of 65 s is the shortest that is no stall of the node
def test_a_suspended_job_is_no_stalled_one(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=40", "step_seconds=0.5", "save_each=1", STALL_SECONDS="20", LIMIT_SECONDS="1")
    run.until(lambda: len(run.steps()) >= 2)
    one_node.run("scontrol", "suspend", str(run.job))
    time.sleep(65)
    one_node.run("scontrol", "resume", str(run.job))
    one_node.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=06:00:00")
    run.over("done")
    assert run.reasons() == ["done"] and "watchdog" not in run.log() and "was suspended for" in run.log()
    assert "the job now ends at" in run.log()


def test_a_folder_that_is_gone_is_not_started_again_in_silence(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=1000", "step_seconds=0.2", "save_each=1")
    run.until(lambda: len(run.steps()) >= 2 and len(run.ledger()) == 2)
    follower = run.ledger()[1][0]
    one_node.run("scontrol", "hold", follower)
    run.signal()
    run.ends("COMPLETED")
    run.until(lambda: not one_node.processes())
    shutil.rmtree(run.run_dir)
    one_node.run("scontrol", "release", follower)
    run.until(lambda: one_node.state(int(follower)) == "FAILED")
    assert "is gone: restore it" in run.log() and not (run.run_dir / "steps.txt").exists()


def test_foreign_shell_code_and_exports_of_the_users_shell_change_nothing(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """A `module` function, an unset variable, a failing grep, a last line that is false, and exported names of ours."""
    foreign = """module() { false; }
module load x
prompt="$PS1$NOBODY"
dir=/nowhere me=nobody head=none
echo loaded
echo x | grep -q y
[ -d /nowhere ] && cd /nowhere"""
    mine = {"JOB": "7", "TOOL": "rm", "CHAIN": "old", "STALL": "yes", "NODES": "5"}
    run = start(one_node, "steps=3", "step_seconds=0.1", extra=foreign, shell=mine)
    run.over("done")
    assert run.steps() == [1, 2, 3] and run.current() == str(run.job)
    assert "loaded" in next(run.run_dir.glob("attempts/*/node-n1.log")).read_text()


def test_attempts_whose_step_alone_is_ended_are_bounded(one_node: Cluster, start: Callable[..., Run]) -> None:
    """As a reaper of idle GPUs does: the batch script gets no signal, so no reason speaks against another attempt."""
    run = start(one_node, "step_seconds=600", "term=node", MAX_WITHOUT_STEP="2", RETRY_SECONDS="1", PREEMPT_SECONDS="1")
    beat = run.run_dir / "heartbeat"
    for attempt in (1, 2):
        run.until(lambda attempt=attempt: run.attempts() == attempt and beat.exists())
        time.sleep(1)
        one_node.run("scancel", "--signal=TERM", f"{run.current()}.0")
        run.until(lambda attempt=attempt: len([reason for reason in run.reasons() if reason != "?"]) >= attempt)
        beat.unlink(missing_ok=True)
    run.over("preempted", "own failure")  # the second one where TERM came before node.sh could note it
    assert run.attempts() == 2


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ({"SLURM_GRES": "gpu:99"}, "generic resource|gres"),
        ({"SLURM_TRES_PER_TASK": "gres:none:1", "SLURM_GPUS_PER_TASK": "99"}, "tres|generic resource|gpus"),
        ({"SLURM_MEM_PER_CPU": "900000"}, "memory"),
    ],
    ids=["gres", "tres", "memory"],
)
def test_a_step_that_slurm_never_takes_is_bounded_and_its_message_is_kept(
    one_node: Cluster, start: Callable[..., Run], asks: dict[str, str], said: str
) -> None:
    """site.env, or the site's own variables, ask for more than the job has."""
    run = start(one_node, "steps=2", MAX_WITHOUT_STEP="2", RETRY_SECONDS="1", **asks)
    run.over("own failure")
    assert run.attempts() == 2 and run.steps() == []
    table = (run.run_dir / "attempts.tsv").read_text()
    assert len(re.findall(f"own failure\t.*({said})", table, re.I)) == 2, table


ONE_JOB = """
function slurm_job_submit(asked, partitions, user)
  for _, job in pairs(slurm.jobs) do
    if job.user_id == user and (job.job_state % 256 < 3 or job.job_state >= 32768) then  -- also one that is ending
      slurm.log_user("Job violates accounting/QOS policy (job submit limit)")
      return 2050
    end
  end
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


def test_where_a_second_job_is_refused_the_submission_says_so_and_the_job_is_requeued(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """As MaxSubmitJobs=1 of an account does, which needs a data base. Here the site's own rule refuses."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with cluster(tmp_path / "c", rule=ONE_JOB) as running:
        run = start(
            running, "steps=5", "wait_at=2", "step_seconds=0.1", f"--output={tmp_path}/slurm-%j.log", itself=True
        )
        assert "SLURM does not take a second job beside this one" in run.printed
        assert "job submit limit" in run.printed
        run.until(lambda: len(run.steps()) >= 2)
        run.signal()
        run.over("done")
        assert run.steps() == list(range(1, 6)), "each step once, in order"
        assert run.reasons() == ["wall", "done"] and run.ledger() == [[str(run.job), "-"], ["over", "done"]]


def test_a_second_submission_of_a_run_that_waits_or_runs_is_refused(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    words = ("steps=1000", "step_seconds=0.2", f"--output={tmp_path}/slurm-%j.log")
    run = start(one_node, *words, itself=True)
    run.until(lambda: len(run.ledger()) == 2)
    with pytest.raises(Exception, match="returned non-zero exit status 2"):
        start(one_node, *words, itself=True)
    waiting = run.ledger()[1][0]
    one_node.run("scancel", waiting)
    run.signal()
    run.over("asked")
    assert "the job that waited was cancelled, so the chain ends" in run.log()
    assert os.access(run.run_dir / "submission", os.R_OK)
