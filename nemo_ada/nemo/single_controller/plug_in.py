"""Reinforce-Ada in the single controller of v0.8.0: two objects of its arguments, on the driver, and nothing else.

    actor_args, timings = setup_single_controller(config, tokenizer)
    controller = SingleControllerActor.remote(master_config=config, actor_args=plugged_in(config, actor_args),
                                              setup_timing_metrics=timings)

- `rollout_manager`: a group draws waves until its session has enough. Its n rows have their advantages where NeMo-RL
  expects rewards, and rows without weight are masked.
- `advantage_estimator`: it returns these numbers.

So NeMo-RL's columns, replay buffer, samplers, ledger and checkpoints hold all that a step needs, and they bring it back
after a resume. The rewards themselves are in the metrics. Only group-local settings are possible (`rules`): an
estimator of pass rates would need a state that no checkpoint here has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from nemo_rl.experience.interfaces import PromptGroupRecord
from nemo_rl.experience.rollout_manager import RolloutManager, RolloutOutcome

from nemo_ada.config.values import Values, as_dicts
from nemo_ada.core.learning.rows import Selection, weigh
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.groups.drawing import Groups
from nemo_ada.nemo.groups.prompt_queue import REDRAWN, TICKET
from nemo_ada.nemo.groups.step import GROUP, RANK
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.single_controller.actor import as_subclass
from nemo_ada.nemo.single_controller.rollout import TARGET, ControllerRollout, DrawnGroup
from nemo_ada.rules import rulebook
from nemo_ada.rules.single_controller import lookahead, plug_in_needs

MASKED = {"instance_config": {"mask_sample": True}}
"""How an environment says that a row is not trained on. NeMo-RL writes it into the column mask_sample."""


def plugged_in(master_config: Any, actor_args: Any) -> Any:
    """Return the arguments of the actor with our objects. Without the section `reinforce_ada:` they stay as they are.

    Args:
        master_config: the single controller's MasterConfig.
        actor_args: what `setup_single_controller` has built.

    Raises:
        UserError: settings cannot work together.
    """
    if not nemo_settings.uses_reinforce_ada(master_config):
        return actor_args
    settings = nemo_settings.read(master_config)
    values = Values(as_dicts(master_config))
    rulebook.raise_errors(plug_in_needs(values, settings.ada))
    # Rows without advantage leave the loss only where its mean is over the others: no later stage knows their tokens.
    leave = settings.placeholder_rows and not settings.keep_denominator
    manager = actor_args.rollout_manager
    ours = as_subclass(
        manager,
        PluggedManager,
        settings=dataclasses.replace(settings, placeholder_rows=leave),
        rounds=max(lookahead(values), 1),
    )
    ours._impl = as_subclass(manager._impl, PluggedRollout)
    return dataclasses.replace(actor_args, rollout_manager=ours, advantage_estimator=CommittedAdvantage())


class CommittedAdvantage:
    """NeMo-RL's estimator interface. Each row came with its advantage in the place of its reward."""

    def compute_advantage(self, *, rewards: torch.Tensor, mask: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return the advantages, [R, T], which are constant over a row's tokens.

        Args:
            rewards: the column of rewards, [R].
            mask: which tokens are in the loss, [R, T].
        """
        return rewards.to(mask.device, torch.float32).unsqueeze(-1).expand(mask.shape).clone()


class PluggedManager(RolloutManager):  # type: ignore[misc]
    """NeMo-RL's manager, whose rollouts learn the step that they are drawn for.

    Attributes:
        settings: settings of the run.
        rounds: training steps that share a number in the seeds.
    """

    settings: NemoSettings
    rounds: int

    @cached_property
    def groups(self) -> Groups:
        """What the groups share. It is made in the controller's process, when the first of them begins."""
        sampler, rounds = self.settings.sampler(), self.rounds
        return Groups(self.settings, sampler, lambda: self._weight_version, first=1, rounds=rounds)

    @cached_property
    def _tickets(self) -> Any:
        return count()

    async def generate_and_push(self, input_sample: Any, *, target_step: int | None = None, **rest: Any) -> Any:
        """Draw a group and commit it, as NeMo-RL does.

        A sampler may name no step. Then the groups that begin under one version of the weights share a budget.
        """
        self._impl.groups = self.groups
        target = self._weight_version if target_step is None else int(target_step)
        ticket = next(self._tickets)
        sample = {**input_sample, TARGET: target, TICKET: ticket, REDRAWN: False}
        outcome = await super().generate_and_push(sample, target_step=target_step, **rest)
        if outcome is RolloutOutcome.SKIPPED:
            self.groups.drop(target, ticket)
        else:
            self.groups.forget(ticket)
        return outcome


class PluggedRollout(ControllerRollout):
    """A rollout whose rows have their advantages in the place of their rewards."""

    @staticmethod
    def begun(ticket: int) -> None:
        """NeMo-RL's own ledger keeps the prompts that have begun."""

    @cached_property
    def _steps(self) -> WholeSteps:
        return WholeSteps(self.groups.sampler, self.groups.settings.prompts)

    async def run_rollout(self, input_sample: Any) -> PromptGroupRecord:
        """Draw the group of a prompt. A run that must end says so for every group."""
        self._steps.check()
        record = await super().run_rollout(input_sample)
        drawn: DrawnGroup = record.metadata.pop(GROUP)
        pool = None if drawn.group["pool"] is None else GroupPool.from_dict(drawn.group["pool"])
        advantage_R = self._advantages(pool, drawn) if pool is not None else [0.0] * len(record.completions)
        completions = [
            dataclasses.replace(one, reward=advantage, env_extras=None if mask > 0 else MASKED)
            for one, advantage, mask in zip(record.completions, advantage_R, drawn.mask_R.tolist(), strict=True)
        ]
        metrics = record.rollout_metrics | self._steps.add(pool, drawn.target)
        return dataclasses.replace(record, completions=completions, rollout_metrics=metrics)

    def _advantages(self, pool: GroupPool, drawn: DrawnGroup) -> list[float]:
        """Compute the advantages of a group's rows, as a step does for all of its groups."""
        rank_R, weight_R = drawn.columns[RANK].numpy(), drawn.columns["ada_weight"].numpy().astype(np.float64)
        selection = Selection.of_groups([len(pool.result.response_id_N)], rank_R, weight_R)
        rows = weigh(pool.result, selection, self.groups.sampler.rows, prior_P=None)
        return list(rows.advantage_R.astype(np.float32).tolist())


class WholeSteps:
    """Joins the pools of each step for its metrics, and for the checks that end a run.

    The last group of a step brings the metrics. A step that a resumed run finds half drawn, or whose prompts were
    given up, has none.
    """

    def __init__(self, sampler: AdaSampler, prompts: int) -> None:
        """Prepare for a run. `prompts` is the number of groups of a step."""
        self._sampler, self._prompts = sampler, prompts
        self._pools: dict[int, list[GroupPool]] = {}
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise the error that ends the run. NeMo-RL would draw the group again, and another step might pass."""
        if self._error is not None:
            raise self._error

    def add(self, pool: GroupPool | None, target: int) -> dict[str, float]:
        """Add the pool of a group, and return the metrics of its step when it is the last one. Else they are empty.

        Raises:
            FailedResponsesError: too many responses of the step have no label.
            UserError: too many steps in a row had no row to learn from.
        """
        pools = self._pools.setdefault(target, [])
        pools.extend([] if pool is None else [pool])
        if len(pools) < self._prompts:
            return {}
        self._pools = {step: kept for step, kept in self._pools.items() if step > target}
        return self._finished(pools)

    def _finished(self, pools: Sequence[GroupPool]) -> dict[str, float]:
        try:
            return dict(self._sampler.finish_step(pools).metrics)
        except Exception as error:
            self._error = error
            raise
