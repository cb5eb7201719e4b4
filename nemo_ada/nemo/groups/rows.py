"""From the responses of a group to its pool and rows, which are chosen before the step is known (columns: step.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nemo_ada.core.learning.rows import StepRows, weigh
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.nemo.features import compute_prompt_features, compute_request_features
from nemo_ada.nemo.groups.step import GROUP, RANK
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import PoolRewards, Responses, build_batch, pool_rewards

log = logging.getLogger(__name__)

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
        # A row without an advantage becomes a placeholder, because it would cost the learner and teach nothing. The
        # advantages themselves need the whole step, but the pool alone says which rows have none. With a shrunk
        # baseline every row has one, so there are no placeholders.
        placeholders = settings.placeholder_rows and not sampler.rows.shrunk_baseline
        self._takes_spares = settings.placeholder_rows  # a row with advantage 0 has no gradient
        self._settings, self._sampler = replace(settings, placeholder_rows=placeholders), sampler

    def make_pool(
        self, prompts: Prompts, result: SamplingResult, versions: Mapping[int, int], *, step: int, redrawn: bool,
        gave_up: bool,
    ) -> GroupPool:  # fmt: skip
        """Return the pool of a group.

        Args:
            prompts: the group's prompt.
            result: result of the group's session.
            versions: response_id -> version of the weights under which it was started.
            step: number of the training step that trains on the pool.
            redrawn: whether an earlier attempt of the run had begun this group and did not finish it.
            gave_up: whether the group reached its time limit.
        """
        given_up = gave_up and not bool(result.resolved_P[0])
        if given_up:
            log.warning("prompt %s for step %d is given up after %s responses", prompts.ids[0], step, result.size_P[0])
        features_F = None
        if self._settings.ada.estimator.needs_features:
            gym = self._settings.gym
            features_F = (compute_request_features(prompts.requests) if gym else compute_prompt_features(prompts.logs))[
                0
            ]
        return GroupPool(
            step=step,
            prompt_id=prompts.ids[0],
            result=result,
            version_N=np.array([versions[row] for row in result.response_id_N.tolist()], np.int64),
            redrawn=redrawn,
            given_up=given_up,
            features_F=features_F,
        )

    def make_batch(self, prompts: Prompts, source: Responses, pool: GroupPool | None, *, number: int) -> Any:
        """Return the n rows of a group as a batch with the columns of step.py.

        Args:
            prompts: the group's prompt.
            source: the responses of the pool.
            pool: the pool. None for a prompt that is too long.
            number: number of the group within its step.
        """
        rows, rewards = _NO_ROWS, PoolRewards(np.zeros(0), np.zeros(0), np.zeros(0))
        step = 0
        if pool is not None:
            step, result = pool.step, pool.result
            selection = self._sampler.select(step, result)
            rows = weigh(result, selection, self._sampler.rows, prior_P=None)
            rewards = pool_rewards(result, result.reward_N)
        batch, skipped = build_batch(prompts, source, rows, rewards, self._settings, step, whole=False)
        if self._settings.overlong and self._takes_spares:
            # NeMo-RL takes rows that were cut out of the loss later. Here we must know which groups have none left.
            batch["loss_multiplier"] = torch.where(batch["truncated"], 0.0, batch["loss_multiplier"])
        n = self._settings.group
        dead = len(rewards.reward_N) > 0 and not bool((batch["loss_multiplier"] > 0).any())
        spare = None  # a response that add_spares (step.py) trains on where no row of an optimizer step is in the loss
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
