"""What is maximised: J_f = E_x[f(p(x))], and how its weight f'(p) is realised (algorithm.md section 1).

f'(p) = w_sample(p) * w_grad(p): the first factor by drawing more responses, the second by scaling the advantage.
Only Est has a first factor (it trains on all it draws); downsampling to n rows removes it, so Seq has w_sample = 1.

| share | w_sample | with the log objective, w_grad is |
|---|---|---|
| PowerShare(0) | 1 | 1/p (all explicit; GRPO's allocation) |
| PowerShare(1/2) | p^-1/2 | p^-1/2 (the paper's hybrid) |
| PowerShare(1) | 1/p | 1 (all implicit) |
| VarianceShare | sqrt((1-p)/p) | 1/sqrt(p(1-p)), i.e. GRPO's own advantage (paper, appendix B) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import FloatArray


class Objective(Protocol):
    """f and f' for pass rates in (0, 1]."""

    def value(self, p_P: FloatArray) -> FloatArray: ...

    def weight(self, p_P: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """f(p) = p: standard RL."""

    def value(self, p_P: FloatArray) -> FloatArray:
        return p_P

    def weight(self, p_P: FloatArray) -> FloatArray:
        return np.ones_like(p_P)


@dataclass(frozen=True, slots=True)
class Log:
    """f(p) = log p: maximum likelihood of being correct."""

    def value(self, p_P: FloatArray) -> FloatArray:
        return np.log(p_P)

    def weight(self, p_P: FloatArray) -> FloatArray:
        return np.asarray(1.0 / p_P)


@dataclass(frozen=True, slots=True)
class Power:
    """f(p) = p^a, a > 0: between linear (a = 1) and, up to a constant factor, log (a -> 0)."""

    a: float = 0.5

    def value(self, p_P: FloatArray) -> FloatArray:
        return np.asarray(p_P**self.a)

    def weight(self, p_P: FloatArray) -> FloatArray:
        return np.asarray(self.a * p_P ** (self.a - 1.0))


class SamplingShare(Protocol):
    """w_sample(p): what the number of responses is proportional to."""

    def weight(self, p_P: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class PowerShare:
    """N_x ∝ p^-exponent, exponent in [0, 1]."""

    exponent: float = 0.5

    def weight(self, p_P: FloatArray) -> FloatArray:
        return np.asarray(p_P**-self.exponent)


@dataclass(frozen=True, slots=True)
class VarianceShare:
    """N_x ∝ sqrt((1-p)/p): least variance under the log objective with a baseline. 0 from p = 1 on (p_hat + eps)."""

    def weight(self, p_P: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(np.maximum(1.0 - p_P, 0.0) / p_P))


def gradient_weight(
    objective: Objective,
    rate_P: FloatArray,
    *,
    share: SamplingShare | None = None,
    min_pass_rate: float = 1e-3,
    max_weight: float = np.inf,
) -> FloatArray:
    """w_grad = f'(p) / w_sample(p) per prompt, with p kept in [min_pass_rate, 1 - min_pass_rate] and w <= max_weight.

    share: None where sampling realises nothing (Seq, GRPO, and `weighting: objective`, whose rows carry the inverse of
    what was really drawn). The upper bound on p only matters for VarianceShare, whose w_grad diverges at p = 1.
    """
    if share is None:
        return np.minimum(objective.weight(np.maximum(rate_P, min_pass_rate)), max_weight)
    p_P = np.clip(rate_P, min_pass_rate, 1.0 - min_pass_rate)
    return np.minimum(objective.weight(p_P) / share.weight(p_P), max_weight)
