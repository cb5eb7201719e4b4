"""A warning when rollout and learner compute different probabilities, which FP8 can cause.

NeMo-RL logs token_mult_prob_error: the mean over tokens of exp|log p_learner - log p_rollout|, 1 when both agree. The
threshold 1.05 is NeMo-RL's own for a plot (grpo_train, v0.7.0).
"""

from __future__ import annotations

METRIC = "token_mult_prob_error"
HIGHEST = 1.05


def write_advice(where: str, value: float) -> str:
    """Return a line with the value, the place `where` it was seen, and a remedy."""
    return (
        f"{where}: {METRIC} is {value:.3f}, above {HIGHEST}: rollout and learner disagree about the policy; with FP8 "
        "go back to a BF16 rollout (policy.generation.vllm_cfg.precision=bfloat16)"
    )
