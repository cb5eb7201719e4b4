"""The range of rewards that the shrunk baseline is told is that of NeMo-RL's own functions, and no wider."""

from __future__ import annotations

from typing import Any

import pytest
from nemo_support.compat import why_not_importable

from nemo_ada.config.values import Values
from nemo_ada.rules.method import compute_reward_range

pytestmark = [
    pytest.mark.nemo_rl,
    pytest.mark.skipif(why_not_importable() is not None, reason=str(why_not_importable())),
]
LONGEST = 100
DAPO = {"enabled": True, "overlong_buffer_length": 20, "overlong_buffer_penalty": 0.5, "max_response_length": 80}
SCALED = {"enabled": True, "source_min": 0.0, "source_max": 1.0, "target_min": -1.0, "target_max": 1.0}
EFFORT = {"low_string": "short", "low_weight": 0.5, "low_penalty": 2.0, "low_ub": 50}


@pytest.mark.parametrize("effort", [None, EFFORT, EFFORT | {"low_string": ""}], ids=["plain", "effort", "no word"])
@pytest.mark.parametrize("scaling", [None, SCALED, SCALED | {"source_max": 2.0}], ids=["unscaled", "scaled", "halved"])
@pytest.mark.parametrize(
    "shaping", [None, DAPO, DAPO | {"max_response_length": 200}, DAPO | {"stop_properly_penalty_coef": 0.0}],
    ids=["unshaped", "dapo", "never too long", "cut"],
)  # fmt: skip
def test_the_range_is_that_of_nemo_rl_s_own_functions(
    effort: dict[str, Any] | None, scaling: dict[str, Any] | None, shaping: dict[str, Any] | None
) -> None:
    reached = [
        _reward(reward, tokens, effort, scaling, shaping)
        for reward in (0.0, 0.5, 1.0)
        for tokens in (0, 1, 60, LONGEST - 1, LONGEST)
    ]
    config = {
        "grpo": {"num_prompts_per_step": 8, "num_generations_per_prompt": 1, "max_rollout_turns": 1,
                 "reward_scaling": scaling or {"enabled": False}, "reward_shaping": shaping or {"enabled": False}},
        "policy": {"max_total_sequence_length": LONGEST, "generation": {"max_new_tokens": LONGEST}},
        "env": {"should_use_nemo_gym": True, "nemo_gym": {"effort_levels": effort}},
    }  # fmt: skip
    low, high = compute_reward_range(Values(config))
    assert low - 1e-6 <= min(reached) and max(reached) <= high + 1e-6
    nearly = 0.03  # a response that is a token shorter than the longest is not cut
    assert (low, high) == pytest.approx((min(reached), max(reached)), abs=nearly)


def _reward(reward: float, tokens: int, effort: Any, scaling: Any, shaping: Any) -> float:
    """The reward of an update that NeMo-RL's functions make of an environment's, in the order of its loop."""
    import torch
    from nemo_rl.algorithms import grpo, reward_functions
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.experience import rollouts

    message = {"role": "assistant", "content": "x", "token_ids": torch.zeros(tokens, dtype=torch.long)}
    result = {"full_result": {"reward": reward}, "message_log": [message]}
    request = {"responses_create_params": {"input": [{"role": "user", "content": "a short one"}]}}
    if effort is not None:
        rollouts._apply_effort_shaping([result], [request], rollouts.EffortLevelsConfig(**effort))
    batch = BatchedDataDict({
        "message_log": [[message]], "total_reward": torch.tensor([result["full_result"]["reward"]]),
        "truncated": torch.tensor([tokens == LONGEST]),
    })  # fmt: skip
    if scaling is not None:
        batch = grpo.scale_rewards(batch, grpo.RewardScalingConfig(**scaling))
    if shaping is not None:
        whole = {"stop_properly_penalty_coef": None, **shaping}
        batch = reward_functions.apply_reward_shaping(batch, reward_functions.RewardShapingConfig(**whole))
    return float(batch["total_reward"][0])
