"""When a pool ends, and how likely it ends where, by the number of paths of a walk over (n_pos, n_neg).

The walk starts at (0, 0) and takes one step per response. It may end only where the pool is judged: after each wave.
All label sequences to one point have the same probability p^n_pos (1-p)^n_neg. So path counts alone give the
distribution of the end for every p (Girshick, Mosteller and Savage, 1946).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.exits import ExitRule, FixedExit, PoolView
from nemo_ada.errors import UserError

ON_A_PATH = frozenset({"rewards", "waves"})
"""What an exit rule may read besides labels, so that path counts say how its pools end."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """The rule that says when a pool ends, if no cap of the batch ends it.

    Attributes:
        exit: the exit rule.
        wave_sizes: sizes of the first, second, ... wave, in responses. The last one repeats.
        cap: N_max, the most responses of a prompt. The last wave is cut there.
    """

    exit: ExitRule
    wave_sizes: tuple[int, ...]
    cap: int

    def get_wave_size(self, wave_P: IntArray) -> IntArray:
        """Return the size of wave number wave_P (0 = first) for each prompt, before the cap cuts it."""
        sizes = np.asarray(self.wave_sizes, dtype=np.int64)
        return np.asarray(sizes[np.minimum(wave_P, len(sizes) - 1)], dtype=np.int64)

    @property
    def first_wave(self) -> int:
        """Responses of a prompt's first wave."""
        return min(self.wave_sizes[0], self.cap)

    @property
    def one_wave(self) -> bool:
        """Whether no prompt draws after its first wave, whatever the labels are."""
        fixed = isinstance(self.exit, FixedExit) and self.exit.n <= self.wave_sizes[0]
        return fixed or self.cap <= self.wave_sizes[0]

    def mark_judged(self) -> BoolArray:
        """Return whether a pool of N responses is judged, for N = 0..cap."""
        judged_N = np.zeros(self.cap + 1, np.bool_)
        total, wave = 0, 0
        while total < self.cap:
            total = min(total + self.wave_sizes[min(wave, len(self.wave_sizes) - 1)], self.cap)
            judged_N[total] = True
            wave += 1
        return judged_N

    def mark_ends(self) -> BoolArray:
        """Return whether a pool of N responses with n_pos correct ones ends, by N and n_pos, [cap + 1, cap + 1].

        Raises:
            UserError: the exit rule reads more than a path has: a path knows labels and waves, and takes rewards to be
                0 or 1.
        """
        if unknown := sorted(self.exit.reads - ON_A_PATH):
            raise UserError(
                f"the exit rule {type(self.exit).__name__} reads {' and '.join(unknown)}, so labels alone do not say "
                "how its pools end; a simulation of whole steps does (`nemo-ada simulate` without --pass-rate and "
                "--objective)"
            )
        total_NK, pos_NK = np.indices((self.cap + 1, self.cap + 1), dtype=np.int64)
        wave_N = np.maximum(np.cumsum(self.mark_judged()) - 1, 0)
        met_NK = self.exit.met(PoolView(pos_NK, np.maximum(total_NK - pos_NK, 0), waves=lambda: wave_N[total_NK]))
        return np.asarray(self.mark_judged()[:, None] & (met_NK | (total_NK == self.cap)), dtype=np.bool_)


def count_paths(rule: StopRule, start: tuple[int, int] = (0, 0)) -> FloatArray:
    """Count the paths from `start` = (n_pos, n_neg) to every point, as logarithms, [N, n_pos]. No path is -inf.

    Only paths that survive every judgement before their end count. Time and memory are O(cap^2).
    """
    size = rule.cap + 1
    open_NK = ~rule.mark_ends()
    counts_NK = np.full((size, size), -np.inf)
    counts_NK[sum(start), start[0]] = 0.0
    for total in range(sum(start) + 1, size):
        alive_K = np.where(open_NK[total - 1], counts_NK[total - 1], -np.inf)
        counts_NK[total] = alive_K
        counts_NK[total, 1:] = np.logaddexp(alive_K[1:], alive_K[:-1])
    return counts_NK


@dataclass(frozen=True, slots=True)
class Endings:
    """Every way in which a pool can end. P pass rates, E ways.

    Attributes:
        pos_E: correct responses of the pool.
        total_E: responses of the pool.
        log_paths_E: logarithm of the number of label orders that lead there.
    """

    pos_E: IntArray
    total_E: IntArray
    log_paths_E: FloatArray

    def compute_probability(self, rate_P: FloatArray) -> FloatArray:
        """Compute the probability of each way [P, E]. A row sums to 1.

        Args:
            rate_P: pass rates, in [0, 1].
        """
        with np.errstate(divide="ignore"):
            log_P, log_other_P = np.log(rate_P)[:, None], np.log1p(-rate_P)[:, None]
        neg_E = self.total_E - self.pos_E
        correct_PE = np.multiply(self.pos_E, log_P, out=np.zeros((len(rate_P), len(neg_E))), where=self.pos_E > 0)
        incorrect_PE = np.multiply(neg_E, log_other_P, out=np.zeros_like(correct_PE), where=neg_E > 0)
        return np.asarray(np.exp(self.log_paths_E + correct_PE + incorrect_PE))

    def mean(self, value_E: FloatArray | IntArray | BoolArray, p: float) -> float:
        """Compute the expectation of a quantity that depends on how the pool ends, for pass rate p."""
        return float(self.compute_probability(np.array([p]))[0] @ value_E.astype(np.float64))


@lru_cache(maxsize=64)
def find_endings(rule: StopRule) -> Endings:
    """Find every way in which a pool can end. Time and memory are O(cap^2)."""
    all_NK = count_paths(rule)
    total_E, pos_E = np.nonzero(rule.mark_ends() & np.isfinite(all_NK))
    return Endings(pos_E, total_E, all_NK[total_E, pos_E])
