"""The settings of the way from pools to training rows and their advantages, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from nemo_ada.core.learning.objectives import Linear, Objective
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.schema import STRICT, Bounds, Positive

Weighting = Literal["reference", "objective"]
Normalize = Literal["none", "std"]


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
    """

    group: int
    stop: StopRule
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    keep_all: bool = False
    exponent: float | None = None

    @property
    def shrunk_baseline(self) -> bool:
        """Whether the baseline is the posterior mean instead of the pool's mean."""
        return self.advantage.baseline == "shrunk"
