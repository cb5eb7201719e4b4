"""The short fault matrix: one fault of each kind, one run, the same bits in the end (`make faults` plays all)."""

from __future__ import annotations

import pytest

from tests.faults.drill import Drill, Fault
from tests.faults.matrix import DAMAGES, QUICK, play


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_survives_one_fault_of_each_kind():
    play(QUICK, list(DAMAGES)[1:2], print)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_drill_sees_a_difference_from_the_undisturbed_run():
    with Drill("policy.megatron_cfg.tensor_model_parallel_size=1", "grpo.max_num_steps=10000") as drill:
        drill.attempt(Fault("driver killed", "update"))
        metrics = drill.run_dir / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"step": 1,', '"step": 1, "train/loss_": 0,', 1))
        with pytest.raises(AssertionError, match="differs from the undisturbed"):
            drill.finish(3)
