"""Reinforce-Ada in NeMo-RL's own grpo_train_sync (`data_plane.enabled`), on a CPU (nemo_support/plane.py).

1. Rows, weights, advantages and updates are those of grpo_train, to the bit, for every preset that it takes.
2. So are dynamic sampling, scaled and shaped rewards, validation and the sampler's metrics.
3. A resumed run is the uninterrupted one, also after a SIGKILL of its driver.
4. Without our estimator nothing changes. Names are restored.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import pytest
import torch

pytestmark = pytest.mark.nemo_rl

STEPS = 3
PRESETS = ("grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log", "ada_est_ema", "ada_est_value",
           "ada_single")  # fmt: skip


@pytest.fixture
def plane(harness):
    pytest.importorskip("nemo_rl.algorithms.grpo_sync")
    from nemo_support import plane

    return plane


@pytest.fixture
def both(harness, plane, tmp_path):
    """both(section, ...): the same run of grpo_train_sync and of grpo_train."""

    def train(section, steps=STEPS, *, changes=None, **options):
        if "_est_" in section["preset"]:
            section = {**section, "sampling": {"min_responses": 2}}  # groups of 4 must leave a choice
        overrides = {**harness.OURS, "reinforce_ada": section, **(changes or {})}
        before = dict(vars(plane.grpo_sync))
        ours = plane.run_plane(tmp_path / "plane", steps, overrides, **options)
        assert all(vars(plane.grpo_sync)[name] is value for name, value in before.items() if callable(value))
        theirs = harness.run_grpo(tmp_path / "memory", steps, overrides, hooks=harness.hooks, **options)
        return ours, theirs

    return train


def assert_same(harness, ours, theirs):
    assert len(ours.batches) == len(theirs.batches) > 0
    for left, right in zip(ours.batches, theirs.batches, strict=True):
        assert harness.rows_of(left) == harness.rows_of(right)
    assert ours.losses == theirs.losses
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)
    clock = ("seconds", "utilisation", "per_sec", "timing", "estimated")
    for step, metrics in theirs.metrics.items():
        for name, value in metrics.items():
            if name.startswith(("train/ada/", "validation/")) and not any(word in name for word in clock):
                assert ours.metrics[step][name] == pytest.approx(value), (step, name)


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_and_updates_are_those_of_grpo_train(harness, both, preset):
    changes = {"grpo.num_generations_per_prompt": 1, "grpo.num_prompts_per_step": 16} if preset == "ada_single" else {}
    ours, theirs = both({"preset": preset}, changes=changes)
    assert_same(harness, ours, theirs)
    assert any(ours.losses)


@pytest.mark.parametrize(
    "changes",
    [
        {"grpo.use_dynamic_sampling": True, "grpo.batch_multiplier": 1.0, "grpo.dynamic_sampling_max_gen_batches": 8},
        {"grpo.reward_scaling": {"enabled": True, "source_min": 0.0, "source_max": 1.0, "target_min": -1.0,
                                 "target_max": 1.0}},
        {"grpo.overlong_filtering": True},
        {"loss_fn.reference_policy_kl_penalty": 0.01, "grpo.skip_reference_policy_logprobs_calculation": False},
    ],
    ids=("dynamic sampling", "scaled rewards", "overlong rows", "penalty"),
)  # fmt: skip
def test_the_loop_s_own_settings_work_as_in_grpo_train(harness, both, changes):
    ours, theirs = both({"preset": "ada_seq_balance"}, changes=changes)
    assert_same(harness, ours, theirs)


KILLED = """
import json, os, signal, sys
from pathlib import Path
from nemo_support.compat import why_not_importable
assert why_not_importable() is None
from nemo_support import plane
from nemo_support.private_ray import private_ray
def killed(step):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
with private_ray():
    plane.run_plane(Path(sys.argv[1]), 4, json.loads(sys.argv[2]), before_train=killed)
"""


def kill_in_a_step(folder, overrides):
    """A process of its own trains, and gets SIGKILL between a rollout and its update, after checkpoints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", KILLED, folder, json.dumps(overrides)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "SIGKILL"])
def test_a_resumed_run_is_the_uninterrupted_one(harness, plane, tmp_path, killed):
    overrides = {**harness.OURS, "reinforce_ada": {"preset": "ada_seq_balance"}}
    whole = plane.run_plane(tmp_path / "whole", 4, overrides)
    if killed:
        kill_in_a_step(tmp_path / "parts", overrides)
    else:
        plane.run_plane(tmp_path / "parts", 2, overrides)
    rest = plane.run_plane(tmp_path / "parts", 4, overrides, resume=True)
    left = len(rest.batches)
    assert left == 2 or (killed and left < 4)
    assert [*map(harness.rows_of, rest.batches)] == [*map(harness.rows_of, whole.batches[-left:])]
    assert all(torch.equal(rest.weights[name], whole.weights[name]) for name in whole.weights)
    assert rest.sampler == whole.sampler and rest.sampler["draws"] == 4


@pytest.fixture
def gym(plane, monkeypatch):
    """The module nemo_support.gym. Requests carry their draw, because calls may overtake each other."""
    from nemo_ada.nemo.rollouts.call import Prompts

    monkeypatch.setenv("WANDB_MODE", "offline")
    module, rows = importlib.import_module("nemo_support.gym"), Prompts.rows

    def numbered(prompts, places):
        batch = rows(prompts, places)
        counts = vars(prompts).setdefault("counts", Counter())
        for row, place in zip(batch["extra_env_info"], places, strict=True):
            row["draw"], counts[place] = counts[place], counts[place] + 1
        return batch

    monkeypatch.setattr(Prompts, "rows", numbered)
    return module


@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_value"])
def test_over_gym_rows_updates_and_validations_are_those_of_grpo_train(harness, plane, gym, tmp_path, preset):
    section = {"preset": preset, **({"sampling": {"min_responses": 2}} if "_est_" in preset else {})}
    changes = {"reinforce_ada": section, "grpo.val_period": 1}

    def script(prompt, draw):
        did = gym.seeded()(prompt, draw)
        return gym.Rollout(did.reward, turns=did.turns, facts={"instance_config": {"mask_sample": draw % 4 == 1}})

    ours = plane.run_plane(tmp_path / "plane", 2, changes, run=gym.run_gym, script=script)
    theirs = gym.run_gym(tmp_path / "memory", 2, changes, script=script, hooks=harness.hooks)
    assert len(ours.batches) == len(theirs.batches) == 2
    for left, right in zip(ours.batches, theirs.batches, strict=True):
        assert harness.rows_of(left) == harness.rows_of(right)
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in theirs.weights)
    for step in (1, 2):
        for name, value in theirs.metrics[step].items():
            if name.startswith(("train/ada/", "validation/ada/", "validation/accuracy", "train/turns_per_sample/m")):
                known = not any(word in name for word in ("seconds", "utilisation"))
                assert not known or ours.metrics[step][name] == pytest.approx(value), name


def test_metrics_of_a_run_that_draws_grpo_s_groups_are_nemo_rl_s_own(harness, plane, tmp_path):
    """The trainer with a data plane. test_training.py has grpo_train."""
    settings = {**harness.NO_DIVISION, **harness.ALL_ROWS}
    own = plane.run_plane(tmp_path / "own", 1, settings, hooks=lambda parts: nullcontext())
    ours = plane.run_plane(
        tmp_path / "ours", 1, {**harness.ALL_ROWS, **harness.OURS, "reinforce_ada": {"preset": "grpo"}}
    )
    harness.assert_same_metrics(ours, own)


def test_without_our_estimator_nothing_changes(harness, plane, tmp_path):
    plain = plane.run_plane(tmp_path / "plain", 2, {})
    memory = harness.run_grpo(tmp_path / "memory", 2)
    for left, right in zip(plain.batches, memory.batches, strict=True):
        assert harness.rows_of(left) == harness.rows_of(right)
    assert plain.losses == memory.losses


def test_parts_that_a_yaml_names_train_as_the_hooks_do(harness, plane, tmp_path):
    """With recipes/upstream/named-parts.patch (test_extension_point.py applies it) no name of NeMo-RL is replaced."""
    if not hasattr(plane.grpo_sync, "_rollout_actor_class"):
        pytest.skip("this NeMo-RL has no extension points")
    from nemo_ada.nemo.training_batch import COLUMNS

    section = {"reinforce_ada": {"preset": "ada_seq_balance"}}
    hooked = plane.run_plane(tmp_path / "hooks", 2, {**harness.OURS, **section})
    named = {
        "grpo.rollout_target": "nemo_ada.nemo.data_plane.named:RolloutActor",
        "grpo.rollout_columns": list(COLUMNS),
        "grpo.adv_estimator.target": "nemo_ada.nemo.data_plane.named:Estimator",
    }
    plain = plane.run_plane(tmp_path / "named", 2, {**harness.OURS, **section, **named}, hooks=lambda _: nullcontext())
    for left, right in zip(plain.batches, hooked.batches, strict=True):
        assert harness.rows_of(left) == harness.rows_of(right)
    assert plain.losses == hooked.losses and any(plain.losses)
