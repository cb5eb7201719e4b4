"""Never Give Up (after arXiv 2609.13443): a prompt without a correct response may come again, under newer weights.

The attempts of a prompt form a chain, which ends with the first correct response. The baseline of the last attempt is
the mean over the whole chain, so a correct response after many failures has an advantage near 1. P is the number of
prompts of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import FloatArray, IntArray


class RetryChains:
    """The open chains of a run.

    Attributes:
        probability: probability with which an attempt without a correct response is followed by another one.
        run_seed: seed of these draws.
    """

    def __init__(self, probability: float, run_seed: int) -> None:
        self.probability, self.run_seed = probability, run_seed
        self._chains: dict[str, tuple[int, float]] = {}

    def earlier(self, prompt_ids: Sequence[str]) -> tuple[IntArray, FloatArray]:
        """Return the number of responses in each prompt's earlier attempts, and the sum of their rewards."""
        found = [self._chains.get(prompt_id, (0, 0.0)) for prompt_id in prompt_ids]
        return np.array([count for count, _ in found], np.int64), np.array([total for _, total in found], np.float64)

    def observe(
        self, step: int, prompt_ids: Sequence[str], pos_P: IntArray, size_P: IntArray, reward_P: FloatArray
    ) -> list[int]:
        """Continue or end the chains of a step's prompts.

        Args:
            step: number of the step.
            prompt_ids: ids of the step's prompts.
            pos_P: correct responses of each prompt.
            size_P: responses of each prompt.
            reward_P: sum of each prompt's rewards.

        Returns:
            The positions of the prompts that come again.
        """
        uid_P = np.arange(len(prompt_ids), dtype=np.int64)
        draw_P = seeds.uniform(self.run_seed, step, uid_P, 0, stream=seeds.SeedStream.RETRY)
        failed_P = (size_P > 0) & (pos_P == 0)
        again: dict[str, int] = {}
        for i, prompt_id in enumerate(prompt_ids):
            count, total = self._chains.pop(prompt_id, (0, 0.0))
            if failed_P[i] and draw_P[i] < self.probability:
                self._chains[prompt_id] = count + int(size_P[i]), total + float(reward_P[i])
                again[prompt_id] = i
            else:
                again.pop(prompt_id, None)
        return list(again.values())

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        counts, totals = self.earlier(list(self._chains))
        return {"ids": list(self._chains), "counts": counts, "rewards": totals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        columns = zip(state["ids"], np.asarray(state["counts"]).tolist(), np.asarray(state["rewards"]).tolist(),
                      strict=True)  # fmt: skip
        self._chains = {prompt_id: (int(count), float(total)) for prompt_id, count, total in columns}
