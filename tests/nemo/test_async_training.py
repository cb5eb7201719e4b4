"""Reinforce-Ada inside the real async_grpo_train: its collector, its replay buffer, its loop (nemo_support/ahead.py).

1. Steps train on complete groups with the metrics of synchronous training; caps hold; versions of weights are counted.
2. A resumed run trains on every prompt once: what was in the buffer is kept, what was in flight is drawn again.
3. A group that hangs is given up and wedges no step; an error of a group ends the run with its message.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress

import psutil
import pytest

from nemo_ada.errors import FailedResponsesError, ProcessLostError

pytestmark = [pytest.mark.nemo_rl, pytest.mark.slow]

CAP = 24
BALANCE = {
    "preset": "ada_seq_balance",
    "sampling": {"wave_size": 4, "max_responses": 16},
    "budget": {"max_samples": CAP},
}


@pytest.fixture
def run(harness, tmp_path):
    """run(steps, ...): (record, prompt ids of each step); NeMo-RL's names must be as before."""
    ahead = importlib.import_module("nemo_support.ahead")
    actors = importlib.import_module("nemo_rl.algorithms.async_utils")

    def train(steps, ada=BALANCE, changes=None, trained=None, **options):
        trained = [] if trained is None else trained

        before = dict(vars(actors))
        overrides = {**harness.OURS, "reinforce_ada": ada, **(changes or {})}
        try:
            record = ahead.run_async(tmp_path / "run", steps, overrides, hooks=ahead.noting(trained), **options)
        finally:
            assert all(vars(actors)[name] is value for name, value in before.items())
        return record, trained

    return train


@pytest.mark.parametrize("in_flight", [False, True], ids=["drained", "in flight"])
def test_steps_train_on_adaptive_groups_within_their_caps(run, in_flight):
    changes = {"grpo.async_grpo.in_flight_weight_updates": in_flight}
    record, trained = run(4, changes=changes)
    steps = record.trained
    assert sorted(steps) == [1, 2, 3, 4] and [pools[0].step for pools in trained] == [0, 1, 2, 3]
    for numbers in steps.values():
        assert math.isfinite(numbers["train/loss"])
        assert 16 <= numbers["train/ada/samples_drawn"] <= CAP
        assert 0 <= numbers["train/ada/pools_mixed_versions"] <= 1
        assert 0 <= numbers["train/ada/response_age"] <= 1
        assert numbers["train/ada/groups_given_up"] == 0
    prompts = Counter(pool.prompt_id for pools in trained for pool in pools)
    assert len(prompts) == 16 and set(prompts.values()) == {1}  # one epoch, every prompt once
    assert all(batch["advantages"].abs().sum() > 0 for batch in record.batches)


class Killed(Exception):
    """The test ends a run here."""


def test_a_resumed_run_trains_on_every_prompt_once(run):
    def kill(step):
        if step == 2:
            raise Killed

    trained = []
    with pytest.raises(Killed):
        run(4, before_train=kill, trained=trained)
    record, _ = run(4, trained=trained)
    assert sorted(record.trained) == [3, 4]
    steps = {pools[0].step: pools for pools in trained}  # step 2 was begun twice, and killed before its update
    ids = Counter(pool.prompt_id for pools in steps.values() for pool in pools)
    assert sorted(steps) == [0, 1, 2, 3] and set(ids.values()) == {1} and len(ids) == 16


def test_a_group_that_hangs_is_given_up_and_wedges_no_step(run):
    ada = BALANCE | {"budget": {"max_group_seconds": 3.0}}
    record, trained = run(2, ada, hangs={f"p{number}=" for number in range(10, 26, 2)})
    given_up = [pool for pools in trained for pool in pools if pool.given_up]
    assert given_up and sorted(record.trained) == [1, 2]
    assert sum(numbers["train/ada/groups_given_up"] for numbers in record.trained.values()) == len(given_up)
    assert all(len(pool.result.reward_N) % 4 == 0 for pool in given_up)


@pytest.mark.parametrize(
    ("process", "message"),
    [
        ("ray::AdaTrajectoryCollector", "the collector of prompts is lost"),
        ("ray::Engine", "vLLM worker 0 of 1 is lost"),
    ],
)
def test_a_process_that_dies_while_the_loop_waits_for_groups_ends_the_run(run, process, message):
    """No prompt's first response ends, so the loop waits for its first step."""
    prompts = {f"p{number}=" for number in range(10, 26)}

    def found():
        children = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # others come and go
                children += [child] if " ".join(child.cmdline()).startswith(process) else []
        return [child for child in children if child not in before]

    before: list[psutil.Process] = []  # of the test before this one
    before = found()

    def kill():
        while not (children := found()):
            time.sleep(0.1)
        time.sleep(1.0)  # groups are under way then, in most runs
        for child in children:
            child.kill()

    thread = threading.Thread(target=kill, daemon=True)  # it looks for ever where the run never starts
    thread.start()
    with pytest.raises(ProcessLostError, match=message):
        run(2, hangs=prompts)
    thread.join()


def test_metrics_of_a_run_that_draws_grpo_s_groups_are_nemo_rl_s_own(harness, run, tmp_path):
    """Every row is in the loss, so every metric of the loop keeps its value. The first step has the same prompts."""
    ahead = importlib.import_module("nemo_support.ahead")
    same = {**harness.ALL_ROWS, "data.shuffle": False}
    own = ahead.run_async(tmp_path / "own", 1, {**harness.NO_DIVISION, **same}, hooks=lambda parts: nullcontext())
    ours, _ = run(1, {"preset": "grpo"}, same)
    clocked = ("train/trajectory_duration", "train/buffer_size", "/efficiency/")  # of main
    harness.assert_same_metrics(ours, own, but=clocked)


def test_failures_end_the_run_with_their_cause(run):
    with pytest.raises(FailedResponsesError, match="verifier_timeout"):
        run(2, labels=lambda prompt, draw: "=")
