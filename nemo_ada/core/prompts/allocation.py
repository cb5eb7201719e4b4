"""How many responses each prompt gets in Reinforce-Ada-Est (algorithm.md section 3; paper, Fig. 7).

N_x is proportional to a weight of the predicted pass rate, within bounds, an integer, with an exact sum. With real
numbers, low <= level * w_x <= high has one level whose sum is the total (water-filling). Largest remainders then give
integers. P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.schema import STRICT, Bounds, ByKind, Share
from nemo_ada.errors import UserError

_ROUNDING = 1e-9
_MIN_WEIGHT = 1e-12


@dataclass(frozen=True)
class PowerRule:
    """N_x proportional to p_hat^-exponent."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["power"] = "power"
    exponent: Share = 0.5
    """1/2 is the paper's hybrid, 1 the pure implicit log, 0 uniform (GRPO)."""

    def weight(self, rate_P: FloatArray, epsilon: float) -> FloatArray:
        """Weight of each prompt. epsilon: added to the pass rate."""
        return np.asarray(np.minimum(rate_P + epsilon, 1.0) ** -self.exponent)


@dataclass(frozen=True)
class InformationRule:
    """N_x proportional to (p_hat (1 - p_hat))^exponent: what a response is expected to add to the gradient (ours)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["information"] = "information"
    exponent: Annotated[float, Bounds(ge=0, le=8)] = 1.0
    """0 is uniform; 1/2 gives the unbiased mean over prompts its smallest variance; large values fill the most
    promising prompts up to max_responses."""

    def weight(self, rate_P: FloatArray, epsilon: float) -> FloatArray:
        """Weight of each prompt. epsilon: added to p (1-p)."""
        return np.asarray((rate_P * (1.0 - rate_P) + epsilon) ** self.exponent)


AllocationRule = Annotated[PowerRule | InformationRule, ByKind()]


@dataclass(frozen=True, slots=True)
class Allocation:
    """N_x proportional to a weight of the predicted pass rate.

    Attributes:
        rule: the weight.
        low: smallest N_x, in responses.
        high: largest N_x, in responses.
        epsilon: added before the exponent is taken.
    """

    rule: AllocationRule
    low: int
    high: int
    epsilon: float

    def responses(self, rate_P: FloatArray, group: int, tie_P: FloatArray) -> IntArray:
        """Responses per prompt for predicted pass rates, `group` on average. tie_P: as in `allocate`."""
        weight_P = self.rule.weight(rate_P, self.epsilon)
        return allocate(weight_P, group * len(rate_P), self.low, self.high, tie_P)


def allocate(weight_P: FloatArray, total: int, low: int, high: int, tie_P: FloatArray) -> IntArray:
    """Integers N_P with low <= N_P <= high and sum `total`, proportional to weight_P wherever no bound holds.

    weight_P: non-negative. tie_P: a seeded key per prompt. Of two prompts with equal remainders, the one with the
    smaller key gets the last response. Raises UserError when no such integers exist.
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
    remainder_P = np.where(whole_P < high, np.round(real_P - whole_P, 9), -1.0)
    order_P = np.lexsort((tie_P, -remainder_P))
    whole_P[order_P[: total - int(whole_P.sum())]] += 1
    return whole_P


def water_fill(weight_P: FloatArray, total: int, low: int, high: int) -> FloatArray:
    """clip(level * weight, low, high) at the largest level, to the last bit, whose sum is at most `total`.

    weight_P: positive.
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
