"""Reinforce-Ada in NeMo-RL's single controller: two objects of its arguments, on the driver, and nothing else.

    actor_args, timings = setup_single_controller(config, tokenizer)
    controller = SingleControllerActor.remote(master_config=config, actor_args=plug_in(config, actor_args),
                                              setup_timing_metrics=timings)

- `rollout_manager`: a group draws waves until its session has enough. Its n rows have their advantages where NeMo-RL
  expects rewards, and rows without weight are masked.
- `advantage_estimator`: it returns these numbers.

So NeMo-RL's columns, replay buffer, samplers, ledger and checkpoints hold all that a step needs, and they bring it back
after a resume. The rewards themselves are in the metrics. Only group-local settings are possible (`rules`): an
estimator of pass rates would need a state that no checkpoint here has. NeMo-RL's retry budgets decide what follows an
error of a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
from nemo_rl.experience.rollout_manager import AsyncRolloutImpl, RolloutManager, RolloutOutcome

from nemo_ada.config.values import Values, as_dicts
from nemo_ada.core.learning.rows import Selection, weigh
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.groups.drawing import Drawing, Groups
from nemo_ada.nemo.groups.prompt_queue import TICKET
from nemo_ada.nemo.groups.step import RANK
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.response import Response, read
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.rules.single_controller import read_lookahead

TARGET = "ada_target"
MASKED = {"instance_config": {"mask_sample": True}}
"""How an environment says that a row is not trained on. NeMo-RL writes it into the column mask_sample."""
LATEST = 64
"""Steps after which one that is still incomplete, such as the first one after a resume, is forgotten."""


def plug_in(master_config: Any, actor_args: Any) -> Any:
    """Return the arguments of the actor with our objects. Without the section `reinforce_ada:` they stay as they are.

    Args:
        master_config: the single controller's MasterConfig.
        actor_args: what `setup_single_controller` has built.

    Raises:
        UserError: settings cannot work together.
    """
    if not uses_reinforce_ada(Values(master_config)):
        return actor_args
    settings = nemo_settings.read(master_config)
    # Rows without advantage leave the loss only where its mean is over the others: no later stage knows their tokens.
    leave = settings.placeholder_rows and not settings.keep_denominator
    manager = actor_args.rollout_manager
    ours = make_subclass(
        manager,
        PluggedManager,
        settings=dataclasses.replace(settings, placeholder_rows=leave),
        rounds=max(read_lookahead(Values(as_dicts(master_config))), 1),
    )
    ours._impl = make_subclass(manager._impl, PluggedRollout)
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

    @cached_property
    def _began(self) -> int:
        """Version of the weights when the first group of this attempt began."""
        return int(self._weight_version)

    def _choose_budget(self, target_step: int | None, ticket: int) -> int:
        """Return the number of the step whose budget a group shares.

        `in_order` says which step trains on a group. The other samplers do not, because a step takes the groups that
        are ready. Then the groups that begin one after another share a budget, as many as a step has.
        """
        if target_step is not None:
            return int(target_step)
        return self._began + ticket // self.settings.prompts

    async def generate_and_push(self, input_sample: Any, *, target_step: int | None = None, **rest: Any) -> Any:
        """Draw a group and commit it, as NeMo-RL does. The groups of a step share its budget."""
        self._impl.groups = self.groups
        ticket = next(self._tickets)
        target = self._choose_budget(target_step, ticket)
        sample = {**input_sample, TARGET: target, TICKET: ticket}
        outcome = await super().generate_and_push(sample, target_step=target_step, **rest)
        if outcome is RolloutOutcome.SKIPPED:
            self.groups.drop(target, ticket)
        else:
            self.groups.forget(ticket)
        return outcome


class PluggedRollout(AsyncRolloutImpl):  # type: ignore[misc]
    """NeMo-RL's native rollout, whose groups draw waves, and whose rows have advantages in the place of rewards.

    Attributes:
        groups: what the groups of the controller share.
    """

    groups: Groups

    @cached_property
    def _steps(self) -> WholeSteps:
        return WholeSteps(self.groups.sampler, self.groups.settings.prompts)

    async def run_rollout(self, input_sample: Any) -> PromptGroupRecord:
        """Draw the group of a prompt. A run that must end says so for every group.

        Args:
            input_sample: NeMo-RL's DatumSpec, with the target step and a ticket.
        """
        self._steps.check()
        ticket, target, sample = int(input_sample[TICKET]), int(input_sample[TARGET]), input_sample
        prompts = Prompts(_make_batch(sample), 1, whole=False, gym=False)

        async def respond(response_id: int, _: int) -> tuple[Response, dict[str, Any]]:
            completion, metrics = await self._run_single_rollout(sample, response_id)
            return read(prompts.logs[0], completion.message_log, completion.reward, completion.truncated), metrics

        drawing, pool, batch = await self.groups.draw_group(prompts, respond, target, ticket=ticket, redrawn=False)
        if pool is not None:
            pool = dataclasses.replace(pool, step=target + 1)
        rows = zip(
            batch["message_log"],
            batch["truncated"].tolist(),
            batch["loss_multiplier"].tolist(),
            self._compute_advantages(pool, batch),
            strict=True,
        )
        return PromptGroupRecord(
            prompt_idx=sample["idx"],
            prompt=sample["message_log"],
            extra_env_info=sample["extra_env_info"],
            metadata={"task_name": sample["task_name"]},
            completions=[
                Completion(message_log=log, env_extras=None if mask > 0 else MASKED, truncated=cut, reward=advantage)
                for log, cut, mask, advantage in rows
            ],
            rollout_metrics=self._summarise(drawing) | self._steps.add(pool, target),
        )

    def _summarise(self, drawing: Drawing) -> dict[str, Any]:
        """NeMo-RL's metrics of all responses with a label, and not of the selected rows."""
        judged = {row: one for row, one in drawing.responses.done.items() if one.reward == one.reward}
        if not judged:
            return {}
        completions = [Completion(one.generated, None, one.truncated, one.reward) for one in judged.values()]
        return dict(self._aggregate_rollout_metrics(completions, [drawing.responses.samples[row] for row in judged]))

    def _compute_advantages(self, pool: GroupPool | None, batch: Any) -> list[float]:
        """Compute the advantages of a group's rows, as a step does for all of its groups."""
        rank_R, weight_R = batch[RANK].numpy(), batch["ada_weight"].numpy().astype(np.float64)
        if pool is None:  # the prompt is too long
            return [0.0] * len(rank_R)
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
        self._groups: dict[int, list[GroupPool | None]] = {}
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise the error that ends the run. NeMo-RL would draw the group again, and another step might pass."""
        if self._error is not None:
            raise self._error

    def add(self, pool: GroupPool | None, target: int) -> dict[str, float]:
        """Add the pool of a group, and return the metrics of its step when it is the last one. Else they are empty.

        A prompt that is too long has no pool.

        Raises:
            FailedResponsesError: too many responses of the step have no label.
            UserError: too many steps in a row had no row to learn from.
        """
        groups = self._groups.setdefault(target, [])
        groups.append(pool)
        if len(groups) < self._prompts:
            return {}
        del self._groups[target]  # earlier steps may still wait for their longest group
        self._groups = {step: kept for step, kept in self._groups.items() if step > target - LATEST}
        pools = [one for one in groups if one is not None]
        return self._finish(pools) if pools else {}

    def _finish(self, pools: Sequence[GroupPool]) -> dict[str, float]:
        try:
            return dict(self._sampler.finish_step(pools).metrics)
        except Exception as error:
            self._error = error
            raise


def make_subclass(instance: Any, cls: Any, **attributes: Any) -> Any:
    """Return a copy of an object that has a subclass of its class and these attributes, too. The parts are shared."""
    copy = cls.__new__(cls)
    vars(copy).update({**vars(instance), **attributes})
    return copy


def _make_batch(sample: Any) -> Any:
    """Return the batch of NeMo-RL's data loader that has this prompt only."""
    columns = {
        name: torch.as_tensor(value).reshape(1)
        if torch.is_tensor(value) or name in ("length", "loss_multiplier")
        else [value]
        for name, value in sample.items()
        if name not in (TARGET, TICKET)
    }
    return BatchedDataDict(columns)
