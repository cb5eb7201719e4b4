"""The exact cost and yield of a stopping rule, by a dynamic programme over (n_pos, n_neg) for one pass rate.

It computes expected responses, the shares of resolved and of zero-signal prompts, the error of each pass-rate estimate,
and the weight that a preset puts on a prompt. The samplers' tests use it as their oracle (algorithm.md section 8;
paper, Fig. 10). E ways in which a pool can end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.learning.rows import kept_counts
from nemo_ada.core.learning.settings import Weighting
from nemo_ada.core.sampling import pass_rate
from nemo_ada.core.sampling.exits import PoolView
from nemo_ada.core.sampling.pass_rate import PassRateKind
from nemo_ada.core.sampling.paths import StopRule


@dataclass(frozen=True, slots=True)
class Endings:
    """Every way in which a pool can end.

    Attributes:
        first_pos_E: Correct responses of the first wave.
        pos_E: Correct responses of the pool.
        total_E: Responses of the pool.
        probability_E: Probability of this end. The probabilities sum to 1.
    """

    first_pos_E: IntArray
    pos_E: IntArray
    total_E: IntArray
    probability_E: FloatArray

    def mean(self, value_E: FloatArray | IntArray | BoolArray) -> float:
        """Expectation of a quantity that depends on how the pool ends."""
        return float(self.probability_E @ value_E.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Summary:
    """Cost and yield of one prompt.

    Attributes:
        expected_samples: Expected number of responses.
        expected_waves: Expected number of waves.
        p_resolved: Probability that the exit condition is met.
        p_zero_signal: Probability that all labels of the pool are equal.
        size_distribution: Size of the pool -> its probability.
    """

    expected_samples: float
    expected_waves: float
    p_resolved: float
    p_zero_signal: float
    size_distribution: dict[int, float]


@lru_cache(maxsize=8)  # callers ask for several figures of one prompt, one after the other
def endings(rule: StopRule, p: float) -> Endings:
    """Distribution of the pool's end for pass rate p. It takes O(first wave x cap^2) operations."""
    first = min(rule.wave_sizes[0], rule.cap)
    ends_NK = rule.ends()
    state_SK = np.zeros((first + 1, rule.cap + 1))  # S correct responses in the first wave, K in the pool
    state_SK[0, 0] = 1.0
    parts: list[tuple[IntArray, IntArray, int, FloatArray]] = []
    for total in range(1, rule.cap + 1):
        moved_SK = state_SK * (1.0 - p)
        if total <= first:
            moved_SK[1:, 1:] += state_SK[:-1, :-1] * p
        else:
            moved_SK[:, 1:] += state_SK[:, :-1] * p
        ended_SK = np.where(ends_NK[total], moved_SK, 0.0)
        first_pos_E, pos_E = np.nonzero(ended_SK)
        parts.append((first_pos_E, pos_E, total, ended_SK[first_pos_E, pos_E]))
        state_SK = moved_SK - ended_SK
    return Endings(
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([np.full(len(part[0]), part[2], np.int64) for part in parts]),
        np.concatenate([part[3] for part in parts]),
    )


def summary(rule: StopRule, p: float) -> Summary:
    """Expected cost and yield of one prompt with pass rate p."""
    end = endings(rule, p)
    waves_N = np.cumsum(rule.judged())
    one_label_E = (end.pos_E == 0) | (end.pos_E == end.total_E)
    size_N = np.bincount(end.total_E, end.probability_E, rule.cap + 1)
    return Summary(
        expected_samples=end.mean(end.total_E),
        expected_waves=end.mean(waves_N[end.total_E]),
        p_resolved=end.mean(rule.exit.met(PoolView(end.pos_E, end.total_E - end.pos_E))),
        p_zero_signal=end.mean(one_label_E),
        size_distribution={int(size): float(size_N[size]) for size in np.flatnonzero(size_N)},
    )


def estimates(kind: PassRateKind, end: Endings, rule: StopRule, prior: tuple[float, float] = (1.0, 1.0)) -> FloatArray:
    """Return the pass-rate estimate `kind` of every ending [E], with the Beta prior (a, b)."""
    first = np.minimum(min(rule.wave_sizes[0], rule.cap), end.total_E)
    return pass_rate.estimate(
        kind,
        end.pos_E,
        end.total_E,
        first_pos_P=end.first_pos_E,
        first_total_P=first,
        rule=rule,
        prior_P=(np.full(len(end.pos_E), prior[0]), np.full(len(end.pos_E), prior[1])),
    )


def gradient_factor(
    rule: StopRule,
    p: float,
    *,
    n: int | None,
    weighting: Weighting,
    kind: PassRateKind = "pool",
    weight: Callable[[FloatArray], FloatArray] = np.ones_like,
    prior: tuple[float, float] = (1.0, 1.0),
) -> float:
    """Expected update of a prompt per row, in units of grad p: equation (*) of `advantage` without std.

    With objective weighting, the linear objective and an unbiased estimate q it is 1 - Var(q) / (p (1-p)), and it is 1
    where all rows are trained on. With `reference` it is the weight that its selected groups have.

    Args:
        rule: When a pool ends.
        p: Pass rate of the prompt.
        n: Rows that are selected from a pool. None trains on all of them (Est).
        weighting: Weighting of the rows.
        kind: Estimate of the pass rate.
        weight: The weight w_grad of a prompt as a function of its estimated pass rate [E]. The default is the linear
            objective's, which is 1.
        prior: (a, b) of the prompt's Beta prior.
    """
    end = endings(rule, p)
    pos_E, neg_E = end.pos_E, end.total_E - end.pos_E
    rate_E = estimates(kind, end, rule, prior)
    weight_E = weight(rate_E)
    if weighting == "objective" and n is None:
        pull_E = push_E = pos_E * neg_E / (end.total_E * np.maximum(end.total_E - 1, 1))
        if kind != "shrunk":
            return end.mean(weight_E * (pull_E / p + push_E / (1.0 - p)))
        mass_E = end.total_E - 1 + sum(prior)  # without the row's own label
        pull_E = pull_E * weight((pos_E - 1 + prior[0]) / mass_E)
        push_E = push_E * weight((pos_E + prior[0]) / mass_E)
        return end.mean(pull_E / p + push_E / (1.0 - p))
    keep_pos_E, keep_neg_E = (pos_E, neg_E) if n is None else kept_counts(pos_E, neg_E, n)
    both_E = (keep_pos_E > 0) & (keep_neg_E > 0)
    if weighting == "objective":
        pull_E = push_E = np.where(both_E, rate_E * (1.0 - rate_E), 0.0)
    else:
        rows = n if n is not None else end.mean(end.total_E)
        pull_E = keep_pos_E / rows * (neg_E / end.total_E)
        push_E = keep_neg_E / rows * (pos_E / end.total_E)
    return end.mean(weight_E * (pull_E / p + push_E / (1.0 - p)))


def signal_per_response(rule: StopRule, n: int, rate_P: FloatArray) -> float:
    """Expected update along grad p per requested response, with reference weighting.

    GRPO's is the mean of (n-1)/n p (1-p).

    Args:
        rule: When a pool ends.
        n: Rows that are selected from a pool.
        rate_P: Pass rates of the prompts, between 0 and 1 and neither of them.
    """
    signal = sum(n * p * (1.0 - p) * gradient_factor(rule, p, n=n, weighting="reference") for p in rate_P.tolist())
    return signal / sum(summary(rule, p).expected_samples for p in rate_P.tolist())
