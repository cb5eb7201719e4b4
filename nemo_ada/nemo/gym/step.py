"""What NeMo-RL's loop gets back from a rollout over NeMo-Gym, in training and in validation. R rows of T tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nemo_ada.core.sampling.source import Requests
from nemo_ada.nemo.gym.source import GymSource
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.response import Response
from nemo_ada.nemo.training_batch import list_row_prompts


@dataclass(frozen=True, slots=True)
class GymRollout:
    """NeMo-RL's result of a rollout over NeMo-Gym has these fields.

    Attributes:
        input_ids: prompt of each row, padded, [R, T]. The loop passes it to the baselines.
        final_batch: the rows.
        rollout_metrics: metrics of the rollout.
        task_index: number of a prompt in asynchronous training on main. None elsewhere.
    """

    input_ids: torch.Tensor
    final_batch: Any
    rollout_metrics: dict[str, Any]
    task_index: int | None = None


def make_result(batch: Any, metrics: dict[str, Any], tokenizer: Any) -> GymRollout:
    """Return the result for the loop.

    Its `input_ids` are made from the rows, because these are not those that were drawn.
    """
    prompts_R = [
        torch.cat([message["token_ids"] for message in log])[: int(length)]
        for log, length in zip(batch["message_log"], batch["length"], strict=True)
    ]
    padding = getattr(tokenizer, "pad_token_id", None) or 0
    input_ids = torch.nn.utils.rnn.pad_sequence(prompts_R, batch_first=True, padding_value=padding)
    return GymRollout(input_ids, batch, metrics)


def validate(
    call: RolloutCall, batch: Any, rollout: Callable[..., Any], longest: int, on_wait: Callable[[], None]
) -> tuple[GymRollout, int]:
    """Draw one response per row of a validation batch.

    NeMo-RL's own call ends the run when one rollout fails. Here such an answer counts as wrong.

    Args:
        call: arguments of the rollout.
        batch: NeMo-RL's batch.
        rollout: NeMo-RL's `run_async_nemo_gym_rollout`.
        longest: tokens of the longest response.
        on_wait: called at least once a minute while responses are awaited.

    Returns:
        The result for the loop, and how many answers have no label.

    Raises:
        ProcessLostError: a rollout failed because a process has died.
    """
    prompts = Prompts(batch, 1, gym=True)
    ids_R = np.arange(len(prompts.ids))
    zeros_R = np.zeros_like(ids_R)
    source = GymSource(call, prompts, rollout, longest)
    try:
        source.submit(Requests(ids_R, ids_R, zeros_R, zeros_R, zeros_R))
        answered = 0
        while answered < len(ids_R):
            answered += len(source.poll())
            on_wait()
    finally:
        source.close()
    responses = [source.response(row) for row in ids_R.tolist()]
    final = prompts.training_rows(prompts.position_P)
    prompts_R = list(list_row_prompts(final["message_log"], [None if r.failure else r for r in responses]))
    final["message_log"] = [
        list(prompt) if response.failure else response.message_log
        for prompt, response in zip(prompts_R, responses, strict=True)
    ]
    final["length"] = torch.tensor([sum(len(message["token_ids"]) for message in prompt) for prompt in prompts_R])
    final["total_reward"] = torch.tensor([_score(response) for response in responses])
    final["truncated"] = torch.tensor([response.truncated for response in responses])
    metrics = {"mean_gen_tokens_per_sample": 0.0} | source.reported
    unlabelled = sum(not math.isfinite(response.reward) for response in responses)
    return make_result(final, metrics, call.tokenizer), unlabelled


def _score(response: Response) -> float:
    """Return the reward of a validation answer. It is 0 without a label."""
    shaped = response.reward if response.shaped is None else response.shaped
    return shaped if math.isfinite(response.reward) and math.isfinite(shaped) else 0.0
