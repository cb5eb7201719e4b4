"""Reinforce-Ada over NeMo-Gym inside the real async_grpo_train (nemo_support/ahead.py and gym.py).

A script stands for Gym's servers. NeMo-RL's own actor, rollout function, collector, buffer and loop run.
test_async_training.py resumes a run.

1. Every prompt is trained on once, and a validation is that of synchronous training.
2. Rows, pools and advantages are those of the same rollouts in synchronous training.
3. A rollout that fails has no label and is drawn again. One that hangs is given up with its group.
4. A lost server ends the run as a lost process.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter

import pytest

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.gym.request import compute_prompt_id

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(600)]

CAP = 24
BALANCE = {
    "preset": "ada_seq_balance",
    "sampling": {"wave_size": 4, "max_responses": 16},
    "budget": {"max_samples": CAP},
}
STILL = {"policy.optimizer.kwargs.lr": 0.0, "data.shuffle": False}


@pytest.fixture
def gym(harness, monkeypatch):
    """The module nemo_support.gym."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    return importlib.import_module("nemo_support.gym")


@pytest.fixture
def run(harness, gym, tmp_path):
    """run(steps, script, ...): a run in the test's folder. `pools` are the groups of each step."""
    ahead = importlib.import_module("nemo_support.ahead")

    def train(steps, script=None, ada=BALANCE, changes=None, pools=None, seconds=0.01, after=None, **options):
        trained = [] if pools is None else pools

        actor = gym.actor_of(script or gym.seeded(), seconds=seconds)
        if after is not None:
            after(actor)
        overrides = {**harness.OURS, "reinforce_ada": ada, **(changes or {})}
        record = ahead.run_async(tmp_path / "run", steps, overrides, hooks=ahead.noting(trained), gym=actor, **options)
        vars(record).update(gym.ray.get(actor.facts.remote()), pools=trained)
        return record

    return train


@pytest.mark.parametrize("in_flight", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["drained", "in flight"])
def test_steps_train_on_adaptive_groups_within_their_caps(gym, run, in_flight):
    record = run(4, changes={"grpo.async_grpo.in_flight_weight_updates": in_flight})
    steps = record.trained
    assert sorted(steps) == [1, 2, 3, 4] and [pools[0].step for pools in record.pools] == [0, 1, 2, 3]
    for numbers in steps.values():
        assert math.isfinite(numbers["train/loss"])
        assert 16 <= numbers["train/ada/samples_drawn"] <= CAP
        assert 0 <= numbers["train/ada/response_age"] <= 1
        assert 1 <= numbers["train/turns_per_sample/mean"] <= numbers["train/turns_per_sample/max"] == 2
        assert 2 <= numbers["train/mean_prompt_length"] <= 8, "the responses know their prompts' lengths"
    assert record.metrics[2]["validation/ada/without_label"] == 0
    prompts = Counter(pool.prompt_id for pools in record.pools for pool in pools)
    assert len(prompts) == 16 and set(prompts.values()) == {1}  # one epoch, every prompt once
    assert all(len(call) == 1 for call in record.calls), "one call per response, also in a validation"
    assert any(batch["advantages"].abs().sum() > 0 for batch in record.batches)


def test_a_step_has_the_rows_and_advantages_of_synchronous_training(harness, gym, run, tmp_path):
    """The first step, whose prompts both loops draw for with the same labels. Rows come in another order."""

    def script(prompt, draw):
        return gym.Rollout(float(draw % 2), turns=(1 + draw % 3,) * (1 + draw % 2))

    changes = {**STILL, "grpo.val_period": 0}
    ada = {"preset": "grpo"}
    found = run(1, script, ada, changes=changes)
    expected = gym.run_gym(
        tmp_path / "synchronous", 1, {**changes, "reinforce_ada": ada, "grpo.val_at_start": False}, script=script,
        hooks=harness.hooks,
    )  # fmt: skip
    assert sorted(harness.rows_of(found.batches[0])) == sorted(harness.rows_of(expected.batches[0]))
    for name in ("samples_drawn", "pass_rate", "live_rows", "tokens_trained", "tokens_drawn"):
        assert found.metrics[1][f"train/ada/{name}"] == expected.metrics[1][f"train/ada/{name}"], name
    for name in ("turns_per_sample/mean", "total_reward/mean", "mean_gen_tokens_per_sample", "reward"):
        assert found.metrics[1][f"train/{name}"] == pytest.approx(expected.metrics[1][f"train/{name}"]), name


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "no tokens"])
def test_a_failed_rollout_is_drawn_again_and_never_a_zero(gym, run, how):
    record = run(4, gym.failing_once(how), {"preset": "grpo"}, {"grpo.val_period": 0})
    assert (
        record.drawn["p12="] == 5
        and sum(numbers.get("train/ada/failed/gym_error", 0) for numbers in record.trained.values()) == 1
    )
    assert all(numbers["train/ada/pass_rate"] == 1.0 for numbers in record.trained.values())


def test_a_group_that_hangs_is_given_up_and_wedges_no_refit(gym, run):
    def script(prompt, draw):
        hangs = prompt == "p11=" and draw >= 4
        return gym.Rollout(0.0 if prompt == "p11=" else float(draw % 2), seconds=600.0 if hangs else 0.01)

    ada = BALANCE | {"budget": {"max_group_seconds": 5.0}}
    record = run(3, script, ada, {"data.shuffle": False, "grpo.val_period": 0})
    assert record.pools[0][0].step == 0 and sorted(record.trained) == [1, 2, 3]
    (slow,) = [pool for pools in record.pools for pool in pools if pool.given_up]
    assert slow.prompt_id == compute_prompt_id(gym.row("p11=")) and slow.result.size_P.tolist() == [4]
    assert record.drawn["p11="] >= 8, "its complete wave is kept, and its other rollouts hold up no refit"


@pytest.mark.slow
def test_lost_servers_are_a_lost_process(gym, run):
    with pytest.raises(ProcessLostError, match="server math has ended"):
        run(
            1,
            lambda prompt, draw: ValueError("no connection"),
            after=lambda actor: gym.ray.get(actor.die.remote("server math has ended")),
        )


@pytest.mark.slow
def test_what_an_environment_masks_is_drawn_again(gym, run):
    """A group that has a masked rollout, or no response at all, joins a step with others."""

    def script(prompt, draw):
        masked = {"instance_config": {"mask_sample": prompt == "p11=" and draw == 1}}
        return gym.Rollout(float(draw % 2), facts=masked, seconds=600.0 if prompt == "p12=" else 0.01)

    ada = {"preset": "grpo", "budget": {"max_group_seconds": 5.0}}
    record = run(1, script, ada, {"data.shuffle": False, "grpo.val_period": 0})
    assert record.metrics[1]["train/ada/groups_given_up"] == 1
    assert record.metrics[1]["train/ada/failed/masked"] == 1
    assert record.metrics[1].get("train/num_mask_sample_filtered", 0) == 0


@pytest.mark.slow
def test_penalties_of_nemo_rl_change_the_advantages_and_no_label(gym, run):
    """NeMo-RL's main sets the reward of such a response to 0. Its label is that of Gym's own reward."""
    if not gym.ON_MAIN:
        pytest.skip("NeMo-RL v0.7.0 has no penalties")

    changes = {
        "reward_penalties.penalize_unwanted_tokens": True,
        "reward_penalties.token_ids": {"unwanted": [2]},  # of every right response
        "grpo.val_period": 0,
    }
    record = run(1, lambda prompt, draw: gym.Rollout(float(draw % 2)), {"preset": "grpo"}, changes)
    assert record.metrics[1]["train/ada/pass_rate"] == 0.5 and record.metrics[1]["train/reward"] == 0.0
    assert record.batches[0]["advantages"].abs().sum() == 0
