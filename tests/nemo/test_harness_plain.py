"""NeMo-RL's plain GRPO on the harness: what the other tests of this folder compare themselves with.

1. A run trains, validates and saves, and the engine's log-probabilities are the policy's.
2. It is reproducible bit for bit, and a killed and resumed run is the uninterrupted one.
3. The async engine path draws the same responses, and an engine that is not colocated trains the same.
4. NeMo-RL by itself refuses the name of our estimator, so a run without our hooks cannot pass for one with them.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.nemo_rl

STEPS = 6  # 16 prompts, 4 per step: the run goes into its second epoch


class Killed(BaseException):
    """What ends a run in the middle of a step."""


@pytest.fixture(scope="module")
def plain(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return harness.run_grpo(tmp_path_factory.mktemp("plain"), steps=STEPS)


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_plain_run_trains_validates_and_saves(plain: Any) -> None:
    assert len(plain.losses) == STEPS and all(map(math.isfinite, plain.losses)) and any(plain.losses)
    assert plain.train_rows == [16] * STEPS
    assert plain.validation_rows == [4] * (1 + STEPS // 2)
    assert [len(batch["input_ids"]) for batch in plain.batches] == [16] * STEPS
    assert [path.name for path in plain.checkpoints] == [f"step_{step}" for step in range(1, STEPS + 1)]
    assert all(0 < plain.metrics[step]["train/reward"] < 1 for step in range(1, STEPS + 1))


def test_engine_and_policy_agree_on_logprobs(plain: Any) -> None:
    for step in range(1, STEPS + 1):
        assert plain.metrics[step]["train/token_mult_prob_error"] == pytest.approx(1.0, abs=1e-4)
    first = plain.batches[0]
    generated = first["token_mask"].bool()
    torch.testing.assert_close(first["generation_logprobs"][generated], first["prev_logprobs"][generated])


def test_engine_gets_the_weights_once_per_step(plain: Any) -> None:
    """One refit for the first validation, then one per training step; none of them twice for the same weights."""
    assert plain.generation.refits == 1 + STEPS
    assert plain.generation.wakes >= plain.generation.sleeps == STEPS + 1 + STEPS // 2


def test_rewards_follow_the_labels(harness: ModuleType, plain: Any) -> None:
    labels = harness.seeded_labels({**harness.TRAIN_PROMPTS, **harness.VALIDATION_PROMPTS})
    draws = plain.generation.draws
    assert len(draws) == 16 * STEPS + 4 * (1 + STEPS // 2)
    assert all(draw.response.startswith("+" if labels(draw.prompt, draw.draw) else "-") for draw in draws)


def test_same_run_twice_is_bit_identical(harness: ModuleType, plain: Any, tmp_path: Path) -> None:
    again = harness.run_grpo(tmp_path, steps=STEPS)
    assert again.losses == plain.losses
    assert same_weights(again.weights, plain.weights)


@pytest.mark.parametrize("killed_before", [1, 3, 4])
def test_killed_run_resumes_as_if_nothing_happened(
    harness: ModuleType, plain: Any, tmp_path: Path, killed_before: int
) -> None:
    """Killed in step 2, in step 4 (the last of an epoch) and in step 5 (the first of the next)."""

    def kill(step: int) -> None:
        if step == killed_before:
            raise Killed

    with pytest.raises(Killed):
        harness.run_grpo(tmp_path, steps=STEPS, before_train=kill)
    resumed = harness.run_grpo(tmp_path, steps=STEPS, resume=True)
    assert resumed.losses == plain.losses[killed_before:]
    assert same_weights(resumed.weights, plain.weights)


def test_async_engine_draws_the_same_responses(harness: ModuleType, plain: Any, tmp_path: Path) -> None:
    record = harness.run_grpo(tmp_path, steps=2, async_engine=True, seconds_per_token=0.002)
    assert all(map(math.isfinite, record.losses))
    assert sum(record.train_rows) == 32 and set(record.train_rows) == {1}

    def drawn(run: Any, refits: int) -> set[tuple[str, int, int, str]]:
        return {
            (draw.prompt, draw.draw, draw.refit, draw.response)
            for draw in run.draws(harness.TRAIN_PROMPTS)
            if draw.refit <= refits
        }

    assert drawn(record, 1) == drawn(plain, 1)
    assert record.losses[0] == pytest.approx(plain.losses[0], abs=1e-6)


def test_engine_on_its_own_device_trains_the_same(harness: ModuleType, plain: Any, tmp_path: Path) -> None:
    apart = {
        "policy.generation.colocated.enabled": False,
        "policy.generation.colocated.resources.gpus_per_node": 1,
        "cluster.gpus_per_node": 2,
    }
    assert harness.run_grpo(tmp_path, steps=2, config_overrides=apart).losses == plain.losses[:2]


def test_without_hooks_our_estimator_is_refused(harness: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Invalid adv_estimator name: reinforce_ada"):
        harness.run_grpo(tmp_path, steps=1, config_overrides={"grpo.adv_estimator.name": "reinforce_ada"})
