"""The alarm for a rollout whose probabilities are not the learner's, as FP8 can bring about.

NeMo-RL logs token_mult_prob_error: the mean over tokens of exp|log p_learner - log p_rollout|, 1 when both agree. It
draws a plot of its own above 1.05 (grpo_train, v0.7.0); we take the same threshold.
"""

from __future__ import annotations

METRIC = "token_mult_prob_error"
HIGHEST = 1.05


def alarming(value: float) -> bool:
    """Whether a step's METRIC asks for action; not a number does."""
    return not value <= HIGHEST


def advice(where: str, value: float) -> str:
    """One line: what was seen `where`, and what to do about it."""
    return (
        f"{where}: {METRIC} is {value:.3f}, above {HIGHEST}: rollout and learner disagree about the policy; with FP8 "
        "go back to a BF16 rollout (policy.generation.vllm_cfg.precision=bfloat16)"
    )
