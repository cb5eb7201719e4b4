"""The settings of the way from pools to training rows and their advantages, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.objectives import Linear, Objective
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.schema import STRICT, Bounds, Positive
from nemo_ada.errors import UserError

Weighting = Literal["reference", "objective"]
Normalize = Literal["none", "std"]
ROUNDING = 1e-6  # of rewards that a back end computes in 32 bits, as a share of their range


@dataclass(frozen=True)
class AdvantageSettings:
    """The settings of how pools become advantages (algorithm.md section 4)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    weighting: Weighting = "reference"
    """`reference` gives the authors' advantages. `objective` weighs groups so that the mean update follows `objective`,
    whatever the exit rule (`nemo-ada simulate --objective`)."""
    objective: Objective = field(default_factory=Linear)
    """The objective J_f = E[f(p)]. With `weighting: reference`, f' of the pool's pass rate scales the advantage."""
    normalize: Normalize = "none"
    """`std` divides by the pool's standard deviation."""
    baseline: Literal["pool", "leave_one_out", "shrunk"] = "pool"
    """`pool` is the pool's mean, `leave_one_out` that of the other responses. `shrunk` is the posterior mean from these
    and the estimator's prior."""
    min_pass_rate: Annotated[float, Bounds(gt=0, lt=0.5)] = 0.01
    """Smallest pass rate in weights of `weighting: reference`."""
    max_weight: Positive = 100.0
    """Largest weight of a prompt, w_x, with `weighting: reference`."""
    denominator: Literal["all_rows", "live_rows"] = "all_rows"
    """The rows over whose tokens the loss is averaged, all rows or only rows with a gradient."""


@dataclass(frozen=True)
class RowSettings:
    """The settings of how pools become rows.

    Attributes:
        group: n, the rows per prompt.
        stop: how pools end.
        advantage: how advantages are computed.
        keep_all: whether every response is a row (Est).
        exponent: the part of the weight that the allocation realised, p^-exponent (Est with `reference` weighting).
        reward_range: smallest and largest reward of the update. `baseline: shrunk` has a prior of mean rewards over it.
    """

    group: int
    stop: StopRule
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    keep_all: bool = False
    exponent: float | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)

    def share_of_range(self, reward_N: FloatArray) -> FloatArray:
        """Return where rewards lie within the range, from 0.0 to 1.0.

        Raises:
            UserError: a reward is outside.
        """
        low, high = self.reward_range
        share_N = (reward_N - low) / (high - low)
        if not ((share_N >= -ROUNDING) & (share_N <= 1.0 + ROUNDING)).all():
            raise UserError(
                "reinforce_ada.advantage.baseline=shrunk compares rewards with a prior of mean rewards in "
                f"[{low:g}, {high:g}], and there are others; with these use baseline: pool"
            )
        return np.asarray(np.clip(share_N, 0.0, 1.0))

    @property
    def shrunk_baseline(self) -> bool:
        """Whether the baseline is the posterior mean instead of the pool's mean."""
        return self.advantage.baseline == "shrunk"
