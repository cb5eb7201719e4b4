"""What a site does to a run, on a real SLURM: commands that fail or take long, a suspension, a new limit, a folder that
is gone or cannot be written, slots that are held or cancelled, a limit on jobs, exports of the user's shell.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
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
def test_a_run_whose_slurm_fails_three_times_in_ten_and_is_slow_makes_each_step_once(
    two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(two_nodes, "steps=60", "step_seconds=0.5", "save_each=1", PATH=failing(tmp_path, 20))
    for attempt in (1, 2, 3):
        run.until(lambda attempt=attempt: run.attempts() == attempt)
        made = len(run.steps())
        run.until(lambda made=made: len(run.steps()) >= made + 2)
        run.signal()
    run.over("done")
    assert run.steps() == list(range(1, 61)), "each step once, in order"
    assert run.reasons() == ["wall", "wall", "wall", "done"]


@pytest.mark.slow  # twenty starts
def test_a_run_of_twenty_slots_makes_each_step_once(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """Slots that save, are cancelled, or whose driver is killed, with commands of SLURM that fail now and then."""
    run = start(one_node, "steps=900", "step_seconds=0.3", "save_each=1", "term=node", PATH=failing(tmp_path, 1))
    for slot in range(1, 21):
        run.until(lambda slot=slot: run.attempts() == slot)
        made = len(run.steps())
        run.until(lambda made=made: len(run.steps()) >= made + 2)
        if slot == 20:
            (run.run_dir / "STOP").touch()
        elif slot % 3 == 0:
            one_node.run("scancel", run.current())
        elif slot % 3 == 1:
            run.signal()
        else:
            os.kill(json.loads((run.run_dir / "status.json").read_text())["pid"], signal.SIGKILL)
    run.over("asked")
    made = run.steps()
    assert sorted(set(made)) == list(range(1, max(made) + 1)), "no step is lost"
    assert len(made) - len(set(made)) <= 6, "a killed driver alone repeats the step that it had not saved"
    assert set(run.reasons()) == {"wall", "asked", "own failure"}


@pytest.mark.slow  # a pause of 65 s is the shortest that is no stall of the node
def test_a_suspended_slot_is_no_stalled_one(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=40", "step_seconds=0.5", "save_each=1", STALL_SECONDS="20", LIMIT_SECONDS="1")
    run.until(lambda: len(run.steps()) >= 2)
    one_node.run("scontrol", "suspend", run.current())
    time.sleep(65)
    one_node.run("scontrol", "resume", run.current())
    one_node.run("scontrol", "update", f"JobId={run.current()}", "TimeLimit=06:00:00")
    run.over("done")
    assert run.reasons() == ["done"] and "watchdog" not in run.log() and "was suspended for" in run.log()
    assert "the job now ends at" in run.log()


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_a_folder_that_is_gone_or_made_anew_is_not_started_again_in_silence(
    one_node: Cluster, start: Callable[..., Run], anew: bool
) -> None:
    run = start(one_node, "steps=1000", "step_seconds=0.2", "save_each=1")
    run.until(lambda: len(run.steps()) >= 2)
    one_node.run("scontrol", "hold", str(run.job))  # else the next slot goes on
    run.signal()
    run.until(lambda: run.reasons() == ["wall"] and not run.left("RUNNING", "COMPLETING"))
    shutil.rmtree(run.run_dir)
    if anew:
        (run.run_dir / "attempts").mkdir(parents=True)
    one_node.run("scontrol", "release", f"{run.job}_[2-20]")
    run.gone()
    assert "is gone: restore it" in run.log() and not (run.run_dir / "steps.txt").exists()


def test_slots_whose_reservation_is_deleted_wait_and_say_what_to_do(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    begin = ("scontrol", "create", "reservation", "ReservationName=ours", "StartTime=now", "Duration=60")
    one_node.run(*begin, "Nodes=n1", "Users=root")
    words = ("steps=5", "wait_at=2", "step_seconds=0.1")
    run = start(one_node, *words, "--reservation=ours", "--begin=now+3600", itself=True)
    one_node.run("scontrol", "update", "ReservationName=ours", "EndTime=now+2")  # one in use cannot be deleted before
    run.until(lambda: "reservation" in str(run.status()["remedy"]))
    shown = run.status()
    assert shown["state"] == "waiting" and shown["waiting"] == 20, shown
    assert shown["queue"]["state"] == "RESV_DEL_HOLD" or "Reservation" in shown["queue"]["reason"], "SLURM's own word"
    for word in ("ReservationName=", "StartTime=now"):
        one_node.run("scontrol", "update", f"JobId={run.job}", word)
    one_node.run("scontrol", "release", str(run.job))
    run.until(lambda: len(run.steps()) >= 2)
    (run.run_dir / "go").touch()
    run.over("done")


def test_slots_that_would_run_at_once_run_one_after_another(two_nodes: Cluster, start: Callable[..., Run]) -> None:
    """Without %1 the second slot meets the first one on the other node."""
    run = start(two_nodes, "steps=5", "wait_at=2", "step_seconds=0.1", options=("--array=1-4",))
    run.until(lambda: "runs, and a run has one at a time (--array=1-N%1)" in run.log() and len(run.steps()) >= 2)
    run.until(lambda: len(run.left("RUNNING")) == 1 and not run.left("COMPLETING"))
    assert run.left("PENDING"), "the others wait now"
    run.signal()
    run.over("done")
    assert run.steps() == list(range(1, 6)) and run.reasons() == ["wall", "done"]


def test_no_slot_submits_anything(one_node: Cluster, start: Callable[..., Run], tmp_path: Path) -> None:
    """So a site whose SLURM refuses every further job ends no run, and leaves no GPUs idle."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sbatch").write_text(f"#!/bin/bash\ntouch {tmp_path}/asked\nexit 1\n")
    (tmp_path / "bad" / "sbatch").chmod(0o755)
    words = ("steps=5", "wait_at=2", "step_seconds=0.1")
    run = start(one_node, *words, PATH=f"{tmp_path}/bad:{search_path()}")
    run.until(lambda: len(run.steps()) >= 2)
    run.signal()
    run.over("done")
    assert run.reasons() == ["wall", "done"] and not (tmp_path / "asked").exists()


def test_slots_that_wait_for_whatever_reason_are_waiting_and_a_cancelled_one_is_not_missed(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    run = start(one_node, "steps=9", "wait_at=2", "step_seconds=0.1", options=("--array=1-5%1",))
    run.until(lambda: len(run.steps()) >= 2)
    one_node.run("scontrol", "hold", str(run.job))
    one_node.run("scancel", f"{run.job}_3")
    run.signal()
    run.until(lambda: run.reasons() == ["wall"] and not run.left("RUNNING", "COMPLETING"))
    shown = run.status()
    assert shown["state"] == "waiting" and shown["waiting"] == 3 and "Held" in shown["queue"]["reason"]
    assert shown["remedy"] == f"it is held: scontrol release {run.job} lets it start"
    assert shown["ended"].get(f"{run.job}_1") == "COMPLETED", "SLURM's own word"
    one_node.run("bash", "-c", f"scontrol release {run.job} || true")  # it complains of the slots that have ended
    run.over("done")
    assert run.steps() == list(range(1, 10)) and run.status()["state"] == "done"


def test_a_run_without_slots_says_that_a_new_submission_goes_on_and_it_does(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    words = ("steps=9", "wait_at=2", "step_seconds=0.1")
    run = start(one_node, *words, options=("--array=1",))
    run.until(lambda: len(run.steps()) >= 2)
    run.signal()
    run.gone()
    assert run.status()["state"] == "no slot is left: submit again"
    again = start(one_node, *words)
    again.over("done")
    assert again.steps() == list(range(1, 10))


def test_a_run_folder_that_cannot_be_written_for_a_while_costs_slots_and_no_more(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """Root may write everywhere, so a file stands where the folder of the attempts was."""
    run = start(one_node, "steps=9", "step_seconds=0.3", "save_each=1")
    run.until(lambda: len(run.steps()) >= 2)
    (run.run_dir / "attempts").rename(tmp_path / "away")
    (run.run_dir / "attempts").touch()
    run.signal()
    run.until(lambda: "attempts" in run.log() and "cannot be written" in run.log())
    (run.run_dir / "attempts").unlink()
    (tmp_path / "away").rename(run.run_dir / "attempts")
    run.over("done")
    assert run.steps() == list(range(1, 10)), "the healthy step saved, and a later slot went on"


def test_a_site_env_that_is_broken_for_a_while_costs_slots_and_no_more(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(one_node, "steps=9", "wait_at=2", "step_seconds=0.1", shell={"RETRY_SECONDS": "1"})
    run.until(lambda: len(run.steps()) >= 2)
    good = (tmp_path / "site.env").read_text()
    (tmp_path / "site.env").write_text("CONTAINER =\n")
    run.signal()
    run.until(lambda: "the slots that wait start in 1 s: mend it until then" in run.log())
    (tmp_path / "site.env").write_text(good)
    run.over("done")
    assert run.steps() == list(range(1, 10)) and run.reasons() == ["wall", "done"]


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
    mine = {"SLOT": "7", "TOOL": "rm", "ARRAY": "old", "STALL": "yes", "NODES": "5"}
    run = start(one_node, "steps=3", "step_seconds=0.1", extra=foreign, shell=mine)
    run.over("done")
    assert run.steps() == [1, 2, 3] and run.current() == f"{run.job}_1"
    assert "loaded" in next(run.run_dir.glob("attempts/*/node-n1.log")).read_text()


def test_attempts_whose_step_alone_is_ended_are_bounded(one_node: Cluster, start: Callable[..., Run]) -> None:
    """As a reaper of idle GPUs does: the batch script gets no signal, so no reason speaks against another attempt."""
    run = start(one_node, "step_seconds=600", "term=node", MAX_WITHOUT_STEP="2", PREEMPT_SECONDS="1")
    beat = run.run_dir / "heartbeat"
    for attempt in (1, 2):
        run.until(lambda attempt=attempt: run.attempts() == attempt and beat.exists())
        time.sleep(1)
        one_node.run("scancel", "--signal=TERM", f"{run.current()}.0")
        run.until(lambda attempt=attempt: len([reason for reason in run.reasons() if reason != "?"]) >= attempt)
        beat.unlink(missing_ok=True)
    run.over("no progress")
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
    run = start(one_node, "steps=2", MAX_WITHOUT_STEP="2", **asks)
    run.over("no progress")
    assert run.attempts() == 2 and run.steps() == []
    table = (run.run_dir / "attempts.tsv").read_text()
    assert len(re.findall(f"own failure\t.*({said})", table, re.I)) == 2, table


FEW_JOBS = """
function slurm_job_submit(asked, partitions, user)
  if asked.array_inx ~= nil and asked.array_inx ~= "1" and asked.array_inx ~= "1-2%1" then
    slurm.log_user("Job violates accounting/QOS policy (job submit limit)")
    return 2050
  end
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


def test_where_so_many_slots_are_refused_the_submission_says_so_and_takes_fewer(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """By the site's own rule. test_accounts.py has MaxSubmitJobs."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with cluster(tmp_path / "c", rule=FEW_JOBS) as running:
        words = ("steps=5", "wait_at=2", "step_seconds=0.1")
        run = start(running, *words, itself=True)
        assert "job submit limit" in run.printed and "SLURM refuses 20 slots for this run" in run.printed
        assert "and takes 2" in run.printed and "a new submission goes on" in run.printed
        for _ in range(2):
            made = run.attempts()
            run.until(lambda: len(run.steps()) >= 2)
            run.signal()
            run.until(lambda made=made: run.attempts() > made or not run.left())
        run.over("done")
        assert run.steps() == list(range(1, 6)), "each step once, in order"


def test_a_second_submission_of_a_run_that_waits_or_runs_is_refused(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    words = ("steps=1000", "step_seconds=0.2")
    run = start(one_node, *words, itself=True)
    with pytest.raises(Exception, match="returned non-zero exit status 2"):
        start(one_node, *words, itself=True)
    run.until(lambda: len(run.steps()) > 2)
    with pytest.raises(Exception, match="returned non-zero exit status 2"):
        start(one_node, *words, itself=True)
    one_node.run("scancel", str(run.job))
    run.gone()
    assert run.attempts() == 1 and not run.said_over()


def test_a_queue_that_slurm_has_lost_is_said_and_a_new_submission_goes_on(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """SLURM ends what runs without a job that it knows, and has no slot that waits any more."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with cluster(tmp_path / "c") as running:
        words = ("steps=6", "wait_at=3", "step_seconds=0.1", "save_each=1")
        run = start(running, *words)
        run.until(lambda: len(run.steps()) >= 3)
        running.forget_jobs()
        run.until(lambda: not running.processes())
        told = run.status()
        assert (told["state"], told["saved_step"]) == ("no slot is left: submit again", 3)
        second = start(running, *words)
        second.over("done")
        assert second.steps() == list(range(1, 7)), "each step once, in order"
        assert second.reasons() == ["killed", "done"]
