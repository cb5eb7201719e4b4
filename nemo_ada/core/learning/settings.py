"""The settings of the way from pools to training rows and their advantages, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from nemo_ada.core.learning.objectives import Linear, Objective
from nemo_ada.core.sampling.pass_rate import PassRateKind
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.schema import STRICT, Bounds, Positive

Weighting = Literal["reference", "objective"]
Normalize = Literal["none", "std", "batch"]


@dataclass(frozen=True)
class AdvantageSettings:
    """The settings of how pools become advantages (algorithm.md section 4)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    weighting: Weighting = "reference"
    """`reference` gives the authors' advantages. `objective` weighs rows by the inverse of their sampling probability.
    """
    objective: Objective = field(default_factory=Linear)
    """The objective J_f = E[f(p)]. Its weight f'(p) scales the advantage."""
    normalize: Normalize = "none"
    """`std` divides by the pool's standard deviation. `batch` centres and scales over all rows (SPO)."""
    baseline: Literal["pool", "shrunk"] = "pool"
    """`pool` is the pool's mean, `shrunk` the posterior mean from the other responses and the estimator's prior."""
    pass_rate: PassRateKind = "pool"
    """Estimate of p in the weight. With `baseline: shrunk`, and in Est with `weighting: objective`, `shrunk` leaves out
    the row's own label."""
    min_pass_rate: Annotated[float, Bounds(gt=0, lt=0.5)] = 0.01
    """Smallest estimate of p in weights."""
    max_weight: Positive = 100.0
    """Largest weight of a prompt, w_x."""
    denominator: Literal["all_rows", "live_rows"] = "all_rows"
    """The rows over whose tokens the loss is averaged, all rows or only rows with a gradient."""


@dataclass(frozen=True)
class RowSettings:
    """The settings of how pools become rows.

    Attributes:
        group: n, the rows per prompt.
        stop: how pools end, for the `haldane` estimate.
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

    @property
    def own_label_left_out(self) -> bool:
        """Whether a row's weight comes from the other responses of its pool and the prior, without its own label."""
        fixed = self.shrunk_baseline or (self.keep_all and self.advantage.weighting == "objective")
        return fixed and self.advantage.pass_rate == "shrunk"
