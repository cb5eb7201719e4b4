"""What a configuration asks of SLURM."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.lab.plan.command import PlanOptions
from nemo_ada.lab.plan.sbatch import SPARE, check_job, choose_sbatch_options

CONFIGS = Path(__file__).parents[3] / "configs"
QWEN_32B, GRPO8 = CONFIGS / "qwen2.5-32b.yaml", str(CONFIGS / "methods" / "grpo8.yaml")
needs_checkout = pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set"
)


FEW = PlanOptions("", steps=3)  # which options there are; more steps say more about their values


def test_a_run_on_the_cpu_gets_its_name_and_one_node() -> None:
    options = choose_sbatch_options(CONFIGS / "cpu" / "mini_sudoku.yaml", ["run_dir=runs/mine"])
    assert options == ["--job-name=mine", "--nodes=1"]
    assert list(check_job(CONFIGS / "cpu" / "mini_sudoku.yaml", [], nodes="2", gpus="8")) == []


@needs_checkout
def test_name_nodes_gpus_time_and_signal_come_from_the_configuration() -> None:
    short, long = (
        choose_sbatch_options(QWEN_32B, [GRPO8, *words], options=FEW) for words in ([], ["cluster.num_nodes=8"])
    )
    assert short[:3] == ["--job-name=qwen2.5-32b-grpo8", "--nodes=4", "--gpus-per-node=8"]
    assert long[1] == "--nodes=8"
    assert [option.partition("=")[0] for option in short[3:]] == ["--time", "--signal", "--array"]
    assert re.fullmatch(r"--array=1-\d+%1", short[5]) and int(short[5][10:-2]) > SPARE
    assert choose_sbatch_options(QWEN_32B, [], ["10:00:00"], FEW)[3] == "--time=10:00:00"


@needs_checkout
def test_a_longer_cold_start_asks_for_a_longer_job() -> None:
    short, long = (
        choose_sbatch_options(QWEN_32B, [], options=replace(FEW, cold_start=x))[3] for x in (60.0, 6 * 3600.0)
    )
    assert short == "--time=04:00:00" and long == "--time=1-00:00:00"


@pytest.mark.parametrize("words", ["--json", "--price 3", "--step-seconds 100"])
def test_an_option_that_sbatch_cannot_use_is_refused(words: str) -> None:
    done = CliRunner().invoke(app, ["plan", str(CONFIGS / "cpu" / "mini_sudoku.yaml"), "--sbatch", *words.split()])
    assert done.exit_code and words.split()[0] in str(done.exception or done.output)


@needs_checkout
@pytest.mark.parametrize(
    ("nodes", "gpus", "levels"),
    [("4", "h100:8", "ok ok"), ("1", "8", "error ok"), ("2-4", "", ""), ("", "4", "error")],
)
def test_a_job_with_other_nodes_or_gpus_than_the_configurations_does_not_fit(
    nodes: str, gpus: str, levels: str
) -> None:
    found = list(check_job(QWEN_32B, [], nodes=nodes, gpus=gpus))
    assert " ".join(finding.level for finding in found) == levels
    for finding in found:
        if finding.level == "error":
            assert "slurm/train.sh" in finding.message and finding.key in ("--nodes", "--gpus-per-node")
