"""The short fault matrix and the short soak: nothing is lost (`make faults` and `make soak` are the long ones)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults.drill import Drill
from tests.faults.matrix import DAMAGES, QUICK, play
from tests.faults.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_survives_one_fault_of_each_kind():
    play(QUICK, list(DAMAGES)[1:2], print)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_random_faults_loses_nothing():
    soak(1.0, seed=1, compare=False)


@pytest.mark.parametrize("change", ["nothing", "seconds", "metric", "step", "bit"])
def test_the_drill_sees_what_differs_from_the_undisturbed_run(change):
    def write(folder, changed):
        records = [{"step": step, "train/loss": 0.5, "time/step": 1.0} for step in (1, 2)]
        weights = {"w": np.ones(3, np.float32)}
        if changed == "seconds":
            records[1]["time/step"] = 2.0
        elif changed == "metric":
            records[1]["train/loss"] = np.nextafter(0.5, 1)
        elif changed == "step":
            records.append(records[1])
        elif changed == "bit":
            weights["w"][1] = np.nextafter(np.float32(1), np.float32(2))
        learner = folder / "checkpoints" / "step_000002" / "learner"
        learner.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.safetensors"):
            save_file(weights, learner / name)
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))

    with Drill() as drill:
        write(drill.run_dir, change)
        whole = drill.folder / "whole"
        write(whole, "nothing")
        if change in ("nothing", "seconds"):
            drill.compare(whole, 2)
        else:
            with pytest.raises(AssertionError, match="differs from the undisturbed"):
                drill.compare(whole, 2)
