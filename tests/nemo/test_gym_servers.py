"""Reinforce-Ada over NeMo-Gym's own servers and NeMo-RL's own actor. Only the policy is a script (gym_servers.py).

It runs where nemo-gym is installed beside NeMo-RL. The policy interpreter of a rehearsal becomes such a place by
`pip install nemo-gym==0.4.0` (Python 3.12 or later; 3.11 works with --ignore-requires-python). Set
RAY_AUTH_MODE=disabled and RAY_ENABLE_UV_RUN_RUNTIME_ENV=0.

Two environments at once: sums that math-verify judges, and a counter with two tools whose state decides the reward.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time

import numpy as np
import pytest

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo import reinforce_ada
from nemo_ada.nemo.gym import actor as watched

pytestmark = [
    pytest.mark.nemo_rl,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("nemo_gym") is None, reason="nemo-gym is not installed here"),
]
GROUP = 4
MATH, COUNTER = "math_with_judge_simple_agent", "example_session_state_mgmt_simple_agent"
LONG = {"policy.max_total_sequence_length": 96, "grpo.num_prompts_per_step": 4}


@pytest.fixture(scope="module")
def gym(harness):
    """The modules nemo_support.gym and nemo_support.gym_servers."""
    return importlib.import_module("nemo_support.gym"), importlib.import_module("nemo_support.gym_servers")


@pytest.fixture(scope="module")
def running(gym, tmp_path_factory):
    """(the actor, the policy) over running servers."""
    _, servers = gym
    policy = servers.Policy()
    began = time.monotonic()
    actor = servers.start(policy, tmp_path_factory.mktemp("gym"))
    print(f"servers up in {time.monotonic() - began:.1f} s")
    yield actor, policy
    gym[0].ray.get(actor.shutdown.remote())


def rows(servers):
    return [servers.math_row(2, 3), servers.counter_row(1, 2), servers.math_row(4, 4), servers.counter_row(5, 6)]


def test_a_step_draws_uneven_pools_from_two_environments(gym, running, tmp_path):
    """Draw 1 of each prompt is right, then 5, 9 and so on."""
    lab, servers = gym
    actor, policy = running
    parts = lab.parts_of(tmp_path, 8, {**LONG, "reinforce_ada": {"preset": "ada_seq_positive"}})
    with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer) as hooks:
        steps, run_step = [], hooks.sampler.run_step
        hooks.sampler.run_step = lambda *args, **kwargs: steps.append(run_step(*args, **kwargs)) or steps[-1]
        lab.grpo._create_advantage_estimator(parts.master_config)
        began = time.monotonic()
        result = lab.draw(parts, rows(servers), actor)
        print(f"{len(steps[0].result.reward_N)} responses in {time.monotonic() - began:.2f} s")
    (sampled,) = steps
    metrics = result.rollout_metrics
    assert set(sampled.result.reward_N.tolist()) == {0.0, 1.0}
    assert metrics["ada/pass_rate"] == 0.25 and not [name for name in metrics if name.startswith("ada/failed")]
    counter_N = np.isin(sampled.result.prompt_N, [1, 3])
    assert set(sampled.result.tokens_N[counter_N].tolist()) == {4 * servers.SAID_TOKENS}, "four turns"
    assert set(sampled.result.tokens_N[~counter_N].tolist()) == {servers.SAID_TOKENS}
    assert metrics[f"{MATH}/reward/mean"] == metrics[f"{COUNTER}/reward/mean"] == 0.25
    assert metrics["turns_per_sample/max"] == 4 and metrics["turns_per_sample/min"] == 1
    assert 0 < metrics["truncation_rate"] < 0.5, "every fourth sum ends at its limit, as Gym says"
    assert set(policy.drawn.values()) == {int(np.bincount(sampled.result.prompt_N).max())}
    live_R = (result.final_batch["ada_advantage"] != 0).tolist()
    for log, live in zip(result.final_batch["message_log"], live_R, strict=True):
        if live:
            assert [turn["role"] for turn in log] == ["user", "assistant"] * (len(log) // 2)


def test_grpo_train_trains_on_it(gym, running, tmp_path):
    lab, servers = gym
    actor, _ = running
    overrides = {**LONG, "reinforce_ada": {"preset": "ada_seq_lean"}, "grpo.val_period": 2}
    run = lab.run_gym(tmp_path, 3, overrides, hooks=lab.hooks, actor=actor, rows=rows(servers))
    for number in (1, 2, 3):
        assert math.isfinite(run.metrics[number]["train/loss"])
        assert run.metrics[number]["train/ada/samples_drawn"] >= 16
    assert run.metrics[2]["validation/ada/without_label"] == 0
    assert any((batch["advantages"] != 0).any() for batch in run.batches)


def test_a_server_that_died_is_a_lost_process(gym, running, tmp_path, monkeypatch):
    """Gym asks a dead server for ever, so no rollout fails. The last test of this module."""
    monkeypatch.setattr(watched, "SILENT_SECONDS", 3.0)
    lab, servers = gym
    actor, _ = running
    kill = "math_with_judge"
    gym[0].ray.get(actor.__ray_call__.remote(lambda self: self.rh._processes[kill].kill()))
    parts = lab.parts_of(tmp_path, 8, {**LONG, "reinforce_ada": {"preset": "grpo"}})
    with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer):
        lab.grpo._create_advantage_estimator(parts.master_config)
        with pytest.raises(ProcessLostError, match="math_with_judge"):
            lab.draw(parts, rows(servers), actor)
