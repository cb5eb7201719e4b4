"""Estimators and tests over prompts, as pure functions of numpy arrays. P prompts, B bootstrap samples.

The prompts are the sample: intervals and tests describe the variation over prompts of the same kind. With several
benchmarks, prompts are resampled within their benchmark (`stratum_P`), so every benchmark keeps its weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from nemo_ada.errors import UserError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
DRAWS = 10_000
CONFIDENCE = 0.95
BLOCK = 2_000_000  # random numbers held at once


def pass_at_k(responses_P: IntArray, correct_P: IntArray, k: int) -> FloatArray:
    """Per prompt, the unbiased estimate 1 - C(n - c, k) / C(n, k) of the chance that one of k responses is correct.

    n responses, of which c are correct; nan where n < k. Source: Chen et al. 2021, equation 1, as a product that cannot
    overflow. Raises UserError for k < 1 and for counts outside 0 <= c <= n.
    """
    n_P, c_P = np.asarray(responses_P, np.int64), np.asarray(correct_P, np.int64)
    if k < 1:
        raise UserError(f"pass@k needs k >= 1, not {k}")
    if (c_P < 0).any() or (c_P > n_P).any():
        raise UserError("pass@k needs 0 <= correct <= responses for every prompt")
    miss_P = np.ones(n_P.shape, np.float64)
    for i in range(k):  # C(n - c, k) / C(n, k) = prod of (n - c - i) / (n - i)
        miss_P *= np.maximum(n_P - c_P - i, 0) / np.maximum(n_P - i, 1)
    return np.where(n_P >= k, 1.0 - miss_P, np.nan)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts with its bootstrap interval."""

    mean: float
    low: float
    high: float
    prompts: int


def bootstrap_means(
    value_P: FloatArray, stratum_P: IntArray | None = None, draws: int = DRAWS, seed: int = 0
) -> FloatArray:
    """B means over prompts resampled with replacement, within each stratum."""
    values = np.asarray(value_P, np.float64)
    strata = np.zeros(len(values), np.int64) if stratum_P is None else np.asarray(stratum_P)
    rng = np.random.default_rng(seed)
    total_B = np.zeros(draws, np.float64)
    for stratum in np.unique(strata):
        own = values[strata == stratum]
        step = max(1, BLOCK // len(own))
        for start in range(0, draws, step):
            count = min(step, draws - start)
            total_B[start : start + count] += own[rng.integers(0, len(own), (count, len(own)))].sum(axis=1)
    return total_B / len(values)


def estimate(value_P: FloatArray, stratum_P: IntArray | None = None, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Mean over prompts and the percentile interval of CONFIDENCE. nan prompts are left out; nan where none is left."""
    values = np.asarray(value_P, np.float64)
    there = ~np.isnan(values)
    strata = None if stratum_P is None else np.asarray(stratum_P)[there]
    values = values[there]
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan, 0)
    low, high = _interval(bootstrap_means(values, strata, draws, seed))
    return Estimate(float(values.mean()), low, high, len(values))


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Mean difference (second minus first) over the same prompts.

    p_bootstrap, p_t: two-sided, of the paired bootstrap and of Student's paired t test. detectable: the true difference
    that the t test at 5 % finds with a chance of 80 %, given the spread of these differences.
    """

    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_t: float
    detectable: float
    prompts: int


def paired_test(
    first_P: FloatArray,
    second_P: FloatArray,
    stratum_P: IntArray | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> PairedTest:
    """Whether two models differ on the same prompts. Raises UserError for fewer than two prompts."""
    difference_P = np.asarray(second_P, np.float64) - np.asarray(first_P, np.float64)
    count = len(difference_P)
    if count < 2:
        raise UserError(f"a paired test needs at least two prompts in common, not {count}")
    means_B = bootstrap_means(difference_P, stratum_P, draws, seed)
    low, high = _interval(means_B)
    tail = min(int((means_B <= 0).sum()), int((means_B >= 0).sum()))
    p_bootstrap = min(1.0, 2.0 * (tail + 1) / (draws + 1))
    mean, spread = float(difference_P.mean()), float(difference_P.std(ddof=1))
    t = math.copysign(math.inf, mean) if spread == 0.0 else mean / (spread / math.sqrt(count))
    p_t = 1.0 if mean == 0.0 else student_p(t, count - 1)
    return PairedTest(mean, low, high, p_bootstrap, p_t, detectable_difference(spread, count), count)


def detectable_difference(spread: float, prompts: int) -> float:
    """The true difference that the paired test at 5 % finds with a chance of 80 % (normal approximation).

    spread: standard deviation of the differences per prompt.
    """
    quantile = NormalDist().inv_cdf
    return (quantile(0.975) + quantile(0.8)) * spread / math.sqrt(prompts)


def student_p(t: float, freedom: int) -> float:
    """Two-sided p-value of Student's t, for a whole number of degrees of freedom. Absolute error below 1e-12.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for i in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (i - 1) / i
        total += term
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def student_quantile(freedom: int) -> float:
    """The t that a variable of Student's t with this freedom exceeds in size with chance 1 - CONFIDENCE."""
    low, high = 0.0, 1e6
    for _ in range(70):  # halvings
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_p(middle, freedom) > 1.0 - CONFIDENCE else (low, middle)
    return high


def _interval(means_B: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(means_B, [(1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0])
    return float(low), float(high)
