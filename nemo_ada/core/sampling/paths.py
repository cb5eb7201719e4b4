"""A pool as a walk over (n_pos, n_neg), and the number of paths to each point.

The walk starts at (0, 0) and takes one step per response. It may end only where the pool is judged: after each wave
(`wave` stopping), or after each response (`issue_order`, which is the same walk with waves of one). All label sequences
to one point have the same probability p^n_pos (1-p)^n_neg. So path counts alone give unbiased estimates: with k(e)
paths from (0, 0) and k_10(e) paths from (1, 0) to the end point e, the mean of k_10(e) / k(e) is p (Girshick, Mosteller
and Savage, 1946). `pass_rate` uses this; `simulate.exact` computes expectations over the same walk.
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

    `wave_sizes=(1,)` judges after every response, as `issue_order` does. The last wave is cut at `cap`.
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
        """[cap + 1, cap + 1]: whether a pool of N responses with n_pos correct ones ends there; by N, then n_pos."""
        total_NK, pos_NK = np.indices((self.cap + 1, self.cap + 1), dtype=np.int64)
        met_NK = self.exit.met(pos_NK, np.maximum(total_NK - pos_NK, 0))
        return np.asarray(self.judged()[:, None] & (met_NK | (total_NK == self.cap)), dtype=np.bool_)


@lru_cache(maxsize=64)
def path_counts(rule: StopRule) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the number of paths to every point [N, n_pos]: from (0, 0), and from (1, 0). O(cap^2).

    Only paths that survive every judgement before their end count. -inf where no path leads.
    """
    size = rule.cap + 1
    open_NK = ~rule.ends()
    counts_2NK = np.full((2, size, size), -np.inf)
    current_2K = counts_2NK[:, 0].copy()
    current_2K[0, 0] = 0.0
    counts_2NK[:, 0] = current_2K
    for total in range(1, size):
        alive_2K = np.where(open_NK[total - 1], current_2K, -np.inf)
        current_2K = alive_2K.copy()
        current_2K[:, 1:] = np.logaddexp(alive_2K[:, 1:], alive_2K[:, :-1])
        if total == 1:
            current_2K[1, 1] = 0.0
        counts_2NK[:, total] = current_2K
    return counts_2NK[0], counts_2NK[1]
