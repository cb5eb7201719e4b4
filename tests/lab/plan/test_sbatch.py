"""What a configuration asks of SLURM."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from nemo_ada.lab.plan.command import PlanOptions
from nemo_ada.lab.plan.sbatch import job_fits, sbatch_options

CONFIGS = Path(__file__).parents[3] / "configs"
QWEN_32B, GRPO8 = CONFIGS / "qwen2.5-32b.yaml", str(CONFIGS / "methods" / "grpo8.yaml")
needs_checkout = pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set"
)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three simulated steps say which options there are; 24 say more about their values."""
    monkeypatch.setattr("nemo_ada.lab.plan.sbatch.PlanOptions", partial(PlanOptions, steps=3))


def test_a_run_on_the_cpu_gets_its_name_and_one_node() -> None:
    options = sbatch_options(CONFIGS / "cpu" / "mini_sudoku.yaml", ["run_dir=runs/mine"])
    assert options == ["--job-name=mine", "--nodes=1"]
    assert list(job_fits(CONFIGS / "cpu" / "mini_sudoku.yaml", [], nodes="2", gpus="8")) == []


@needs_checkout
def test_name_nodes_gpus_time_and_signal_come_from_the_configuration() -> None:
    short, long = (sbatch_options(QWEN_32B, [GRPO8, *words]) for words in ([], ["cluster.num_nodes=8"]))
    assert short[:3] == ["--job-name=qwen2.5-32b-grpo8", "--nodes=4", "--gpus-per-node=8"]
    assert long[1] == "--nodes=8"
    assert [option.partition("=")[0] for option in short[3:]] == ["--time", "--signal"]
    assert sbatch_options(QWEN_32B, [], "10:00:00")[3] == "--time=10:00:00"


@needs_checkout
@pytest.mark.parametrize(
    ("nodes", "gpus", "levels"),
    [("4", "h100:8", "ok ok"), ("1", "8", "error ok"), ("2-4", "", ""), ("", "4", "error")],
)
def test_a_job_with_other_nodes_or_gpus_than_the_configurations_does_not_fit(
    nodes: str, gpus: str, levels: str
) -> None:
    found = list(job_fits(QWEN_32B, [], nodes=nodes, gpus=gpus))
    assert " ".join(finding.level for finding in found) == levels
    for finding in found:
        if finding.level == "error":
            assert "slurm/train.sh" in finding.message and finding.key in ("--nodes", "--gpus-per-node")
