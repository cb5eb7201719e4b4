"""Computes how many responses each prompt gets in Reinforce-Ada-Est (algorithm.md section 3; paper, Fig. 7).

N_x is an integer within bounds. It is proportional to a weight of the predicted pass rate, and the sum of all N_x is
exact. For real numbers, there is one level at which level * w_x, clipped to the bounds, has that sum (water-filling).
Largest remainders then give integers. P is the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.schema import STRICT, Share
from nemo_ada.errors import UserError

_ROUNDING = 1e-9
_MIN_WEIGHT = 1e-12


@dataclass(frozen=True)
class PowerRule:
    """N_x is proportional to p_hat^-exponent."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["power"] = "power"
    exponent: Share = 0.5
    """Exponent of the rule: 1/2 is the paper's hybrid, 1 the pure implicit log, 0 uniform (GRPO)."""

    def weight(self, rate_P: FloatArray, epsilon: float) -> FloatArray:
        """Compute the weight of each prompt. `epsilon` is added to the pass rate."""
        return np.asarray(np.minimum(rate_P + epsilon, 1.0) ** -self.exponent)


@dataclass(frozen=True, slots=True)
class Allocation:
    """N_x is proportional to a weight of the predicted pass rate.

    Attributes:
        rule: the rule that computes the weight.
        low: smallest N_x, in responses.
        high: largest N_x, in responses.
        epsilon: added before the exponent is taken.
    """

    rule: PowerRule
    low: int
    high: int
    epsilon: float

    def compute_responses(self, rate_P: FloatArray, group: int, tie_P: FloatArray) -> IntArray:
        """Compute the responses per prompt.

        Args:
            rate_P: predicted pass rates.
            group: mean number of responses per prompt.
            tie_P: see `allocate`.
        """
        weight_P = self.rule.weight(rate_P, self.epsilon)
        return allocate(weight_P, group * len(rate_P), self.low, self.high, tie_P)


def allocate(weight_P: FloatArray, total: int, low: int, high: int, tie_P: FloatArray) -> IntArray:
    """Compute integers with a given sum. Between the bounds they are proportional to the weights.

    Args:
        weight_P: weights, which are not negative.
        total: sum of the result.
        low: smallest value.
        high: largest value.
        tie_P: a seeded key per prompt. Of two prompts with equal remainders, the one with the smaller key gets the last
            response.

    Raises:
        UserError: such integers do not exist.
    """
    prompts = len(weight_P)
    if low > high or not low * prompts <= total <= high * prompts:
        raise UserError(
            f"reinforce_ada.sampling: {total} responses cannot be split over {prompts} prompts with "
            f"min_responses={low} and max_responses={high}; a total from {low * prompts} to {high * prompts} would "
            f"work, or min_responses at most {total // max(prompts, 1)} and max_responses at least "
            f"{-(-total // max(prompts, 1))}"
        )
    real_P = water_fill(np.maximum(weight_P, _MIN_WEIGHT), total, low, high)
    whole_P = np.floor(real_P + _ROUNDING).astype(np.int64)
    # Rounded, so that remainders that are equal but for the last bit are a tie. A prompt at `high` gets no more.
    remainder_P = np.where(whole_P < high, np.round(real_P - whole_P, 9), -1.0)
    order_P = np.lexsort((tie_P, -remainder_P))
    whole_P[order_P[: total - int(whole_P.sum())]] += 1
    return whole_P


def water_fill(weight_P: FloatArray, total: int, low: int, high: int) -> FloatArray:
    """Compute clip(level * weight, low, high) at the largest level whose sum is at most `total`.

    The level is exact to the last bit.

    Args:
        weight_P: positive weights.
        total: largest sum.
        low: smallest value.
        high: largest value.
    """
    below, above = 0.0, high / float(weight_P.min())
    if np.clip(above * weight_P, low, high).sum() <= total:
        return np.clip(above * weight_P, low, high)
    while below < (middle := 0.5 * (below + above)) < above:
        if np.clip(middle * weight_P, low, high).sum() <= total:
            below = middle
        else:
            above = middle
    return np.clip(below * weight_P, low, high)
