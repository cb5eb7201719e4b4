"""The walk of a pool over (n_pos, n_neg), and how many ways lead to each point of it.

A pool is a walk that starts at (0, 0), goes one step per response and may only end where it is judged: after each wave
(`wave` stopping) or after each response (`issue_order`, which is the same walk with waves of one). All label sequences
that lead to one point have the same probability p^n_pos (1-p)^n_neg, so path counts alone give unbiased estimates:
with k(e) paths from (0, 0) and k_ij(e) paths from (i, j) to the end point e, k_ij(e) / k(e) has the mean p^i (1-p)^j
(Girshick, Mosteller and Savage, 1946). `pass_rate` uses it; `exact` computes expectations over the same walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray
from nemo_ada.core.sampling.exits import ExitRule


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a pool ends: the exit condition, the sizes of its waves (the last one repeats) and N_max.

    `wave_sizes=(1,)` judges after every response, as `issue_order` does; the last wave is cut at `cap`.
    """

    exit: ExitRule
    wave_sizes: tuple[int, ...]
    cap: int

    def judged(self) -> BoolArray:
        """Whether a pool of N responses is judged, for N = 0..cap."""
        judged_N = np.zeros(self.cap + 1, np.bool_)
        total, wave = 0, 0
        while total < self.cap:
            total = min(total + self.wave_sizes[min(wave, len(self.wave_sizes) - 1)], self.cap)
            judged_N[total] = True
            wave += 1
        return judged_N

    def ends(self) -> BoolArray:
        """[cap + 1, cap + 1]: whether a pool of N responses, n_pos of them correct, ends there; by N, then n_pos."""
        total_NK, pos_NK = np.indices((self.cap + 1, self.cap + 1), dtype=np.int64)
        met_NK = self.exit.met(pos_NK, np.maximum(total_NK - pos_NK, 0))
        return np.asarray(self.judged()[:, None] & (met_NK | (total_NK == self.cap)), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class PathCounts:
    """Logarithms of the number of paths to every point [N, n_pos] of the walk; -inf where none leads.

    all_NK from (0, 0), from_pos_NK from (1, 0), from_mixed_NK from (1, 1).
    """

    all_NK: FloatArray
    from_pos_NK: FloatArray
    from_mixed_NK: FloatArray


@lru_cache(maxsize=64)
def path_counts(rule: StopRule) -> PathCounts:
    """Count the paths that survive every judgement before their end, in O(cap^2)."""
    size = rule.cap + 1
    open_NK = ~rule.ends()
    counts_3NK = np.full((3, size, size), -np.inf)
    current_3K = counts_3NK[:, 0].copy()
    current_3K[0, 0] = 0.0
    counts_3NK[:, 0] = current_3K
    for total in range(1, size):
        alive_3K = np.where(open_NK[total - 1], current_3K, -np.inf)
        current_3K = alive_3K.copy()
        current_3K[:, 1:] = np.logaddexp(alive_3K[:, 1:], alive_3K[:, :-1])
        if total == 1:
            current_3K[1, 1] = 0.0
        if total == 2:
            current_3K[2, 1] = 0.0
        counts_3NK[:, total] = current_3K
    return PathCounts(*counts_3NK)
