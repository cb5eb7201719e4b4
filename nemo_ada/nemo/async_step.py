"""Asynchronous training from a group to the step: what travels with the rows, and the advantages in the driver.

A group is drawn in the collector's process, and the step that trains on it is put together in the driver's. So each
group's batch carries everything that the step needs (n rows per group):

    ada_rank    int64, place of the row's response in the group's pool, -1 without one
    ada_reward  float32, must equal `total_reward`
    ada_weight  float32, 0.0 for placeholder rows
    ada_saved   int64, tokens of the row that left the loss because its advantage is zero
    ada_group   list; on the group's first row a dictionary, else None:
                number   of the group within its step, in the order of start
                pool     GroupPool.as_dict(), None for a prompt that is too long
                spare    (message log, prompt length) of a response, where no row has an advantage, else None
                skipped  what the update will not compute, by metric
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.nemo import metrics as own_metrics
from nemo_ada.nemo.advantage import AdaAdvantageEstimator
from nemo_ada.nemo.settings import NemoSettings

GROUP, RANK = "ada_group", "ada_rank"
NEEDED = (GROUP, RANK, "ada_reward", "ada_weight", "ada_saved")


def add_spares(batches: Sequence[Any], global_batch: int) -> None:
    """Give every optimizer step a row in the loss, from the groups' spares: NeMo-RL's metrics need one.

    batches: the groups of a step, in the order of its rows. Changes them, and takes all spares out.
    """
    row = 0
    live: dict[int, bool] = {}
    firsts: dict[int, tuple[Any, tuple[Any, int]]] = {}
    for batch in batches:
        part, group = row // global_batch, batch[GROUP][0]
        spare, group["spare"] = group["spare"], None
        live[part] = live.get(part, False) or bool((batch["loss_multiplier"] > 0).any())
        if spare is not None:
            firsts.setdefault(part, (batch, spare))
        row += batch.size
    for part, (batch, (log, length)) in firsts.items():
        if not live[part]:
            batch["message_log"][0] = log
            for name, value in (("length", length), ("loss_multiplier", 1.0)):
                batch[name] = batch[name].clone()  # Ray's copy may not be written to
                batch[name][0] = value


class GroupAdvantageEstimator(AdaAdvantageEstimator):
    """Puts the step together from its groups, then hands out advantages as in synchronous training."""

    def __init__(self, settings: NemoSettings, sampler: AdaSampler, finished: Callable[[SampledStep], None]) -> None:
        """finished: gets every step once its rows are known."""
        super().__init__(settings)
        self._sampler, self._finished = sampler, finished

    def compute_advantage(
        self, *, rewards: torch.Tensor, mask: torch.Tensor, repeated_batch: Any, **rest: Any
    ) -> torch.Tensor:
        """As in AdaAdvantageEstimator. Raises InvariantError for rows that are not those of their pools."""
        missing = [name for name in NEEDED if name not in repeated_batch]
        if missing:
            raise InvariantError(f"the batch came without {', '.join(missing)}: its groups are not Reinforce-Ada's")
        groups = [group for group in repeated_batch[GROUP] if group is not None]
        pools = [GroupPool.from_dict(group["pool"]) for group in groups if group["pool"] is not None]
        if not pools:
            raise UserError("all prompts of the step are longer than data.max_input_seq_length; raise it")
        sampled = self._sampler.finish_step(pools)
        repeated_batch["ada_advantage"] = self._advantages(sampled, repeated_batch)
        skipped: Counter[str] = Counter()
        for group in groups:
            skipped.update(group["skipped"])
        self.last_metrics = sampled.metrics | own_metrics.named(skipped)
        self._finished(sampled)
        return super().compute_advantage(rewards=rewards, mask=mask, repeated_batch=repeated_batch, **rest)

    def _advantages(self, sampled: SampledStep, batch: Any) -> torch.Tensor:
        """[R] of the batch's rows; the rows of prompts that are too long have none."""
        drawn_R = np.zeros(len(batch[GROUP]), np.bool_)
        n = self._settings.group
        for row in range(0, len(drawn_R), n):
            group = batch[GROUP][row]
            if group is None:
                raise InvariantError(f"row {row} is not the first of a group of {n}")
            drawn_R[row : row + n] = group["pool"] is not None
        rows, size_P = sampled.rows, sampled.result.size_P
        start_P = np.cumsum(size_P) - size_P
        rank_R = np.where(rows.pool_R >= 0, rows.pool_R - start_P[rows.prompt_R], -1)
        if not np.array_equal(batch[RANK].numpy()[drawn_R], rank_R):
            raise InvariantError("the rows of the batch are not those that its pools give")
        advantage_R = np.zeros(len(drawn_R), np.float32)
        advantage_R[drawn_R] = np.where(batch["ada_weight"].numpy()[drawn_R] > 0, rows.advantage_R, 0.0)
        return torch.from_numpy(advantage_R)
