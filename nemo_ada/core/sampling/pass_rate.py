"""Estimates of a prompt's pass rate p from its pool (algorithm.md section 4, `pass_rate: ...`). P prompts.

| kind | estimate | unbiased for |
|---|---|---|
| pool | n_pos / N | pools whose size does not depend on their labels: fixed(n), Est, GRPO |
| haldane | paths from (1, 0) / paths from (0, 0) to the pool's counts | every exit, wave plan and cap; see below |
| first_wave | n_pos / N of the first wave | `wave` stopping, every exit |
| shrunk | (n_pos + s m) / (N + s), prior mean m worth s responses | nothing; smallest error where the prior is good |

`haldane` is the mean of the first response's label given the pool's counts. All orders of labels that lead to the same
counts are equally probable, so it is a ratio of path counts that does not contain p, and its mean is E[r_1] = p. It is
the Rao-Blackwell form of `first_wave` and has these special cases (N responses, stop at the exact response):
  positive(K), ended by the K-th success: C(N-2, K-2) / C(N-1, K-1) = (K-1)/(N-1) (Haldane, 1945);
  balanced(K+, K-), ended by the K+-th success: (K+-1)/(N-1); by the K--th failure: 1 - (K--1)/(N-1); with exactly
  (K+, K-) either side may have come last and every order survives: K+/(K+ + K-);
  ended by the cap without the exit, or fixed(n): every order survives: n_pos / N.
A pool that another budget ended before its exit is treated as if that were its cap, which is right as long as the
budget did not look at this prompt's labels: a cap that cuts by chance does not, `greedy` does, and so does time where
wrong answers are longer. With K = 1 at the exact response the estimate is 0 or 1 (the first response alone): unbiased
and useless, so the configuration asks for K >= 2 there.

Each estimate also comes with `contrast`, its estimate of p (1-p) that leave-one-out baselines need (see `advantage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.paths import StopRule, path_counts

PassRateKind = Literal["pool", "haldane", "first_wave", "shrunk"]


@dataclass(frozen=True, slots=True)
class PassRateEstimates:
    """rate_P estimates p; contrast_P estimates p (1-p), without bias wherever rate_P has none and N >= 2."""

    rate_P: FloatArray
    contrast_P: FloatArray


def pool(pos_P: IntArray, total_P: IntArray) -> PassRateEstimates:
    """n_pos / N and n_pos n_neg / (N (N-1)). An empty pool has rate and contrast 0, a pool of one contrast 0."""
    rate_P = pos_P / np.maximum(total_P, 1)
    return PassRateEstimates(rate_P, rate_P * (total_P - pos_P) / np.maximum(total_P - 1, 1))


def haldane(pos_P: IntArray, total_P: IntArray, rule: StopRule) -> PassRateEstimates:
    """Path-count estimates k_10 / k of p and k_11 / k of p (1-p) for pools that `rule` ended.

    A pool that no path of the rule leads to can only come from a wave that failed verifications shortened; it gets
    the `pool` estimate.
    """
    counts = path_counts(rule)
    total_P = np.asarray(total_P)
    all_P = counts.all_NK[total_P, pos_P]
    reached_P = np.isfinite(all_P) & (total_P > 0)
    all_P = np.where(reached_P, all_P, 0.0)
    other = pool(pos_P, total_P)
    return PassRateEstimates(
        np.where(reached_P, np.exp(counts.from_pos_NK[total_P, pos_P] - all_P), other.rate_P),
        np.where(reached_P, np.exp(counts.from_mixed_NK[total_P, pos_P] - all_P), other.contrast_P),
    )


def first_wave(first_pos_P: IntArray, first_total_P: IntArray) -> PassRateEstimates:
    """`pool` of the first wave alone, whose size no label decides."""
    return pool(first_pos_P, first_total_P)


def shrunk(
    pos_P: IntArray, total_P: IntArray, prior_mean_P: FloatArray, strength: float | FloatArray
) -> PassRateEstimates:
    """(n_pos + s m) / (N + s): the posterior mean under Beta(s m, s (1-m)).

    contrast: rate (1 - rate) (N + s) / (N + s - 1), which makes the baseline of a row the same estimate without it.
    """
    mass_P = total_P + np.asarray(strength, dtype=np.float64)
    rate_P = (pos_P + strength * prior_mean_P) / np.where(mass_P > 0.0, mass_P, 1.0)
    return PassRateEstimates(
        rate_P, rate_P * (1.0 - rate_P) * np.where(mass_P > 1.0, mass_P / np.maximum(mass_P - 1.0, 1.0), 1.0)
    )


def estimate(
    kind: PassRateKind,
    pos_P: IntArray,
    total_P: IntArray,
    *,
    first_pos_P: IntArray,
    first_total_P: IntArray,
    rule: StopRule,
    prior_mean_P: FloatArray,
    strength: float | FloatArray,
) -> PassRateEstimates:
    """The estimate named `kind`."""
    if kind == "pool":
        return pool(pos_P, total_P)
    if kind == "haldane":
        return haldane(pos_P, total_P, rule)
    if kind == "first_wave":
        return first_wave(first_pos_P, first_total_P)
    return shrunk(pos_P, total_P, prior_mean_P, strength)
