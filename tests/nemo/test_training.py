"""Reinforce-Ada inside the real grpo_train, on a CPU (nemo_support/harness.py).

1. Every preset trains, on the synchronous and where it applies on the asynchronous engine.
2. Validation draws exactly what it draws without us; with another estimator nothing changes, bit for bit.
3. A killed and resumed run is the uninterrupted one, in losses, weights and sampler state.
4. NeMo-RL's names are restored after success, error and KeyboardInterrupt.
5. Rows without advantage: the update is the same with and without them, for fewer tokens.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from nemo_ada.nemo import reinforce_ada

pytestmark = pytest.mark.nemo_rl

STEPS = 3
OURS = {"grpo.adv_estimator.name": "reinforce_ada"}
ISSUE_ORDER = {
    "preset": "ada_seq_balance",
    "sampling": {"kind": "sequential", "stopping": {"kind": "issue_order", "window": 3}},
}


def hooks(parts: Any) -> Any:
    return reinforce_ada(parts.master_config, checkpointer=parts.checkpointer)


def run(harness: ModuleType, folder: Path, ada: dict[str, Any] | str, steps: int = STEPS, **options: Any) -> Any:
    section = {"preset": ada} if isinstance(ada, str) else ada
    if section["preset"].startswith("ada_est"):
        section = {**section, "sampling": {"min_responses": 2}}  # groups of 4 must leave a choice
    changes = {**OURS, "reinforce_ada": section, **options.pop("changes", {})}
    return harness.run_grpo(folder, steps, changes, hooks=options.pop("hooks", hooks), **options)


def validation_draws(harness: ModuleType, record: Any) -> list[tuple[str, int]]:
    """Which draws validation made; what they say depends on the weights."""
    return [(draw.prompt, draw.draw) for draw in record.draws(harness.VALIDATION_PROMPTS)]


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def same_update(left: Any, right: Any) -> None:
    """Loss and gradient norm of the first step. Later ones differ: the tiny engine draws by the weights' last bit."""
    assert left.losses == pytest.approx(right.losses, abs=1e-6)
    assert left.metrics[1]["train/grad_norm"] == pytest.approx(right.metrics[1]["train/grad_norm"], rel=1e-4)
    assert left.metrics[1]["train/grad_norm"] > 0


@pytest.fixture(scope="module")
def plain(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return harness.run_grpo(tmp_path_factory.mktemp("plain"), steps=STEPS)


def check_trained(harness: ModuleType, record: Any, plain: Any) -> None:
    assert len(record.losses) == STEPS and all(map(math.isfinite, record.losses)) and any(record.losses)
    assert [len(batch["input_ids"]) for batch in record.batches] == [16] * STEPS
    assert [path.name for path in record.checkpoints] == [f"step_{step}" for step in range(1, STEPS + 1)]
    assert sum(record.validation_rows) == sum(plain.validation_rows)
    assert validation_draws(harness, record) == validation_draws(harness, plain)
    for step in range(1, STEPS + 1):
        metrics = record.metrics[step]
        assert metrics["train/token_mult_prob_error"] == pytest.approx(1.0, abs=1e-4)
        assert metrics["train/mean_prompt_length"] == plain.metrics[step]["train/mean_prompt_length"]
        assert 0 <= metrics["train/ada/pass_rate"] <= 1
    drawn = sum(record.metrics[step]["train/ada/samples_drawn"] for step in range(1, STEPS + 1))
    assert drawn == sum(record.train_rows) == len(record.draws(harness.TRAIN_PROMPTS))


@pytest.mark.parametrize(
    "preset",
    ["grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log", "ada_est_ema", "ada_est_value"],
)
def test_every_preset_trains_on_the_synchronous_engine(
    harness: ModuleType, plain: Any, tmp_path: Path, preset: str
) -> None:
    record = run(harness, tmp_path, preset)
    check_trained(harness, record, plain)
    assert record.generation.refits == plain.generation.refits, "one refit per step, however many waves"


@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_presets_train_on_the_asynchronous_engine(harness: ModuleType, plain: Any, tmp_path: Path, preset: str) -> None:
    check_trained(harness, run(harness, tmp_path, preset, async_engine=True), plain)


@pytest.mark.parametrize("ada", [ISSUE_ORDER, {"preset": "ada_seq_idle"}], ids=["issue_order", "idle"])
def test_settings_that_stop_responses_train(harness: ModuleType, tmp_path: Path, ada: dict[str, Any]) -> None:
    record = run(harness, tmp_path, ada, async_engine=True, seconds_per_token=0.003)
    assert all(map(math.isfinite, record.losses))
    metrics = [record.metrics[step] for step in range(1, STEPS + 1)]
    pools, drawn, dropped = (
        sum(m[f"train/ada/samples_{name}"] for m in metrics) for name in ("in_pools", "drawn", "dropped")
    )
    assert pools + dropped == drawn >= sum(record.train_rows)
    if ada is ISSUE_ORDER:
        assert dropped > 0


def test_grpo_by_our_code_path_is_grpo_without_normalisation(harness: ModuleType, tmp_path: Path) -> None:
    """Preset `grpo` against NeMo-RL's own estimator with the same baseline and no division: same update."""
    own = harness.run_grpo(
        tmp_path / "own",
        1,
        {"grpo.adv_estimator.normalize_rewards": False, "grpo.adv_estimator.use_leave_one_out_baseline": False},
    )
    ours = run(harness, tmp_path / "ours", "grpo", steps=1)
    same_update(ours, own)
    assert ours.metrics[1]["train/reward"] == own.metrics[1]["train/reward"] == ours.metrics[1]["train/ada/pass_rate"]


def test_another_estimator_is_untouched_bit_for_bit(harness: ModuleType, plain: Any, tmp_path: Path) -> None:
    record = harness.run_grpo(tmp_path, STEPS, {"reinforce_ada": {"preset": "ada_seq_balance"}}, hooks=hooks)
    assert record.losses == plain.losses
    assert same_weights(record.weights, plain.weights)
    assert not any("ada/" in name for name in record.metrics[1])


class Killed(BaseException):
    """What ends a run in the middle of a step."""


@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_killed_run_resumes_as_if_nothing_happened(harness: ModuleType, tmp_path: Path, preset: str) -> None:
    def kill(step: int) -> None:
        if step == 4:
            raise Killed

    straight = run(harness, tmp_path / "straight", preset, steps=6)
    with pytest.raises(Killed):
        run(harness, tmp_path / "killed", preset, steps=6, before_train=kill)
    resumed = run(harness, tmp_path / "killed", preset, steps=6, resume=True)
    assert resumed.losses == straight.losses[4:]
    assert same_weights(resumed.weights, straight.weights)

    def state(record: Any) -> dict[str, Any]:
        content = json.loads((record.checkpoints[-1] / "reinforce_ada.json").read_text())
        del content["sampler"]["latency"], content["sha256"]  # measured in seconds
        return content

    assert state(resumed) == state(straight)
    assert state(resumed)["draws"] == 6


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_names_are_restored(harness: ModuleType, tmp_path: Path, error: type[BaseException] | None) -> None:
    before = dict(vars(harness.grpo))

    def stop(step: int) -> None:
        if error is not None:
            assert vars(harness.grpo)["validate"] is not before["validate"]
            raise error

    if error is None:
        run(harness, tmp_path, "ada_seq_lean", steps=1)
    else:
        with pytest.raises(error):
            run(harness, tmp_path, "ada_seq_lean", steps=1, before_train=stop)
    assert all(vars(harness.grpo)[name] is value for name, value in before.items() if callable(value))


def test_rows_without_advantage_cost_two_tokens_and_change_nothing(harness: ModuleType, tmp_path: Path) -> None:
    """With a KL term of weight 1e-12 they stay in the update, otherwise they leave it."""
    lean = run(harness, tmp_path / "lean", "grpo", steps=1)
    penalty = {"loss_fn.reference_policy_kl_penalty": 1e-12, "grpo.skip_reference_policy_logprobs_calculation": False}
    full = run(harness, tmp_path / "full", "grpo", steps=1, changes=penalty)
    same_update(lean, full)
    tokens = [sum(int(lengths.sum()) for lengths in record.logprob_lengths) for record in (lean, full)]
    skipped = lean.metrics[1]["train/ada/tokens_skipped"]
    assert skipped > 0 and tokens[0] < tokens[1] - skipped
    print(f"tokens per step in a log-prob pass: {tokens[0]} with placeholder row rows, {tokens[1]} without")


def test_two_updates_per_step_keep_their_own_denominators(harness: ModuleType, tmp_path: Path) -> None:
    half = {"policy.train_global_batch_size": 8}
    lean = run(harness, tmp_path / "lean", "grpo", steps=1, changes=half)
    penalty = {"loss_fn.reference_policy_kl_penalty": 1e-12, "grpo.skip_reference_policy_logprobs_calculation": False}
    full = run(harness, tmp_path / "full", "grpo", steps=1, changes=half | penalty)
    same_update(lean, full)


def test_all_answers_equal_trains_on_nothing_and_goes_on(harness: ModuleType, tmp_path: Path) -> None:
    record = run(harness, tmp_path, "ada_seq_lean", steps=2, labels=lambda prompt, draw: True)
    assert record.losses == [0.0, 0.0]
    assert record.metrics[1]["train/ada/zero_signal_groups"] == 1.0


def test_failed_generations_are_redrawn(harness: ModuleType, tmp_path: Path) -> None:
    first = next(iter(harness.TRAIN_PROMPTS))
    record = run(
        harness,
        tmp_path,
        "grpo",
        steps=4,
        async_engine=True,
        fails=lambda prompt, draw: prompt == first and draw == 1,
    )
    assert sum(record.metrics[step]["train/ada/samples_failed"] for step in range(1, 5)) == 1
    assert sum(record.metrics[step].get("train/ada/failed/engine_error", 0) for step in range(1, 5)) == 1
    assert all(batch["token_mask"].bool().any(dim=1).all() for batch in record.batches)


@pytest.mark.parametrize("async_engine", [False, True], ids=["sync", "async"])
def test_answers_without_a_verdict_are_redrawn_in_training_and_counted_in_validation(
    harness: ModuleType, tmp_path: Path, async_engine: bool
) -> None:
    """One draw of a training prompt and every answer to one of four validation prompts hang their verifier."""
    one, other = next(iter(harness.TRAIN_PROMPTS)), next(iter(harness.VALIDATION_PROMPTS))
    rates = harness.seeded_labels(harness.TRAIN_PROMPTS)

    def labels(prompt: str, draw: int) -> bool | str:
        if prompt == other or (prompt == one and draw == 1):
            return "="
        return prompt in harness.VALIDATION_PROMPTS or rates(prompt, draw)

    record = run(harness, tmp_path, "grpo", steps=4, async_engine=async_engine, labels=labels)
    steps = [record.metrics[step] for step in range(1, 5)]
    assert sum(metrics["train/ada/samples_failed"] for metrics in steps) == 1
    assert sum(metrics.get("train/ada/failed/verifier_timeout", 0) for metrics in steps) == 1
    assert all(map(math.isfinite, record.losses)) and all(math.isfinite(metrics["train/reward"]) for metrics in steps)
    for step in (0, 2, 4):
        assert record.metrics[step]["validation/accuracy"] == 0.75
        assert record.metrics[step]["validation/ada/without_label"] == 1


def test_dapo_filtering_works_with_our_pools(harness: ModuleType, tmp_path: Path) -> None:
    changes = {
        "grpo.use_dynamic_sampling": True,
        "grpo.batch_multiplier": 2,
        "grpo.dynamic_sampling_max_gen_batches": 8,
    }
    record = run(harness, tmp_path, "grpo", steps=2, changes=changes)
    assert all(map(math.isfinite, record.losses))
    for batch in record.batches:
        groups = np.array([column.item() for column in batch["sample_mask"]]).reshape(-1, 4)
        assert (groups == 1).all(), "no group without signal is left"


def test_scaled_rewards_and_overlong_filtering(harness: ModuleType, tmp_path: Path) -> None:
    scaling = {"enabled": True, "source_min": 0.0, "source_max": 1.0, "target_min": -1.0, "target_max": 1.0}
    record = run(
        harness,
        tmp_path,
        "ada_seq_balance",
        steps=2,
        changes={"grpo.reward_scaling": scaling, "grpo.overlong_filtering": True},
    )
    assert all(map(math.isfinite, record.losses))
    assert record.metrics[1]["train/reward"] == pytest.approx(2 * record.metrics[1]["train/ada/pool_reward"] - 1, abs=2)
    for batch in record.batches:
        live = batch["advantages"].abs().amax(dim=1)
        assert 1.0 - 1e-6 < live.max() <= 2.0 or not batch["sample_mask"].any()


def test_stand_ins_agree_with_the_real_types(harness: ModuleType) -> None:
    """What standin.py copies: row selection, copies, signatures, columns."""
    import inspect

    import standin
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.experience import rollouts

    from nemo_ada.nemo.targets import SAMPLE_ROLLOUT, TARGETS

    ours, real = standin.prompt_batch([3, 4]), BatchedDataDict(dict(standin.prompt_batch([3, 4])))
    for batch in (ours, real):
        shared = batch.select_indices([1, 1])
        assert shared["message_log"][0] is shared["message_log"][1]
        copied = shared.repeat_interleave(1)
        assert copied["message_log"][0] is not copied["message_log"][1]
        assert copied["length"].tolist() == [3, 3] and copied.size == 2
    assert ours.repeat_interleave(2)["idx"] == real.repeat_interleave(2)["idx"]
    loop, fake_rollouts = standin.loop_module(standin.Engine(lambda prompt, draw: (1.0, 1)))
    for target in TARGETS:
        target.check(loop)
        target.check(harness.grpo)
        fake = list(inspect.signature(getattr(loop, target.name)).parameters)
        true = list(inspect.signature(getattr(harness.grpo, target.name)).parameters)
        shared = min(len(fake), len(true))  # versions add parameters at the end
        assert true[:shared] == fake[:shared] and shared >= len(target.parameters)
    SAMPLE_ROLLOUT.check(rollouts)
    SAMPLE_ROLLOUT.check(fake_rollouts)
