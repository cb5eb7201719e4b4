"""The exact cost and yield of a stopping rule for one pass rate, from the ways in which a pool can end.

It computes expected responses and the shares of resolved and of zero-signal prompts. The samplers' tests use it as
their oracle (algorithm.md section 8; paper, Fig. 10). What a setting teaches is in `core/learning/factor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_ada.core.sampling.exits import PoolView
from nemo_ada.core.sampling.paths import StopRule, find_endings


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


def summarise_rule(rule: StopRule, p: float) -> Summary:
    """Expected cost and yield of one prompt with pass rate p."""
    end = find_endings(rule)
    waves_N = np.cumsum(rule.mark_judged())
    wave_E = waves_N[end.total_E] - 1
    one_label_E = (end.pos_E == 0) | (end.pos_E == end.total_E)
    size_N = np.bincount(end.total_E, end.compute_probability(np.array([p]))[0], rule.cap + 1)
    return Summary(
        expected_samples=end.mean(end.total_E, p),
        expected_waves=end.mean(waves_N[end.total_E], p),
        p_resolved=end.mean(rule.exit.met(PoolView(end.pos_E, end.total_E - end.pos_E, waves=lambda: wave_E)), p),
        p_zero_signal=end.mean(one_label_E, p),
        size_distribution={int(size): float(size_N[size]) for size in np.flatnonzero(size_N)},
    )
