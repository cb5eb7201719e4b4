"""What a training step gets from the buffer: whole steps, their groups, and the advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from nemo_rl.algorithms.async_utils.staleness_sampler import ReadyFirstSampler

from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.errors import InvariantError
from nemo_ada.nemo.groups.prompt_queue import PromptQueue
from nemo_ada.nemo.groups.step import GROUP, GroupAdvantageEstimator
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.single_controller.buffer import AdaBuffer
from nemo_ada.nemo.single_controller.rollout import DrawnGroup


class ControllerEstimator(GroupAdvantageEstimator):
    """Computes the advantages of a step of the single controller, as in asynchronous training.

    Attributes:
        generation_logprobs: the engine's log-probabilities of the step's rows, [R, T].
    """

    def __init__(self, settings: NemoSettings, sampler: AdaSampler, finished: Callable[[SampledStep], None]) -> None:
        super().__init__(settings, sampler, finished)
        self._groups: Sequence[DrawnGroup] = ()
        self.generation_logprobs: torch.Tensor | None = None

    def expect(self, groups: Sequence[DrawnGroup]) -> None:
        """Learn the groups of the next step, in the order of its rows."""
        self._groups = groups

    def compute_advantage(
        self, *, rewards: torch.Tensor, mask: torch.Tensor, repeated_batch: Any, **rest: Any
    ) -> torch.Tensor:
        """Return the advantages, [R, T].

        Args:
            rewards: rewards of the rows in the data plane, [R].
            mask: which tokens are in the loss, [R, T].
            repeated_batch: NeMo-RL's columns, of which nothing is used.
            rest: NeMo-RL's log-probabilities by name.
        """
        if not self._groups:
            raise InvariantError("the controller wants advantages of a step whose groups it did not take")
        groups, self._groups = self._groups, ()
        batch: dict[str, Any] = {name: torch.cat([one.columns[name] for one in groups]) for name in groups[0].columns}
        batch[GROUP] = [entry for one in groups for entry in (one.group, *[None] * (len(one.mask_R) - 1))]
        advantages: torch.Tensor = super().compute_advantage(
            rewards=rewards,
            mask=mask,
            repeated_batch=batch,
            prev_logprobs=rest.get("logprobs_policy"),
            generation_logprobs=self.generation_logprobs,
        )
        row = 0
        for one in groups:
            if one.revived:  # an environment may have masked a row that has an advantage
                advantages[row] = 0.0
            row += len(one.mask_R)
        return advantages


class ReadyGroups(ReadyFirstSampler):  # type: ignore[misc]
    """NeMo-RL's sampler of ready groups. A step waits for a group that would become too old.

    Each batch of prompts has a number, as with in_order. So its groups share a budget.

    Attributes:
        oldest: versions between a group's start and its step at most.
    """

    oldest: int

    def _stamp(self) -> int:
        return int(self._dispatch_index)

    async def select(self, *, current_train_weight: int, **bounds: Any) -> tuple[Any, int]:
        """Select ready groups in the order of their start."""
        least = current_train_weight - self.oldest
        slots = zip(self._buffer.start_weight_list, self._buffer.ready_list, strict=True)
        if any(version <= least and not ready for version, ready in slots):
            return None, 0
        selected: tuple[Any, int] = await super().select(current_train_weight=current_train_weight, **bounds)
        return selected


class StepSampler:
    """NeMo-RL's sampler of prompt groups, whose steps are whole.

    It keeps the queue's books when a batch of prompts is admitted, and the estimator's when a step is selected.
    """

    def __init__(
        self,
        sampler: Any,
        buffer: AdaBuffer,
        queue: PromptQueue,
        estimator: ControllerEstimator,
        trained: Callable[[int], None],
    ) -> None:
        """Wrap a sampler.

        Args:
            sampler: NeMo-RL's InOrderSampler, or ReadyGroups.
            buffer: the buffer that it selects from.
            queue: the prompts.
            estimator: it computes the advantages.
            trained: called with the ticket of every group of a step that is selected.
        """
        self._sampler, self._buffer, self._queue, self._estimator = sampler, buffer, queue, estimator
        self._trained = trained

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait until the next batch of prompts may start. Prompts for which its step has no place return to the queue.

        A step that is continued after a resume has some of its groups already, and NeMo-RL starts only the others.
        """
        target: int | None = await self._sampler.admit(trainer_version_fn=trainer_version_fn)
        if target is not None:
            self._queue.use(max(self._queue.size - self._buffer.count_for_target_step(target), 0))
        return target

    async def select(self, *, current_train_weight: int, **bounds: Any) -> tuple[Any, int]:
        """Select all groups of a step, however few NeMo-RL would train on at once.

        Their prompts count as trained on, because saves come between steps.
        """
        bounds["min_prompt_groups"] = bounds["max_prompt_groups"]
        meta, count = await self._sampler.select(current_train_weight=current_train_weight, **bounds)
        if meta is not None:
            groups = await self._buffer.take(meta)
            self._estimator.expect(groups)
            for one in groups:
                if one.group["pool"] is not None:  # with ready_first it was drawn for an earlier or a later step
                    one.group["pool"]["step"] = current_train_weight + 1
                self._queue.done(one.ticket)
                self._trained(one.ticket)
        return meta, count
