"""From the pool of one group to its rows, which are chosen before the step is known (columns: step.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nemo_ada.core.learning.rows import StepRows, weigh
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.nemo.asynchronous.step import GROUP, RANK
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import PoolRewards, Responses, build_batch, leave_masked_out, pool_rewards

_NONE = np.zeros(0, np.int64)
_NO_ROWS = StepRows(_NONE, _NONE, _NONE, np.zeros(0), np.zeros(0), np.zeros(0), {})


class GroupRows:
    """Selects the rows of groups, one group at a time. The step that joins the groups computes the advantages."""

    def __init__(self, settings: NemoSettings, sampler: AdaSampler) -> None:
        """Prepare for a run.

        Args:
            settings: settings of the run.
            sampler: it selects the rows.
        """
        self._settings, self._sampler = settings, sampler
        rows = sampler.rows
        self._always_live = rows.shrunk_baseline  # With it every row of a pool has an advantage. The step computes it.
        self._rows = replace(rows, advantage=replace(rows.advantage, baseline="pool", normalize="none"))

    def of(self, prompts: Prompts, source: Responses, pool: GroupPool | None, *, number: int) -> Any:
        """Return the n rows of a group as a batch with the columns of step.py.

        Args:
            prompts: the group's prompt.
            source: the responses of the pool.
            pool: the pool. None for a prompt that is too long.
            number: number of the group within its step.
        """
        rows, rewards = _NO_ROWS, PoolRewards(np.zeros(0), np.zeros(0), np.zeros(0))
        settings = replace(self._settings, placeholder_rows=self._settings.placeholder_rows and not self._always_live)
        step = 0
        if pool is not None:
            step, result = pool.step, pool.result
            selection = self._sampler.select(step, result)
            rows = weigh(result, selection, self._rows, prior_P=None)
            rewards = pool_rewards(result, result.reward_N)
        batch, skipped = build_batch(prompts, source, rows, rewards, settings, step, whole=False)
        if self._settings.gym and "mask_sample" not in batch:  # all groups of a step have the same columns
            batch["mask_sample"] = torch.zeros(batch.size, dtype=torch.bool)
        leave_masked_out(batch)
        n = self._settings.group
        dead = len(rewards.reward_N) > 0 and not bool((batch["loss_multiplier"] > 0).any())
        spare = None
        if pool is not None and dead:
            response = source.response(int(pool.result.response_id_N[0]))
            spare = (response.message_log, sum(len(message["token_ids"]) for message in response.prompt))
        group = {
            "number": number,
            "pool": None if pool is None else pool.as_dict(),
            "spare": spare,
            "skipped": skipped,
        }
        batch[RANK] = torch.from_numpy(rows.pool_R if pool is not None else np.full(n, -1, np.int64))
        batch[GROUP] = [group, *[None] * (n - 1)]
        return batch
