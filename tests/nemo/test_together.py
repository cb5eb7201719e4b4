"""Features of NeMo-RL together with Reinforce-Ada, in the real grpo_train on a CPU (nemo_support/harness.py).

recipes/guide/together.yaml names these tests as evidence.
"""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.nemo_rl

CORRECTION = {"loss_fn.use_importance_sampling_correction": True}
LOSSES = {
    "GSPO": {"loss_fn.sequence_level_importance_ratios": True, "loss_fn.token_level_loss": False},
    "CISPO": {"loss_fn.use_cispo": True},
    "dual clip": {"loss_fn.ratio_clip_c": 3.0},
    "loss per row": {"loss_fn.token_level_loss": False},
    "REINFORCE": {"loss_fn.disable_ppo_ratio": True},
    "TIS": {**CORRECTION, "loss_fn.truncated_importance_sampling_type": "tis",
            "loss_fn.truncated_importance_sampling_ratio": 2.0},
    "icepop": {**CORRECTION, "loss_fn.truncated_importance_sampling_type": "icepop",
               "loss_fn.truncated_importance_sampling_ratio": 2.0,
               "loss_fn.truncated_importance_sampling_ratio_min": 0.5},
    "seq-mask-tis": {**CORRECTION, "loss_fn.truncated_importance_sampling_type": "seq-mask-tis",
                     "loss_fn.truncated_importance_sampling_ratio": 2.0,
                     "loss_fn.truncated_importance_sampling_ratio_min": 0.5},
}  # fmt: skip


@pytest.fixture
def run(harness, tmp_path):
    """run(section, ...): two updates per step, in a folder of its own."""

    def train(section, steps=1, *, name="run", changes=None, **options):
        overrides = {**harness.OURS, "policy.train_global_batch_size": 8, "reinforce_ada": section, **(changes or {})}
        return harness.run_grpo(tmp_path / name, steps, overrides, hooks=harness.hooks, **options)

    return train


@pytest.mark.parametrize("loss", LOSSES)
def test_placeholder_rows_change_no_loss(harness, run, loss):
    """The second update of a step has ratios other than 1, so the clips of each loss act."""
    lean = run({"preset": "grpo"}, changes=LOSSES[loss])
    full = run({"preset": "grpo"}, name="full", changes=LOSSES[loss] | harness.PENALTY)
    assert lean.losses == pytest.approx(full.losses, abs=1e-6)
    norms = [record.metrics[1]["train/grad_norm"] for record in (lean, full)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4) and norms[0] > 0
    assert lean.metrics[1]["train/ada/tokens_skipped"] > 0
    tokens = [sum(int(lengths.sum()) for lengths in record.logprob_lengths) for record in (lean, full)]
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("async_engine", [False, True], ids=["sync", "async"])
def test_scores_of_a_reward_model_count_above_the_threshold(harness, run, async_engine):
    """The scores are -2.5 and 1.5. They have the pass rates, and so the waves, that rewards of 0 and 1 have."""
    scores = {harness.TASK: "scores"}
    section = {"preset": "ada_seq_balance", "positive_threshold": 0.0}
    scored = run(section, 2, async_engine=async_engine, kinds=scores)
    judged = run({"preset": "ada_seq_balance"}, 2, name="judged", async_engine=async_engine)
    first = [record.metrics[1]["train/ada/samples_drawn"] for record in (scored, judged)]
    assert first[0] == first[1] > 0
    assert all(map(math.isfinite, scored.losses)) and any(scored.losses)
    rate = judged.metrics[1]["train/ada/pass_rate"]
    assert scored.metrics[1]["train/ada/pass_rate"] == pytest.approx(rate)


def test_two_environments_share_a_batch(harness, run):
    """Half of the prompts belong to each task, and each environment judges the waves of its own prompts."""
    kinds = {harness.TASK: "plain", "other": "plain"}
    both = run({"preset": "ada_seq_balance"}, 2, kinds=kinds)
    one = run({"preset": "ada_seq_balance"}, 2, name="one")
    assert both.losses == pytest.approx(one.losses, abs=1e-6)
    assert both.column("ada/samples_drawn") == one.column("ada/samples_drawn")
    assert sum(both.train_rows) == sum(one.train_rows) == sum(one.column("ada/samples_drawn"))
    assert len(both.train_rows) > len(one.train_rows), "each rollout call goes to both environments"


@pytest.mark.parametrize("async_engine", [False, True], ids=["sync", "async"])
def test_several_turns_are_one_response(harness, run, async_engine):
    """Two turns: the second one's reward is the response's, and a row holds both turns.

    NeMo-RL's asynchronous rollouts end a response whose turn was cut off. Its synchronous ones go on.
    """

    def labels(conversation, draw):
        rates = {**harness.TRAIN_PROMPTS, **harness.VALIDATION_PROMPTS}
        return harness.seeded_labels({conversation: rates[conversation[:4]]})(conversation, draw)

    changes = {"grpo.max_rollout_turns": 2, "policy.generation.max_new_tokens": 4, "policy.train_global_batch_size": 16}
    record = run({"preset": "ada_seq_balance"}, 2, async_engine=async_engine, kinds={harness.TASK: "turns"},
                 labels=labels, changes=changes)  # fmt: skip
    assert all(map(math.isfinite, record.losses)) and any(record.losses)
    drawn, turns = record.column("ada/samples_drawn"), record.column("total_turns")
    assert sum(record.train_rows) == sum(turns), "each turn is judged once"
    assert all(one < two <= 2 * one for one, two in zip(drawn, turns, strict=True))
    assert async_engine or turns == [2 * responses for responses in drawn]
    assert all(0 < rate < 1 for rate in record.column("ada/pass_rate"))
    assert record.column("token_mult_prob_error") == pytest.approx([1.0] * 2, abs=1e-4)
