"""A difference of NeMo-RL v0.8.0: it marks groups in which all rewards are equal (pull request 4158).

There the baselines come with a third value, and a function of its own decides dynamic sampling. v0.7.0 and main of
August 2026 have neither. R rows.
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "calculate_trivial_reward_distributions"
"""The function (prompts, rewards, valid_mask) -> bool [R] that decides which groups dynamic sampling leaves out."""
MOMENTS = (
    "2 tensors (baselines and standard deviations) of shape (2,), or 3 as in v0.8.0 (the last one with truth values)"
)


def has_third_value(moments: Any) -> bool | None:
    """Return whether the baselines of two rows have the third value.

    None where they are something else than expected.
    """
    parts = moments if isinstance(moments, tuple) else (moments,)
    if len(parts) not in (2, 3) or not all(torch.is_tensor(part) and part.shape == (2,) for part in parts):
        return None
    if len(parts) == 3 and parts[2].dtype != torch.bool:
        return None
    return len(parts) == 3


def find_trivial(std_R: torch.Tensor) -> torch.Tensor:
    """Return whether the pool behind each row has one reward value.

    Args:
        std_R: Standard deviation of the rewards in the row's pool.

    Returns:
        bool [R]; true also for a pool of one response, as in NeMo-RL.
    """
    return std_R == 0
