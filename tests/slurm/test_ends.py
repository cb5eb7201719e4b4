"""Why did a slot end? Each cause on a real SLURM, with the stand-in driver; only the user or the run ends the array.

1. The wall, a preemption by REQUEUE: the next slot goes on.
2. A lost node: the old driver ends, the next attempt does not meet its lock, and each step is made once. A prolog that
   fails costs a slot and no more.
3. A full disk: the next slot tries again.
4. scancel leaves the time to save that KillWait promises. A new submission waits for that save.
5. Of two arrays that start in one folder at once, one trains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chain import SCRIPT, Run
from cluster import Cluster

from tests.patience import PATIENCE

pytestmark = pytest.mark.slurm


@pytest.mark.slow  # a time limit has whole minutes
def test_a_step_longer_than_a_slot_meets_the_wall_and_the_run_ends_with_what_to_ask_for(
    one_node: Cluster, start: Callable[..., Run]
) -> None:
    """No step ends before the limit, so nothing is saved."""
    run = start(
        one_node, "step_seconds=600", "term=node", options=("--time=1", "--signal=B:USR1@5"), PREEMPT_SECONDS="5",
        MAX_WITHOUT_STEP="2",
    )  # fmt: skip
    run.over("no progress", seconds=3 * PATIENCE)
    assert run.reasons() == ["wall", "wall"] and "ask for more --time" in run.said_over()[3]
    run.gone()


def test_a_preemption_that_requeues_leaves_time_to_save_and_costs_a_slot(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    """The partition has PreemptMode=REQUEUE and no grace time: TERM, KillWait, KILL."""
    run = start(
        one_node, "steps=4", "step_seconds=3", "term=node", options=("--partition=again",), PREEMPT_SECONDS="10"
    )
    short = tmp_path / "urgent.sh"
    short.write_text("#!/bin/bash\ntrue\n")
    run.until(lambda: len(run.steps()) >= 1)
    one_node.submit(short, cwd=tmp_path, options=("--partition=urgent", "--exclusive", "--output=/dev/null"))
    run.over("done")
    assert run.steps() == list(range(1, 5)), "each step once, in order"
    assert run.reasons() == ["preempted", "done"]


def test_an_array_that_is_submitted_right_after_scancel_waits_for_the_save_and_goes_on_from_it(
    two_nodes: Cluster, start: Callable[..., Run]
) -> None:
    """The other node is free, so the new array starts while the old one saves."""
    words = ("steps=4", "step_seconds=3", "term=node")
    first = start(two_nodes, *words, PREEMPT_SECONDS="12")
    first.until(lambda: len(first.steps()) >= 1)
    two_nodes.run("scancel", str(first.job))
    second = start(two_nodes, *words, PREEMPT_SECONDS="12", RETRY_SECONDS="600")  # as it is without a site's word
    second.over("done")
    assert f"slot {first.job}_1 has not ended yet" in second.log()
    assert second.steps() == list(range(1, 5)), "each step once, in order"
    assert second.reasons() == ["asked", "done"]


def test_of_two_arrays_that_are_submitted_at_once_one_trains_and_the_other_says_why_not(
    two_nodes: Cluster, start: Callable[..., Run]
) -> None:
    runs = [start(two_nodes, "steps=5", "wait_at=2", "step_seconds=0.1") for _ in range(2)]
    runs[0].until(lambda: not all(run.left() for run in runs))
    (refused,) = [run for run in runs if not run.left()]
    (trained,) = [run for run in runs if run is not refused]
    (trained.run_dir / "go").touch()
    trained.over("done")
    assert trained.log().count(f"error: array {trained.job} has ") == 1
    assert trained.steps() == list(range(1, 6)) and trained.reasons() == ["done"]


def test_the_run_waits_for_room_on_a_full_disk(one_node: Cluster, start: Callable[..., Run]) -> None:
    run = start(one_node, "steps=6", "step_seconds=0.1", "save_each=1", "full_at=3")
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
    run.gone()


def test_a_prolog_that_fails_costs_a_slot_and_no_more(two_nodes: Cluster, start: Callable[..., Run]) -> None:
    (two_nodes.folder / "prolog-fails-n1").touch()
    try:
        run = start(two_nodes, "steps=3", "step_seconds=0.1")
        run.over("done")
    finally:
        (two_nodes.folder / "prolog-fails-n1").unlink()
        two_nodes.run("scontrol", "update", "nodename=n1", "state=resume")
    assert run.steps() == [1, 2, 3] and run.reasons() == ["done"] and int(run.current().split("_")[1]) > 1
    assert "on 1 node(s): n2" in run.log()


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


def test_a_slot_shorter_than_the_signals_lead_says_so_and_trains(one_node: Cluster, start: Callable[..., Run]) -> None:
    """A direct sbatch has the lead of the script's header, and SLURM sends USR1 at once."""
    run = start(one_node, "steps=3", "step_seconds=0.1", options=("--time=1", "--array=1"))
    run.gone()
    assert "the signal comes" in run.log()
    assert run.reasons() in (["done"], ["wall"])
