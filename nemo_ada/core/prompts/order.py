"""The seeded order of the data. It is a function of (seed, position), so a resumed run needs one number."""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import IntArray
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
