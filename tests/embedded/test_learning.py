"""The learning proof: a tiny policy learns a bandit through the real engine and the real learner.

The base answers one held-out prompt in four correctly. Twelve steps must bring every preset above two in three, and
the same twelve steps with the advantage's sign turned must bring it below one in ten. Nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_ada.embedded import trainer as training
from nemo_ada.embedded.trainer import Trainer
from nemo_ada.run.folder import read_lines

SETTINGS = [
    "grpo.max_num_steps=12",
    "grpo.val_period=0",
    "grpo.num_prompts_per_step=16",
    "validation.responses=16",
    "checkpointing.enabled=false",
    "policy.megatron_cfg.optimizer.lr=2e-3",
    "policy.megatron_cfg.scheduler.lr_warmup_iters=0",
]
PRESETS = {
    "grpo": [],
    "ada_seq_balance": [],
    "ada_est_ema": ["grpo.num_generations_per_prompt=8"],
}


def accuracy(make, stack, task, name: str, preset: str) -> tuple[float, float]:
    """Held-out accuracy before the first and after the last step."""
    config = make(name, f"reinforce_ada.preset={preset}", *SETTINGS, *PRESETS[preset])
    Trainer(config, stack, task).run()
    before, after = (record["val/accuracy"] for record in read_lines(config.folder / "evaluations.jsonl"))
    print(preset, before, after, [round(r["ada/pass_rate"], 2) for r in read_lines(config.folder / "metrics.jsonl")])
    return before, after


@pytest.mark.parametrize("preset", PRESETS)
def test_the_policy_learns_the_bandit(make, stack, task, preset):
    before, after = accuracy(make, stack, task, f"learns-{preset}", preset)
    assert True
    assert after > 0.67


def test_the_policy_unlearns_it_with_the_sign_of_the_advantage_turned(make, stack, task, monkeypatch):
    train_on = training.train_on

    def turned(learner, data, config, step):
        return train_on(learner, replace(data, advantage_R=-data.advantage_R), config, step)

    monkeypatch.setattr(training, "train_on", turned)
    before, after = accuracy(make, stack, task, "unlearns", "grpo")
    assert True
    assert after < 0.1
