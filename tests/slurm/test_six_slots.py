"""A run with everything in it: a wall, a preemption, a lost node, a full disk and a silent controller. Each step of
the run is made once, `nemo-ada status` tells the story, and the undisturbed slot made what `plan` says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chain import Run
from cluster import Cluster

from nemo_ada.lab.plan.forecast import Time
from nemo_ada.lab.plan.job_slots import plan_slots
from nemo_ada.lab.plan.planned_run import Schedule

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

STEPS, STEP_SECONDS, SLOT_SECONDS, SILENT_SECONDS = 400, 0.5, 120.0, 40.0


def test_six_slots_make_each_step_once(two_nodes: Cluster, start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(
        two_nodes, f"steps={STEPS}", f"step_seconds={STEP_SECONDS}", "save_each=1", "term=node", "full_at=230",
        options=("--partition=again", "--time=2", "--signal=B:USR1@30"), PREEMPT_SECONDS="10", RETRY_SECONDS="1",
        MAX_WITHOUT_STEP="6",
    )  # fmt: skip
    urgent = tmp_path / "urgent.sh"
    urgent.write_text("#!/bin/bash\ntrue\n")

    def reaches(step: int) -> None:
        run.until(lambda: len(run.steps()) >= step)

    # 1: nothing happens until the end of the slot
    run.until(lambda: run.attempts() == 2)
    first_slot = len(run.steps())
    # 2: another job takes the nodes
    reaches(first_slot + 10)
    two_nodes.submit(
        urgent, cwd=tmp_path, options=("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    )
    run.until(lambda: run.attempts() == 3)
    # 3: the node is lost
    reaches(len(run.steps()) + 10)
    node = two_nodes.run("squeue", "-h", "-t", "R", "-j", f"{run.job},{run.job}", "-o", "%N").strip()
    two_nodes.lose_node(node)
    try:
        run.until(lambda: run.attempts() == 4)
    finally:
        two_nodes.raise_node(node)
        two_nodes.run("scontrol", "update", f"nodename={node}", "state=resume")
    # 4: the disk is full at step 230
    run.until(lambda: "no space" in run.reasons())
    # 5: the controller is silent when the slot ends
    reaches(260)
    with two_nodes.silent_controller():
        os.kill(two_nodes.batch_script(), signal.SIGUSR1)
        time.sleep(SILENT_SECONDS)
    assert run.status()["waiting"] > 0
    # 6 and what follows: to the end
    run.over("done")
    assert run.steps() == list(range(1, STEPS + 1)), "each step once, in order"
    reasons = run.reasons()
    assert {"wall", "preempted", "node lost", "no space", "done"} <= set(reasons), reasons
    assert 6 <= len(reasons) <= 9, "no attempt ends early: each has the time and the signal of the first"

    shown = subprocess.run(
        [str(Path(sys.executable).parent / "nemo-ada"), "status", str(run.run_dir)],
        env={**two_nodes.env, "PATH": f"{Path(sys.executable).parent}:{two_nodes.env['PATH']}"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    print(shown)
    assert f"{STEPS} of {STEPS}" in shown
    step, nothing = Time(STEP_SECONDS, STEP_SECONDS, 1.5 * STEP_SECONDS, "known"), Time(0.0, 0.0, 0.0, "known")
    forecast: Any = SimpleNamespace(step=step, save=nothing, evaluation=nothing)
    schedule = Schedule(steps=STEPS, val_period=0, val_samples=0, save_period=1, save_seconds=0.0)
    planned = plan_slots(forecast, schedule, seconds=SLOT_SECONDS, cold_start=5.0, gpus=8)
    print(json.dumps({"slot": first_slot, "plan": planned.steps, "at least": planned.guaranteed, "reasons": reasons}))
    assert first_slot >= planned.guaranteed
