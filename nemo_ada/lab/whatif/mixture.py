"""The distribution of pass rates behind groups of labels, and what follows from it for pools that nobody drew.

The distribution is a mixture over fixed pass rates, so no shape is assumed. Its weights have the largest likelihood.
Groups of n responses say only little about much deeper pools: many distributions give the same groups of n. So each
figure has bounds. They are its smallest and largest value over all distributions whose shares of groups with 0 to n
correct responses lie within an interval around the logged shares. The intervals hold jointly with CONFIDENCE, so all
figures are within their bounds together with that confidence (the F-localization of Ignatiadis and Wager, 2022).
Axes: J pass rates, G groups, K numbers of correct responses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.lab.evaluation.statistics import CONFIDENCE, UNKNOWN, Estimate, wilson

if TYPE_CHECKING:
    from nemo_ada.lab.whatif.rollouts import Labels

ROUNDS, PRECISION = 4000, 1e-9
CELLS = 4  # intervals of the cost in which a ratio is bounded
INFEASIBLE = 2  # linprog's word for it
TILTS, PENALTY = 200, 1e-5  # of the search for the largest entropy


def make_pass_rates() -> FloatArray:
    """Return the pass rates of the mixture: 0, 1, and others that are dense near both."""
    angles = np.sin(np.linspace(0.0, np.pi / 2.0, 63)[1:-1]) ** 2
    tail = np.geomspace(1e-5, angles[0], 9)[:-1]
    return np.concatenate([[0.0], tail, angles, (1.0 - tail)[::-1], [1.0]])


RATE_J = make_pass_rates()


def compute_no_spread(group: int) -> FloatArray:
    """Return the probability [J] that all labels of a group are equal."""
    return RATE_J**group + (1.0 - RATE_J) ** group


def compute_binomial(pos_K: IntArray, total_K: IntArray) -> FloatArray:
    """Return the probability of `pos` correct ones among `total` responses [K, J]."""
    from scipy.special import gammaln, xlog1py, xlogy

    pos_K1, total_K1 = np.asarray(pos_K, np.float64)[:, None], np.asarray(total_K, np.float64)[:, None]
    ways_K1 = gammaln(total_K1 + 1) - gammaln(pos_K1 + 1) - gammaln(total_K1 - pos_K1 + 1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(ways_K1 + xlogy(pos_K1, RATE_J) + xlog1py(total_K1 - pos_K1, -RATE_J)))


def fit_weights(pos_G: IntArray, total_G: IntArray) -> FloatArray:
    """Return the weights [J] with the largest likelihood, by the EM algorithm from equal weights."""
    size = int(total_G.max()) + 1
    code_K, count_K = np.unique(total_G * size + pos_G, return_counts=True)
    chance_KJ = compute_binomial(code_K % size, code_K // size)
    weight_J = np.full(len(RATE_J), 1.0 / len(RATE_J))
    for _ in range(ROUNDS):
        share_KJ = chance_KJ * weight_J
        share_KJ /= share_KJ.sum(axis=1, keepdims=True)
        new_J = count_K @ share_KJ / count_K.sum()
        moved, weight_J = np.abs(new_J - weight_J).max(), new_J
        if moved < PRECISION:
            break
    return weight_J


@dataclass(frozen=True, slots=True)
class Mixture:
    """The distribution of pass rates of a log.

    Attributes:
        weight_J: The most likely weights.
        chance_KJ: Probability of each number of correct responses among `depth`, by pass rate.
        low_K: Lower ends of the shares of groups with that number.
        high_K: Upper ends.
        widened: By how much the intervals had to grow until a distribution fits. 0 for independent responses.
    """

    weight_J: FloatArray
    chance_KJ: FloatArray
    low_K: FloatArray
    high_K: FloatArray
    widened: float = 0.0

    @classmethod
    def fit(cls, logged: Labels) -> Mixture:
        """Fit the distribution of some groups."""
        depth, deep_G = logged.depth, logged.total_G >= logged.depth
        pos_G, prompt_G = logged.first_pos_G[deep_G], logged.prompt_G[deep_G]
        share_K = np.bincount(pos_G, minlength=depth + 1) / len(pos_G)
        quantile = NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / (2.0 * (depth + 1)))
        ends = [
            wilson(float(share), _count_independent(pos_G == k, float(share), prompt_G), quantile)
            for k, share in enumerate(share_K)
        ]
        low_K, high_K = np.array(ends).T
        chance_KJ = compute_binomial(np.arange(depth + 1), np.full(depth + 1, depth))
        return cls._enclose(fit_weights(logged.pos_G, logged.total_G), chance_KJ, low_K, high_K)

    @classmethod
    def from_moments(cls, value_KJ: FloatArray, means: Sequence[Estimate]) -> Mixture:
        """Fit the distribution to means over prompts, where the groups themselves are gone.

        Many distributions have these means. The weights are those with the largest entropy among them, and the bounds
        hold for all of them.

        Args:
            value_KJ: Each quantity by pass rate.
            means: Its logged mean, with an interval. The mean is NaN where only its bounds are known.
        """
        mean_K, low_K, high_K = np.array([(mean.value, mean.low, mean.high) for mean in means]).T
        known_K = np.isfinite(mean_K)
        return cls._enclose(_maximise_entropy(value_KJ[known_K], mean_K[known_K]), value_KJ, low_K, high_K)

    @classmethod
    def _enclose(cls, weight_J: FloatArray, chance_KJ: FloatArray, low_K: FloatArray, high_K: FloatArray) -> Mixture:
        """Make the mixture, with intervals that are wide enough for some distribution."""
        widened = _find_widening(chance_KJ, low_K, high_K)
        if widened > 0.0:
            half_K = (high_K - low_K) / 2.0 * widened
            low_K, high_K = low_K - half_K, high_K + half_K
        return cls(weight_J, chance_KJ, low_K, high_K, widened)

    def share(self, value_J: FloatArray) -> Estimate:
        """Return the mean of a quantity that is a share, with bounds between 0 and 1."""
        return self.mean(value_J).clip()

    def mean(self, value_J: FloatArray, per_J: FloatArray | None = None) -> Estimate:
        """Return the mean of a quantity over prompts, or the ratio of two means.

        Args:
            value_J: The quantity by pass rate.
            per_J: The quantity of the denominator, which is positive somewhere. None for 1.
        """
        below_J = np.ones(len(RATE_J)) if per_J is None else per_J
        total = float(self.weight_J @ below_J)
        if total <= 0.0:
            return UNKNOWN
        value = float(self.weight_J @ value_J) / total
        if per_J is None and np.ptp(value_J) == 0.0:
            return Estimate(value, value, value)
        low, high = (self._find_extreme(sign * value_J, below_J)[0] for sign in (1.0, -1.0))
        low, high = (-np.inf if math.isnan(end) else end for end in (low, high))  # a rounding error
        return Estimate(value, min(low, value), max(-high, value))

    def per_cost(self, value_J: FloatArray, per_J: FloatArray, cost_J: FloatArray) -> Estimate:
        """Return the ratio of two means, divided by a third mean, the cost.

        The bounds of the ratio and of the cost are not reached by the same pass rates. So the ratio is bounded within
        each of CELLS intervals of the cost.
        """
        ratio, cost = self.mean(value_J, per_J), self.mean(cost_J)
        lows, highs = [ratio.low / cost.high], [ratio.high / cost.low]
        if cost.low < cost.high and math.isfinite(ratio.value):
            edges = np.linspace(cost.low, cost.high, CELLS + 1)
            cells = []
            for least, most in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                cell = replace(
                    self, chance_KJ=np.vstack([self.chance_KJ, cost_J]), low_K=np.r_[self.low_K, least],
                    high_K=np.r_[self.high_K, most],
                )  # fmt: skip
                low, high = (cell._find_extreme(sign * value_J, per_J)[0] for sign in (1.0, -1.0))
                cells += [(low / most, -high / least)] if not math.isnan(low + high) else []
            lows, highs = [low for low, _ in cells] or lows, [high for _, high in cells] or highs
        value = ratio.value / cost.value
        return Estimate(value, min(*lows, value), max(*highs, value))

    def _find_extreme(self, value_J: FloatArray, below_J: FloatArray) -> tuple[float, FloatArray]:
        """Return the smallest ratio, and its weights [J] (the linear programme of Charnes and Cooper, 1962).

        The ratio is nan where no weights fit, and -inf where it has no bound. The variables are the weights times a
        factor t, and t, so that the denominator is 1.
        """
        from scipy.optimize import linprog

        bands = np.vstack(
            [np.c_[self.chance_KJ, -self.high_K], np.c_[-self.chance_KJ, self.low_K]]
        )  # low * t <= chance @ y <= high * t
        equal = np.vstack([np.r_[below_J, 0.0], np.r_[np.ones(len(RATE_J)), -1.0]])
        done = linprog(
            np.r_[value_J, 0.0], A_ub=bands, b_ub=np.zeros(len(bands)), A_eq=equal, b_eq=[1.0, 0.0], method="highs"
        )
        if done.status == INFEASIBLE:
            return np.nan, self.weight_J
        if done.x is None or done.status != 0:  # the denominator may be 0 within the bounds
            return -np.inf, self.weight_J
        weight_J = np.maximum(done.x[:-1], 0.0)
        return float(done.fun), weight_J / weight_J.sum()


def _maximise_entropy(value_KJ: FloatArray, mean_K: FloatArray) -> FloatArray:
    """Return the weights [J] of largest entropy with these means, relative to equal weights, by Newton's method.

    Where no weights have them all, a small penalty on the multipliers leaves the means a little apart.
    """
    tilt_K = np.zeros(len(mean_K))
    weight_J = np.full(len(RATE_J), 1.0 / len(RATE_J))

    def tilted(tilt_K: FloatArray) -> tuple[float, FloatArray]:
        exponent_J = tilt_K @ value_KJ
        top = float(exponent_J.max())
        share_J = np.exp(exponent_J - top)
        loss = top + math.log(float(share_J.sum())) - float(tilt_K @ mean_K) + PENALTY * float(tilt_K @ tilt_K) / 2.0
        return loss, share_J / share_J.sum()

    loss, weight_J = tilted(tilt_K)
    for _ in range(TILTS):
        found_K = value_KJ @ weight_J
        slope_K = found_K - mean_K + PENALTY * tilt_K
        spread_KK = (value_KJ * weight_J) @ value_KJ.T - np.outer(found_K, found_K)
        step_K = np.linalg.solve(spread_KK + PENALTY * np.eye(len(mean_K)), slope_K)
        size = 1.0
        while size > PRECISION:  # halve the step until the loss falls
            new_loss, new_J = tilted(tilt_K - size * step_K)
            if new_loss <= loss:
                break
            size /= 2.0
        else:
            break
        done = loss - new_loss < PRECISION
        tilt_K, loss, weight_J = tilt_K - size * step_K, new_loss, new_J
        if done:
            break
    return weight_J


def _count_independent(hit_G: BoolArray, share: float, prompt_G: IntArray) -> float:
    """Return the number of independent groups that say as much about a share as these, which share prompts."""
    count = len(hit_G)
    deviation_U = np.bincount(prompt_G, hit_G - share)
    squares = float((deviation_U**2).sum())
    if squares <= 0.0:
        return float(len(np.unique(prompt_G)))
    return min(float(count), share * (1.0 - share) * count**2 / squares)


def _find_widening(chance_KJ: FloatArray, low_K: FloatArray, high_K: FloatArray) -> float:
    """Return the smallest factor by which the half widths of the intervals must grow until some distribution fits."""
    from scipy.optimize import linprog

    half_K = (high_K - low_K) / 2.0
    bands = np.vstack([np.c_[chance_KJ, -half_K], np.c_[-chance_KJ, -half_K]])
    nodes = chance_KJ.shape[1]
    done = linprog(
        np.r_[np.zeros(nodes), 1.0], A_ub=bands, b_ub=np.r_[high_K, -low_K],
        A_eq=np.r_[np.ones(nodes), 0.0][None], b_eq=[1.0], method="highs",
    )  # fmt: skip
    widening = float(done.x[-1])
    return 0.0 if widening < 1e-9 else widening * 1.001 + 1e-9
