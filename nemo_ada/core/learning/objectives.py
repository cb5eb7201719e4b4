"""The objective J_f = E_x[f(p(x))], and how sampling and gradient share its weight (algorithm.md section 1).

f'(p) = w_sample(p) * w_grad(p). More responses realise the first factor, a scaled advantage the second. Only Est has a
first factor, p^-exponent, because it trains on all responses. Seq keeps n rows per prompt, so its w_sample is 1.

| exponent | w_sample | w_grad with the log objective |
|---|---|---|
| 0 | 1 | 1/p (all explicit; GRPO's allocation) |
| 1/2 | p^-1/2 | p^-1/2 (the paper's hybrid) |
| 1 | 1/p | 1 (all implicit) |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from nemo_ada.by_name import check_part, make_object
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.schema import STRICT, Bounds, ByKind, Positive
from nemo_ada.errors import UserError


@dataclass(frozen=True)
class Linear:
    """f(p) = p: standard RL."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["linear"] = "linear"

    def value(self, p_P: FloatArray) -> FloatArray:
        """Compute f of each pass rate."""
        return p_P

    def weight(self, p_P: FloatArray) -> FloatArray:
        """Compute f' of each pass rate."""
        return np.ones_like(p_P)


@dataclass(frozen=True)
class Log:
    """f(p) = log p: maximum likelihood of a correct response."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["log"] = "log"

    def value(self, p_P: FloatArray) -> FloatArray:
        """Compute f of each pass rate."""
        return np.log(p_P)

    def weight(self, p_P: FloatArray) -> FloatArray:
        """Compute f' of each pass rate."""
        return np.asarray(1.0 / p_P)


@dataclass(frozen=True)
class Power:
    """f(p) = p^a, a > 0: between linear (a = 1) and, up to a constant factor, log (a -> 0)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["power"] = "power"
    a: Positive = 0.5
    """Exponent a."""

    def value(self, p_P: FloatArray) -> FloatArray:
        """Compute f of each pass rate."""
        return np.asarray(p_P**self.a)

    def weight(self, p_P: FloatArray) -> FloatArray:
        """Compute f' of each pass rate."""
        return np.asarray(self.a * p_P ** (self.a - 1.0))


@dataclass(frozen=True)
class PassAtK:
    """f(p) = 1 - (1-p)^k: the chance that at least one of k responses is correct."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    kind: Literal["pass_at_k"] = "pass_at_k"
    k: Annotated[int, Bounds(gt=0)] = 4
    """Responses of which one must be correct."""

    def value(self, p_P: FloatArray) -> FloatArray:
        """Compute f of each pass rate."""
        return np.asarray(1.0 - (1.0 - p_P) ** self.k)

    def weight(self, p_P: FloatArray) -> FloatArray:
        """Compute f' of each pass rate."""
        return np.asarray(self.k * (1.0 - p_P) ** (self.k - 1))


@dataclass(frozen=True)
class Own:
    """f of your own (recipes/extend/objective.py): a class with `value` and `weight`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    name: str
    """The class, as `package.module:Class`."""
    kind: Literal["own"] = "own"
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the class."""

    def value(self, p_P: FloatArray) -> FloatArray:
        """Compute f of each pass rate."""
        return np.asarray(_load_own(self.name, repr(self.arguments), self).value(p_P), np.float64)

    def weight(self, p_P: FloatArray) -> FloatArray:
        """Compute f' of each pass rate."""
        return np.asarray(_load_own(self.name, repr(self.arguments), self).weight(p_P), np.float64)


@lru_cache(maxsize=8)
def _load_own(name: str, _arguments: str, settings: Own) -> Any:
    """Return the user's object. Raises UserError where it gives no number for a pass rate, or decreases."""
    key = "reinforce_ada.advantage.objective.name"
    own = make_object(key, name, **settings.arguments)
    rate_P = np.linspace(0.02, 0.98, 49)
    value_P = np.asarray(check_part(key, name, lambda: own.value(rate_P), float, len(rate_P)))
    weight_P = np.asarray(check_part(key, name, lambda: own.weight(rate_P), float, len(rate_P)))
    for what, fits_P in (
        ("value is no number", np.isfinite(value_P)),
        ("weight is no number", np.isfinite(weight_P)),
        ("weight is negative, and an objective must not decrease", ~(weight_P < 0.0)),
    ):
        if not fits_P.all():
            raise UserError(f"{key}={name!r}: its {what} at p = {rate_P[~fits_P][0]:.2f}; give f and f' >= 0")
    return own


Objective = Annotated[Linear | Log | Power | PassAtK | Own, ByKind()]
"""The function that an update raises. Each class has f as `value` and f' as `weight`, for pass rates in (0, 1]."""


def compute_gradient_weight(
    objective: Objective,
    rate_P: FloatArray,
    *,
    exponent: float | None = None,
    min_pass_rate: float,
    max_weight: float,
) -> FloatArray:
    """Compute w_grad = f'(p) / w_sample(p) per prompt, at most max_weight, with p at least min_pass_rate.

    Args:
        objective: f and f'.
        rate_P: estimated pass rates.
        exponent: exponent of the allocation, for which w_sample = p^-exponent, with p at most 1 - min_pass_rate. It is
            None where sampling realises nothing, as in Seq and GRPO. `weighting: objective` has weights of its own
            (factor.py).
        min_pass_rate: smallest pass rate.
        max_weight: largest weight.
    """
    if exponent is None:
        return np.minimum(objective.weight(np.maximum(rate_P, min_pass_rate)), max_weight)
    p_P = np.clip(rate_P, min_pass_rate, 1.0 - min_pass_rate)
    return np.minimum(objective.weight(p_P) / p_P**-exponent, max_weight)
