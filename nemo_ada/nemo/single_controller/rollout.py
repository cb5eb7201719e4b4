"""NeMo-RL's rollout manager and its two rollout classes, so that a group draws waves until it has enough.

ControllerRollout draws with NeMo-RL's own rollouts, and AdaGymRollout over NeMo-Gym. Both share GroupRollout. Over Gym
a response is one row of Gym, and a rollout that fails has no label, as in synchronous training (gym/source.py).
NeMo-RL's retry budgets decide what follows an error of a group.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
from nemo_rl.experience.rollout_manager import (
    AsyncNemoGymRolloutImpl,
    AsyncRolloutImpl,
    RolloutManager,
    RolloutOutcome,
)

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.groups.drawing import Drawing, Groups
from nemo_ada.nemo.groups.prompt_queue import REDRAWN, TICKET
from nemo_ada.nemo.groups.step import GROUP, RANK
from nemo_ada.nemo.gym.actor import ENVIRONMENT, GymAnswer, ServerWatch, streaming
from nemo_ada.nemo.gym.failures import Failures
from nemo_ada.nemo.gym.request import AGENT
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.requests import Respond
from nemo_ada.nemo.rollouts.response import Response, read
from nemo_ada.nemo.training_batch import COLUMNS

log = logging.getLogger(__name__)

TARGET = "ada_target"
TIMER = "timing/rollout"  # NeMo-RL's prefix of the seconds that Gym's actor reports


@dataclass(frozen=True)
class DrawnGroup:
    """A group that was drawn. It waits beside the buffer for its step, because a pool has no fixed number of entries.

    Attributes:
        ticket: position of the prompt in the queue.
        target: version of the weights that its step starts from.
        group: the dictionary of step.py (number, pool, spare, skipped).
        columns: column of step.py -> its values for the n rows, [n].
        mask_R: 1.0 for rows in the loss, [n].
        revived: whether a whole response has taken the place of the first row, whose advantage is 0.
    """

    ticket: int
    target: int
    group: dict[str, Any]
    columns: dict[str, torch.Tensor]
    mask_R: torch.Tensor
    revived: bool = False


class AdaRolloutManager(RolloutManager):  # type: ignore[misc]
    """NeMo-RL's manager. Its rollouts learn the step that they are drawn for, and dropped prompts are noted."""

    dropped: Callable[[int, int], None]

    async def generate_and_push(self, input_sample: Any, *, target_step: int | None = None, **rest: Any) -> Any:
        """Draw a group and commit it, as NeMo-RL does."""
        sample = {**input_sample, TARGET: target_step}
        outcome = await super().generate_and_push(sample, target_step=target_step, **rest)
        if outcome is RolloutOutcome.SKIPPED:
            self.dropped(int(target_step or 0), int(input_sample[TICKET]))
        return outcome


class GroupRollout:
    """What the rollouts of both kinds share. A group draws waves until its session has enough, and returns n rows.

    Attributes:
        groups: what the groups of the controller share.
        begun: called with the ticket of a group that begins.
        over_gym: whether NeMo-Gym makes the prompts, so that only their requests are known.
    """

    groups: Groups
    begun: Callable[[int], None]
    over_gym = False

    def _responder(self, prompts: Prompts, sample: Any) -> Respond:
        """Return the function that draws a response of a group."""
        raise NotImplementedError

    def _summary(self, responses: Sequence[Response], samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """NeMo-RL's metrics of responses, of which there is at least one. `samples` came with them."""
        raise NotImplementedError

    async def run_rollout(self, input_sample: Any) -> PromptGroupRecord:
        """Draw the group of a prompt.

        Args:
            input_sample: NeMo-RL's DatumSpec, with the columns of the queue and the target step.
        """
        ticket, target, sample = int(input_sample[TICKET]), int(input_sample[TARGET]), input_sample
        prompts = Prompts(_batch(sample), 1, whole=False, gym=self.over_gym)
        self.begun(ticket)
        respond, redrawn = self._responder(prompts, sample), bool(sample[REDRAWN])
        drawing, pool, batch = await self.groups.draw_group(prompts, respond, target, ticket=ticket, redrawn=redrawn)
        group = batch[GROUP][0]
        if pool is not None:
            group["pool"]["step"] = target + 1
        columns = {name: batch[name] for name in (RANK, *COLUMNS)}
        drawn = DrawnGroup(ticket, target, group, columns, batch["loss_multiplier"].to(torch.float32))
        rewards, truncated = batch["total_reward"].tolist(), batch["truncated"].tolist()
        return PromptGroupRecord(
            prompt_idx=sample["idx"],
            prompt=batch["message_log"][0][:1] if self.over_gym else sample["message_log"],
            extra_env_info=sample["extra_env_info"],
            metadata={"task_name": sample["task_name"], GROUP: drawn},
            completions=[
                Completion(message_log=one, env_extras=None, truncated=cut, reward=reward)
                for one, cut, reward in zip(batch["message_log"], truncated, rewards, strict=True)
            ],
            rollout_metrics=self._metrics(drawing),
        )

    def _metrics(self, drawing: Drawing) -> dict[str, Any]:
        """NeMo-RL's metrics of all responses with a label, and not of the selected rows."""
        judged = {row: one for row, one in drawing.responses.done.items() if one.reward == one.reward}
        if not judged:
            return {}
        return self._summary(list(judged.values()), [drawing.responses.samples[row] for row in judged])


class ControllerRollout(GroupRollout, AsyncRolloutImpl):  # type: ignore[misc]
    """NeMo-RL's native rollout, whose groups draw waves."""

    def _responder(self, prompts: Prompts, sample: Any) -> Respond:
        async def respond(response_id: int, _: int) -> tuple[Response, dict[str, Any]]:
            completion, metrics = await self._run_single_rollout(sample, response_id)
            return read(prompts.logs[0], completion.message_log, completion.reward, completion.truncated), metrics

        return respond

    def _summary(self, responses: Sequence[Response], samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        completions = [Completion(one.generated, None, one.truncated, one.reward) for one in responses]
        return dict(self._aggregate_rollout_metrics(completions, samples))


class AdaGymRollout(GroupRollout, AsyncNemoGymRolloutImpl):  # type: ignore[misc]
    """NeMo-RL's rollout over NeMo-Gym, whose groups draw waves. A response is a call of Gym's actor with one row."""

    over_gym = True

    @cached_property
    def _servers(self) -> ServerWatch:
        return ServerWatch(self._task_to_env[ENVIRONMENT])

    def _responder(self, prompts: Prompts, sample: Any) -> Respond:
        row, failures = self._build_inputs(sample)[0], Failures()  # Ray sends a copy of the row with each call
        agent = row[AGENT]["name"]

        async def respond(*_: int) -> tuple[Response, dict[str, Any]]:
            answer, started, results = GymAnswer(), list[Any](), [None]
            actor = streaming(self._task_to_env[ENVIRONMENT], answer, started.append)
            work = self._stream_rows(actor, [row], results, 1, TIMER)
            try:
                seconds = await self._servers.result(work, started)
                response, completion = self._answered(results[0], answer)
                return response, {"completion": completion, "seconds": seconds or {}, "agent": agent}
            except ProcessLostError:
                raise
            except Exception as error:
                if not started:
                    raise  # NeMo-RL refused the call before any rollout began
                failed = failures.response(error)
            await self._servers.check()
            return failed, {}

        return respond

    def _answered(self, result: Any, answer: GymAnswer) -> tuple[Response, Completion]:
        """Return the response of a row's result, and NeMo-RL's form of it.

        Raises:
            ValueError: there is no result, or it has no reward or no tokens. NeMo-RL's own code raises others, too.
        """
        if result is None:
            raise ValueError("NeMo-Gym returned no result for the row")
        if not math.isfinite(answer.reward):
            raise ValueError(f"the reward is {answer.reward}")
        completion = self._result_to_completion(result)
        log, facts = completion.message_log, completion.env_extras
        # NeMo-RL calls a response truncated that fills the context. One turn may also end at its own limit.
        response = read(log[:1], log, answer.reward, completion.truncated or answer.cut)
        if response.tokens == 0:
            raise ValueError("the result has no tokens of the policy")
        masked = bool((facts.get("instance_config") or {}).get("mask_sample", False))
        return replace(response, masked=masked), replace(completion, truncated=response.truncated)

    def _summary(self, responses: Sequence[Response], samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        completions = [sample["completion"] for sample in samples]
        seconds = [sample["seconds"] for sample in samples]
        names = dict.fromkeys(name for one in seconds for name in one)
        means = {name: float(np.mean([one[name] for one in seconds if name in one])) for name in names}
        return dict(self._compute_rollout_metrics(completions, samples[0]["agent"])) | means


def _batch(sample: Any) -> Any:
    """Return the batch of NeMo-RL's data loader that has this prompt only."""
    columns = {
        name: torch.as_tensor(value).reshape(1)
        if torch.is_tensor(value) or name in ("length", "loss_multiplier")
        else [value]
        for name, value in sample.items()
        if name not in (TARGET, TICKET, REDRAWN)
    }
    return BatchedDataDict(columns)
