"""The seeded order of the data, and the choice among candidate prompts.

The order is a function of (seed, position), so a resumed run needs one number.

The choice is ours. The paper draws responses for every prompt of the batch. A zero-signal group teaches nothing. So the
worth of a prompt is the probability that its group has both labels. P is the number of candidate prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.errors import UserError


class PromptOrder:
    """The order of endless shuffled epochs over `count` prompts. Each epoch has every prompt once."""

    def __init__(self, count: int, seed: int, where: str = "task") -> None:
        """Make an order.

        Args:
            count: number of prompts.
            seed: seed of the order.
            where: name of the data set, for messages.

        Raises:
            UserError: the data set is empty.
        """
        if count < 1:
            raise UserError(f"{where}: the data set has no prompt to train on; give it at least one")
        self.count, self.seed = count, seed

    def at(self, position: int, n: int) -> IntArray:
        """Return the indices of the n prompts from `position` on. They may span epochs."""
        wanted = np.arange(position, position + n)
        epochs, offsets = np.divmod(wanted, self.count)
        indices = np.empty(n, np.int64)
        for epoch in np.unique(epochs):
            order = np.random.default_rng([self.seed, int(epoch)]).permutation(self.count)
            here = epochs == epoch
            indices[here] = order[offsets[here]]
        return indices


def mixed_probability(a_P: FloatArray, b_P: FloatArray, n: int) -> FloatArray:
    """Compute the probability that n responses have both labels, for pass rates from Beta(a, b).

    It is 1 - E[p^n] - E[(1 - p)^n].
    """
    drawn_N = np.arange(n)
    total_PN = (a_P + b_P)[:, None] + drawn_N
    all_positive_P = np.prod((a_P[:, None] + drawn_N) / total_PN, axis=1)
    all_negative_P = np.prod((b_P[:, None] + drawn_N) / total_PN, axis=1)
    return np.asarray(1.0 - all_positive_P - all_negative_P)


def best_candidates(prompt_ids: Sequence[str], worth_P: FloatArray, tie_P: FloatArray, count: int) -> IntArray:
    """Choose the prompts of highest worth. A second occurrence of a prompt (in the next epoch) comes after all others.

    Args:
        prompt_ids: ids of the candidates.
        worth_P: worth of each candidate.
        tie_P: a seeded key per candidate. It orders candidates of equal worth.
        count: number of prompts to choose.

    Returns:
        Positions of the chosen candidates, best first.
    """
    first_P = np.zeros(len(prompt_ids), np.bool_)
    first_P[np.unique(np.asarray(prompt_ids), return_index=True)[1]] = True
    return np.asarray(np.lexsort((tie_P, -worth_P, ~first_P))[:count], np.int64)
