"""Estimators, intervals and tests over P problems, as pure functions of numpy arrays.

The problems are the sample: intervals and tests describe the variation over problems of the same kind. A value lies in
[0, 1], a difference in [-1, 1].

An interval is Wilson's, with as many binary observations as have the spread of the values, and Student's t with fewer
degrees of freedom where the values have long tails: a few solved problems among many unsolved ones say little about the
spread. It is never wider than Wilson's interval of binary values, which have the largest spread of all. So it has a
width where all values are equal, and for k = 1 it is Wilson's. `recipes/benchmarks/coverage.py` measures its coverage.
With several benchmarks (`stratum_P`) every benchmark keeps its weight, and the intervals are joined by the method of
variance estimates recovery (Zou and Donner 2008, "Construction of confidence limits about effect measures").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.errors import UserError

CONFIDENCE = 0.95
FLIPS = 10_000
BLOCK = 2_000_000  # random numbers held at once
FEW = 30
"""With fewer problems, an interval deserves a note."""
MEANS, DIFFERENCES = 0.5, 0.4
"""Shares of the degrees of freedom that the kurtosis implies. A sample underestimates the kurtosis of long tails.

Chosen by `recipes/benchmarks/coverage.py`. With 1.0 the intervals of rates near 0 cover 90 % with 30 problems."""
NORMAL = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)

Interval = tuple[float, float]


def pass_at_k(responses_P: IntArray, correct_P: IntArray, k: int) -> FloatArray:
    """Estimate per prompt the chance that one of k responses is correct.

    The estimate 1 - C(n - c, k) / C(n, k) is unbiased (Chen et al. 2021, equation 1). It is computed as a product that
    cannot overflow.

    Args:
        responses_P: The number n of responses.
        correct_P: The number c of correct responses.
        k: The number of responses of which one must be correct.

    Returns:
        The estimates [P], nan where n < k.

    Raises:
        UserError: k < 1, or a count is outside 0 <= c <= n.
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
    """A value with its bounds.

    Attributes:
        value: The value. NaN where nobody knows it.
        low: The lower bound: of the interval of CONFIDENCE, or the smallest value that the data allow.
        high: The upper bound.
    """

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the value in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def clip(self) -> Estimate:
        """Return a share, which has no bound outside 0 and 1."""
        return Estimate(*(min(max(value, 0.0), 1.0) for value in (self.value, self.low, self.high)))


UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def estimate(value_P: FloatArray, stratum_P: IntArray | None = None) -> Estimate:
    """Return the mean over problems and its interval.

    Problems with nan are left out. The result is nan where none is left.

    Args:
        value_P: The values in [0, 1].
        stratum_P: The number of each problem's benchmark.
    """
    values = np.asarray(value_P, np.float64)
    there = ~np.isnan(values)
    strata = _list_strata(values[there], None if stratum_P is None else np.asarray(stratum_P)[there])
    if not strata:
        return UNKNOWN
    low, high = _join_intervals(strata, mean_interval)
    return Estimate(float(values[there].mean()), max(low, 0.0), min(high, 1.0))


def mean_interval(value_P: FloatArray) -> Interval:
    """Return the interval of the mean of values in [0, 1]."""
    mean = float(value_P.mean())
    low, high = wilson(mean, len(value_P), NORMAL)
    variance, freedom = _estimate_spread(value_P, MEANS)
    if variance > 0.0:
        binary = mean * (1.0 - mean) / variance  # this many binary observations have the same variance
        narrow_low, narrow_high = wilson(mean, binary, student_quantile(freedom))
        low, high = max(low, narrow_low), min(high, narrow_high)
    return low, high


def wilson(mean: float, count: float, quantile: float) -> Interval:
    """Return Wilson's interval of a share of `count` observations.

    scipy.stats has this interval for whole numbers of observations only.
    """
    square = quantile * quantile / count
    centre = (mean + square / 2.0) / (1.0 + square)
    half = quantile * math.sqrt(max(mean * (1.0 - mean), 0.0) / count + square / (4.0 * count)) / (1.0 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def _estimate_spread(value_P: FloatArray, share: float) -> tuple[float, float]:
    """Estimate the variance of the mean of one sample, and the degrees of freedom of this estimate.

    The freedom is `share` of what the kurtosis implies, between 1 and count - 1.
    """
    count = len(value_P)
    deviation_P = value_P - value_P.mean()
    second = float((deviation_P**2).mean())
    if count < 2 or second <= 1e-24:  # rounding of equal values
        return 0.0, 1.0
    kurtosis = float((deviation_P**4).mean()) / second**2
    implied = 2.0 * count / max(kurtosis - (count - 3) / (count - 1), 1e-9)  # 2 V^2 / Var(V), normal: count - 1
    return second / (count - 1), min(max(share * implied, 1.0), count - 1.0)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference (second minus first) over the same problems.

    Attributes:
        difference: The mean difference.
        low: The lower end of its interval.
        high: The upper end of its interval.
        p_t: The two-sided p-value of Student's paired t test, with degrees of freedom as in the intervals.
        p_flips: The p-value of the sign-flip test. It is exact where both models have the same chances on each problem.
        detectable: The true difference that a test at 5 % finds with a chance of 80 %, given this spread.
        prompts: The number of problems.
    """

    difference: float
    low: float
    high: float
    p_t: float
    p_flips: float
    detectable: float
    prompts: int


def paired_test(
    first_P: FloatArray,
    second_P: FloatArray,
    stratum_P: IntArray | None = None,
    *,
    flips: int = FLIPS,
) -> PairedTest:
    """Test whether two models differ on the same problems.

    Args:
        first_P: The values of the model that is subtracted.
        second_P: The values of the other one.
        stratum_P: The number of each problem's benchmark.
        flips: The number of random signs of the sign-flip test.

    Raises:
        UserError: There are fewer than two problems.
    """
    from scipy import special

    difference_P = np.asarray(second_P, np.float64) - np.asarray(first_P, np.float64)
    count = len(difference_P)
    if count < 2:
        raise UserError(f"a paired test needs at least two prompts in common, not {count}")
    mean = float(difference_P.mean())
    strata = _list_strata(difference_P, stratum_P)
    low, high = _join_intervals(strata, difference_interval)
    variance, freedom = _pool_variances(strata)
    shares = 1.0 / sum(one.weight**2 / len(one.value_P) for one in strata)
    bound = _bound_variance(difference_P, shares)
    if variance > 0.0:
        p_t = 2.0 * float(special.stdtr(freedom, -abs(mean) / math.sqrt(variance)))
        if 0.0 < bound < variance:
            p_t = min(p_t, 2.0 * (1.0 - NormalDist().cdf(abs(mean) / math.sqrt(bound))))
    else:
        p_t = 1.0 if mean == 0.0 else 2.0 ** (1 - count)  # all are equal: the sign test
    return PairedTest(
        difference=mean,
        low=max(low, -1.0),
        high=min(high, 1.0),
        p_t=min(1.0, p_t),
        p_flips=flip_test(difference_P, flips),
        detectable=detectable_difference(math.sqrt((variance or bound) * count), count),
        prompts=count,
    )


def difference_interval(difference_P: FloatArray) -> Interval:
    """Return the interval of the mean of differences in [-1, 1]."""
    mean = float(difference_P.mean())
    variance, freedom = _estimate_spread(difference_P, DIFFERENCES)
    largest = NORMAL * math.sqrt(_bound_variance(difference_P, len(difference_P)))
    if variance > 0.0:
        half = min(student_quantile(freedom) * math.sqrt(variance), largest)
        return mean - half, mean + half
    if mean == 0.0:
        return -largest, largest
    low, high = wilson((1.0 + mean) / 2.0, len(difference_P), NORMAL)
    return 2.0 * low - 1.0, 2.0 * high - 1.0


def flip_test(difference_P: FloatArray, flips: int = FLIPS, seed: int = 0) -> float:
    """Return the two-sided p-value of the mean when each difference is as likely positive as negative.

    The p-value is never 0. scipy.stats.permutation_test draws other signs, so it would change published values.
    """
    nonzero = difference_P[difference_P != 0.0]
    if not len(nonzero):
        return 1.0
    rng = np.random.default_rng(seed)
    least = abs(float(nonzero.sum())) - 1e-9 * float(np.abs(nonzero).sum())  # ties count, whatever the rounding
    step, reached = max(1, BLOCK // len(nonzero)), 0
    for start in range(0, flips, step):
        signs = rng.integers(0, 2, (min(step, flips - start), len(nonzero))) * 2.0 - 1.0
        reached += int((np.abs(signs @ nonzero) >= least).sum())
    return (reached + 1) / (flips + 1)


def detectable_difference(spread: float, prompts: int) -> float:
    """Return the true difference that the paired test at 5 % finds with a chance of 80 % (normal approximation).

    Args:
        spread: The standard deviation of the differences per prompt.
        prompts: The number of problems.
    """
    quantile = NormalDist().inv_cdf
    return (quantile(0.975) + quantile(0.8)) * spread / math.sqrt(prompts)


def student_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the t that a variable of Student's t exceeds in size with a chance of 1 - `confidence`."""
    from scipy import special  # its functions take microseconds, those of scipy.stats 50 times as long

    return float(special.stdtrit(freedom, (1.0 + confidence) / 2.0))


@dataclass(frozen=True, slots=True, eq=False)
class Stratum:
    """The sample of one benchmark.

    Attributes:
        value_P: One value per problem.
        weight: The share of all problems that are in this stratum.
    """

    value_P: FloatArray
    weight: float


def _list_strata(value_P: FloatArray, stratum_P: IntArray | None) -> list[Stratum]:
    """Return the sample of each stratum that has some."""
    stratum_P = np.zeros(len(value_P), np.int64) if stratum_P is None else np.asarray(stratum_P)
    inside = [stratum_P == stratum for stratum in np.unique(stratum_P)]
    return [Stratum(value_P[inside_P], float(inside_P.mean())) for inside_P in inside]


def _join_intervals(strata: list[Stratum], interval: Callable[[FloatArray], Interval]) -> Interval:
    """Return the interval of the mean over all strata, from the interval of each."""
    centre, below, above = 0.0, 0.0, 0.0
    for one in strata:
        mean = float(one.value_P.mean())
        low, high = interval(one.value_P)
        centre += one.weight * mean
        below += (one.weight * (mean - low)) ** 2
        above += (one.weight * (high - mean)) ** 2
    return centre - math.sqrt(below), centre + math.sqrt(above)


def _pool_variances(strata: list[Stratum]) -> tuple[float, float]:
    """Return the variance of the mean over all strata, and its freedom after Satterthwaite.

    A stratum of one problem adds nothing.
    """
    parts = [(*_estimate_spread(one.value_P, DIFFERENCES), one.weight) for one in strata]
    variance = sum(weight**2 * own for own, _, weight in parts)
    if variance == 0.0:
        return _estimate_spread(np.concatenate([one.value_P for one in strata]), DIFFERENCES)
    return variance, variance**2 / sum((weight**2 * own) ** 2 / freedom for own, freedom, weight in parts)


def _bound_variance(difference_P: FloatArray, count: float) -> float:
    """Return an upper bound of the variance of the mean of `count` equal shares.

    It is that of differences of this size on average, all of them -1, 0 or 1.
    """
    mean = float(difference_P.mean())
    _, size = wilson(min(float(np.abs(difference_P).mean()), 1.0), count, NORMAL)
    return max(size - mean**2, 0.0) / count
