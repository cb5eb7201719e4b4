"""The same run with the CPU back end: real vLLM, Megatron-core and Ray under a real SLURM.

1. USR1 before the limit: the run saves, the next slot resumes and ends `done`; every step once.
2. The driver is killed in the middle of a step: the next slot goes on from the last save, and the metrics are those
   of the first run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chain import ROOT, Run
from cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

STEPS = 6


def settings(folder: Path, cache: Path) -> list[str]:
    """Overrides of a run that trains in seconds."""
    lines = [json.dumps({"prompt": f"{n:03d}=", "answer": max(f"{n:03d}")}) for n in range(1000)]
    (folder / "digits.jsonl").write_text("\n".join(lines))
    return [
        f"task.path={folder}/digits.jsonl",
        f"base.cache_dir={cache}",
        "base.steps=40",
        "grpo.num_prompts_per_step=16",
        f"grpo.max_num_steps={STEPS}",
        "grpo.val_period=0",
        "checkpointing.save_period=2",
        "policy.model.hidden_size=64",
        "policy.model.num_attention_heads=2",
    ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the base model is kept between the runs."""
    pytest.importorskip("ray")
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launch(start: Callable[..., Run], tmp_path: Path, cache: Path) -> Callable[[Cluster], Run]:
    """Submit the 7B script with the CPU back end in place of containers and GPUs."""

    def submit(cluster: Cluster) -> Run:
        return start(
            cluster,
            *settings(tmp_path, cache),
            CONFIG=str(ROOT / "configs" / "cpu" / "jsonl.yaml"),
            LAUNCH=f"{sys.executable} -m nemo_ada.cli train",
            START_SECONDS="1500",
            END_SECONDS="60",
        )

    return submit


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    clock = ("time", "second", "util")
    return [{k: v for k, v in json.loads(line).items() if not any(c in k for c in clock)} for line in lines]


def test_a_run_over_two_jobs_and_one_whose_driver_was_killed_are_the_same_run(
    one_node: Cluster, launch: Callable[[Cluster], Run]
) -> None:
    stopped = launch(one_node)
    stopped.until(lambda: len(records(stopped.run_dir)) >= 1)
    stopped.signal()
    stopped.over("done")
    assert stopped.attempts() == 2
    assert f"ended: done, step {STEPS} of {STEPS}" in stopped.log()
    expected = records(stopped.run_dir)
    assert [record["step"] for record in expected] == list(range(1, STEPS + 1))
    stopped.run_dir.rename(stopped.folder / "first")

    killed = launch(one_node)
    killed.until(lambda: len(records(killed.run_dir)) >= 3)
    os.kill(json.loads((killed.run_dir / "status.json").read_text())["pid"], signal.SIGKILL)
    killed.over("done")
    assert killed.attempts() == 2
    assert "ended: interrupted" in killed.log()
    assert records(killed.run_dir) == expected
    killed.until(lambda: not one_node.processes())  # Ray's agents notice a killed driver in their own time
