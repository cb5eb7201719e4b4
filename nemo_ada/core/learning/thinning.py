"""Fewer rows for the same mean update: sampling rows in proportion to |A|, with inverse weights (ours).

A row whose outcome was expected has a small advantage and teaches little. Row i is kept with probability c_i and its
advantage divided by c_i (Horvitz and Thompson, 1952). So the expected sum of A_i g_i over the kept rows is the sum over
all rows, for any gradients g_i. c_i is proportional to |A_i|, which has the smallest variance when all gradients are
equally long, but never below that of a tenth of the mean |A|. R rows.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.prompts.allocation import water_fill

MIN_SIZE = 0.1  # of the mean |A|: bounds the inverse weight of a row whose gradient is long and advantage small


def thin(advantage_R: FloatArray, share: float, *, run_seed: int, step: int) -> FloatArray:
    """Advantages with exactly round(share * R) of them non-zero (at least 1), or fewer where there were fewer.

    share: in (0, 1]. Kept rows are drawn by systematic sampling in a seeded random order.
    """
    live = np.flatnonzero(advantage_R)
    kept = max(round(share * len(advantage_R)), 1)
    if len(live) <= kept:
        return advantage_R
    size_L = np.abs(advantage_R[live])
    chance_L = water_fill(np.maximum(size_L, MIN_SIZE * size_L.mean()), kept, 0, 1)
    row = np.arange(len(live) + 1, dtype=np.int64)
    draw = seeds.uniform(run_seed, step, row, 0, stream=seeds.SeedStream.THINNING)
    order = np.argsort(draw[1:], kind="stable")
    edge = np.cumsum(chance_L[order])
    ticks = np.floor(edge * (kept / edge[-1]) + draw[0])
    taken = order[np.diff(ticks, prepend=0.0) > 0.0]
    thinned_R = np.zeros_like(advantage_R)
    thinned_R[live[taken]] = advantage_R[live[taken]] / chance_L[taken]
    return thinned_R
