"""The columns that bring asynchronous groups to a training step, and the advantages that the driver computes from them.

A group is drawn in the collector's process. The driver's process joins the groups of a step. So each group's batch has
everything that the step needs, in n rows per group:

    ada_rank    int64: position of the row's response in the group's pool, -1 without a response
    ada_reward  float32: reward of the row, which must equal `total_reward`
    ada_weight  float32: 0.0 for placeholder rows
    ada_saved   int64: tokens of the row that left the loss because its advantage is zero
    ada_group   list: a dictionary on the group's first row, and None on the others. Its entries are:
                number   number of the group within its step, in the order of start
                pool     GroupPool.as_dict(), or None for a prompt that is too long
                spare    (message log, prompt length) of a response if no row is in the loss, or None
                skipped  tokens and rows that the update does not compute, by metric
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nemo_ada.core.arrays import BoolArray
from nemo_ada.core.learning.rows import Selection
from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.seeds import shuffle_rows
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.nemo import metrics as own_metrics
from nemo_ada.nemo.advantage import AdaAdvantageEstimator
from nemo_ada.nemo.settings import NemoSettings

GROUP, RANK = "ada_group", "ada_rank"
NEEDED = (GROUP, RANK, "ada_reward", "ada_weight", "ada_saved")


def sort_groups(trajectories: Sequence[Any], seed: int, step: int) -> list[Any]:
    """Sort the groups of a step into a seeded order. It does not depend on the order in which they finished.

    Args:
        trajectories: the groups.
        seed: seed of the run.
        step: number of the step, from 0.
    """
    number_G = np.array([trajectory["batch"][GROUP][0]["number"] for trajectory in trajectories], np.int64)
    order_G = shuffle_rows(number_G, seed, step + 1)  # the CPU back end counts steps from 1
    return [trajectories[place] for place in order_G.tolist()]


def add_spares(batches: Sequence[Any], global_batch: int) -> None:
    """Give every optimizer step a row in the loss, because NeMo-RL's metrics need one.

    The rows come from the groups' spares, which are removed. An optimizer step whose prompts are all too long gets a
    response of another one.

    Args:
        batches: the groups of a step, in the order of its rows. They are changed.
        global_batch: rows of an optimizer step.
    """
    parts: dict[int, list[Any]] = {}
    spares: dict[int, tuple[Any, int]] = {}  # the key is the batch's position in the step
    row = 0
    for place, batch in enumerate(batches):
        parts.setdefault(row // global_batch, []).append(place)
        spare, batch[GROUP][0]["spare"] = batch[GROUP][0]["spare"], None
        in_loss = torch.nonzero(batch["loss_multiplier"] > 0).flatten().tolist()
        if spare is None and in_loss:
            log = [dict(message) for message in batch["message_log"][in_loss[0]]]
            spare = (log, int(batch["length"][in_loss[0]]))
        if spare is not None:
            spares[place] = spare
        row += batch.size
    for places in parts.values():
        if any(bool((batches[place]["loss_multiplier"] > 0).any()) for place in places) or not spares:
            continue
        place = next((place for place in places if place in spares), places[0])
        batch, (log, length) = batches[place], spares.get(place) or next(iter(spares.values()))
        batch["message_log"][0] = [dict(message) for message in log]  # NeMo-RL writes loss masks into messages
        for name, value in (("length", length), ("loss_multiplier", 1.0)):
            batch[name] = batch[name].clone()  # Ray's copy may not be written to
            batch[name][0] = value


class GroupAdvantageEstimator(AdaAdvantageEstimator):
    """Joins the groups of a step and returns their advantages, as in synchronous training."""

    def __init__(self, settings: NemoSettings, sampler: AdaSampler, finished: Callable[[SampledStep], None]) -> None:
        """Prepare an estimator.

        Args:
            settings: settings of the run.
            sampler: it computes the advantages.
            finished: it is called with every step once its rows are known.
        """
        super().__init__(settings)
        self._sampler, self._finished = sampler, finished

    def compute_advantage(
        self, *, rewards: torch.Tensor, mask: torch.Tensor, repeated_batch: Any, **rest: Any
    ) -> torch.Tensor:
        """Return the advantages of the rows that the groups have selected, as AdaAdvantageEstimator does.

        Raises:
            InvariantError: a row names a response that its pool does not have.
            UserError: all prompts of the step are too long.
        """
        missing = [name for name in NEEDED if name not in repeated_batch]
        if missing:
            raise InvariantError(f"the batch came without {', '.join(missing)}: its groups are not Reinforce-Ada's")
        groups = [group for group in repeated_batch[GROUP] if group is not None]
        pools = [GroupPool.from_dict(group["pool"]) for group in groups if group["pool"] is not None]
        if not pools:
            raise UserError("all prompts of the step are longer than data.max_input_seq_length; raise it")
        drawn_R = self._find_drawn(repeated_batch)
        sampled = self._sampler.finish_step(pools, self._read_selection(pools, repeated_batch, drawn_R))
        advantage_R = np.zeros(len(drawn_R), np.float32)
        advantage_R[drawn_R] = sampled.rows.advantage_R
        repeated_batch["ada_advantage"] = torch.from_numpy(advantage_R)
        skipped: Counter[str] = Counter()
        for group in groups:
            skipped.update(group["skipped"])
        self.last_metrics = sampled.metrics | own_metrics.add_prefix(skipped)
        self.last_metrics |= own_metrics.compute_mean_reward(sampled.result)
        if rest.get("prev_logprobs") is not None and rest.get("generation_logprobs") is not None:
            self.last_metrics |= self._measure_newest(pools, repeated_batch, mask, **rest)
        self._finished(sampled)
        return super().compute_advantage(rewards=rewards, mask=mask, repeated_batch=repeated_batch, **rest)

    def _measure_newest(
        self,
        pools: Sequence[GroupPool],
        batch: Any,
        mask: torch.Tensor,
        *,
        prev_logprobs: torch.Tensor,
        generation_logprobs: torch.Tensor,
        **_: Any,
    ) -> dict[str, float]:
        """Measure how well engine and learner agree on responses of the newest weights. Empty without such responses.

        A large number shows that a refit failed, or that the prefix cache has keys and values of older weights.
        """
        drawn = iter(pools)
        version_R = np.full(len(batch[GROUP]), -1, np.int64)
        for row, group in enumerate(batch[GROUP]):
            if group is not None and group["pool"] is not None:
                pool = next(drawn)
                rank_R = batch[RANK].numpy()[row : row + self._settings.group]
                version_R[row : row + len(rank_R)] = np.append(pool.version_N, -1)[rank_R]  # -1 at rank -1
        whole_R = (batch["ada_weight"] > 0) & (batch["ada_saved"] == 0)  # not placeholder rows and spares
        newest_R = torch.from_numpy(version_R == pools[0].step) & whole_R
        token_RT = (mask[newest_R] != 0)[:, 1:]
        if not token_RT.any() or not (prev_logprobs != 0).any():  # all are 0 if the learner did not compute them
            return {}
        error_RT = (prev_logprobs[newest_R] - generation_logprobs[newest_R])[:, 1:].abs().exp()
        return own_metrics.add_prefix({"newest_prob_error": float(error_RT[token_RT].mean())})

    def _find_drawn(self, batch: Any) -> BoolArray:
        """Find the rows of the batch that belong to a pool, [R]. The rows of prompts that are too long do not."""
        drawn_R = np.zeros(len(batch[GROUP]), np.bool_)
        n = self._settings.group
        for row in range(0, len(drawn_R), n):
            group = batch[GROUP][row]
            if group is None:
                raise InvariantError(f"row {row} is not the first of a group of {n}")
            drawn_R[row : row + n] = group["pool"] is not None
        return drawn_R

    def _read_selection(self, pools: Sequence[GroupPool], batch: Any, drawn_R: BoolArray) -> Selection:
        """Read from the batch which rows the groups have selected."""
        rank_R = batch[RANK].numpy()[drawn_R]
        weight_R = batch["ada_weight"].numpy()[drawn_R].astype(np.float64)
        return Selection.of_groups([len(pool.result.response_id_N) for pool in pools], rank_R, weight_R)
