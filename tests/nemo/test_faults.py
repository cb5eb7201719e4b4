"""A run of `nemo-ada train` with NeMo-RL's real set-up (launch_driver.py), struck in every phase of a step.

1. The driver is killed in one phase after another, each time in the first step that it had not saved.
2. The Ray head dies under the driver: the attempt ends with an error, the next slot may go on.
3. A worker of the engine dies: its responses fail, and the attempt ends with the code for a lost process.
4. The environment's process dies: Ray starts another one, and the run does not even stop.

In the end the run equals one that nothing happened to: records, evaluations, weights; no process and no unfinished
checkpoint is left.
"""

from __future__ import annotations

import pytest
from nemo_support.lab import KILLED, picked, same_weights

from nemo_ada.run.job_control import EXIT_DONE, EXIT_LOST

pytestmark = [pytest.mark.nemo_rl, pytest.mark.slow, pytest.mark.timeout(1800)]

PHASES = ("refit", "sampling", "scoring", "log-probabilities", "update", "evaluation", "save")
STEPS = 16  # some are left when the Ray head dies: the driver notices after about 10 s
OVERRIDES = (f"grpo.max_num_steps={STEPS}", "grpo.val_period=1", "checkpointing.save_period=1")


def test_a_run_that_is_struck_in_every_phase_is_the_undisturbed_run(lab):
    struck = lab.folder / "struck"

    def attempt(kind, phase):
        return {
            "arguments": lab.arguments("struck", *OVERRIDES),
            "fault": {"kind": kind, "phase": phase, "after": 1},
            "own_ray": kind != "driver killed",
        }

    for phase in PHASES:
        code, _, told = lab.launch(attempt("driver killed", phase))
        assert code == KILLED, (phase, told[-2000:])
        assert lab.status("struck")["state"] == "running"
    code, _, told = lab.launch(attempt("Ray head killed", "update"))
    assert code not in (EXIT_DONE, KILLED), told[-2000:]
    assert lab.status("struck")["state"] in ("running", "interrupted")
    code, codes, told = lab.launch(
        attempt("environment killed", "update"), {"arguments": lab.arguments("whole", *OVERRIDES)}
    )
    assert (code, codes) == (EXIT_DONE, [EXIT_DONE, EXIT_DONE]), told[-2000:]

    steps, scores = picked(lab.folder / "whole")
    assert [line[0] for line in steps] == list(range(1, STEPS + 1))
    assert picked(struck) == (steps, scores)
    assert same_weights(struck, lab.folder / "whole", STEPS)
    assert not list((struck / "checkpoints").glob("tmp_*"))


def test_a_dead_engine_is_a_lost_process_and_the_next_attempt_goes_on(lab):
    """NeMo-RL's rollouts print the engine's error and return responses without an answer."""
    short = lab.arguments("lost", "grpo.max_num_steps=3", "checkpointing.save_period=1")
    fault = {"kind": "engine killed", "phase": "sampling", "after": 1}
    code, _, told = lab.launch({"arguments": short, "fault": fault, "own_ray": True})
    assert code == EXIT_LOST, told[-2000:]
    assert "vLLM worker 0 of 1 is lost" in told and lab.status("lost")["state"] == "interrupted"
    assert lab.launch({"arguments": short})[0] == EXIT_DONE
