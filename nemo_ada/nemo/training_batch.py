"""From a step's rows to the batch that grpo_train goes on with: R rows, as many as its input had.

NeMo-RL cuts a batch into optimizer steps from its start to its end. In asynchronous training prompts come in an order
that says how hard they are, the first that were finished first. So whole groups are shuffled, by run seed and step, as
the CPU back end does it.

The hooks add these columns (1-D tensors, length R). They reach the advantage estimator and go no further:

    ada_uid        int64    identity of the row's prompt occurrence over the run
    ada_advantage  float32  0.0 for placeholder rows
    ada_weight     float32  0.0 for placeholder rows
    ada_reward     float32  the reward that advantages were computed on; must equal `total_reward`
    ada_baseline   float32  mean reward of the row's pool
    ada_std        float32  standard deviation (population) of the pool's raw rewards; 0 = no signal
    ada_saved      int64    tokens of the row that left the loss because its advantage is zero

An example with 2 prompts, groups of n = 2 and updates of 2 rows. Prompt 0 has one correct and one incorrect row
(advantages .5 and -.5), prompt 1 two correct ones (advantage 0). If the shuffle leaves this order:

    row             0     1     2     3
    prompt          0     0     1     1
    weight_R        1     1     1     1     all four have a response
    placeholder_R   no    no    yes   yes   an advantage of 0 gives no gradient
    kept_R          no    no    yes   no    the second update would have no row: row 2 stays whole after all
    advantage_R     .5    -.5   0     0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.rows import StepRows
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.seeds import shuffle_rows
from nemo_ada.nemo.metrics import compute_mean_reward
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.response import ROUTES, Message, Response, make_placeholder
from nemo_ada.nemo.settings import NemoSettings

COLUMNS = ("ada_uid", "ada_advantage", "ada_weight", "ada_reward", "ada_baseline", "ada_std", "ada_saved")
UID_SHIFT = 24  # a number of a rollout call above, a position in its batch below: at most 2**24 prompts


class Responses(Protocol):
    """What holds the texts of the kept responses: the source that drew them."""

    def response(self, response_id: int) -> Response:
        """Return the response with this number."""


@dataclass(frozen=True, slots=True)
class PoolRewards:
    """Rewards of the pools, and their moments per prompt. The moments are 0 for an empty pool.

    Attributes:
        reward_N: reward of each response in the update.
        mean_P: mean of these rewards.
        std_P: standard deviation (population) of the environment's rewards.
    """

    reward_N: FloatArray
    mean_P: FloatArray
    std_P: FloatArray


def pool_rewards(result: SamplingResult, raw_reward_N: FloatArray) -> PoolRewards:
    """Return the rewards of the update (result.reward_N), and moments; raw_reward_N are those of the environment."""
    prompts = len(result.uid_P)
    size_P = np.maximum(np.bincount(result.prompt_N, minlength=prompts), 1)
    mean_P = np.bincount(result.prompt_N, result.reward_N, prompts) / size_P
    raw_mean_P = np.bincount(result.prompt_N, raw_reward_N, prompts) / size_P
    squares_P = np.bincount(result.prompt_N, (raw_reward_N - raw_mean_P[result.prompt_N]) ** 2, prompts)
    return PoolRewards(result.reward_N, mean_P, np.sqrt(squares_P / size_P))


def read_shaped_rewards(result: SamplingResult, source: Responses) -> FloatArray:
    """Return the rewards of the pools [N] after NeMo-RL's shaping inside the rollout (over NeMo-Gym)."""
    responses = [source.response(row) for row in result.response_id_N.tolist()]
    rewards = zip(responses, result.reward_N.tolist(), strict=True)
    return np.array([raw if response.shaped is None else response.shaped for response, raw in rewards], np.float64)


def pool_metrics(
    prompts: Prompts, source: Responses, result: SamplingResult | None, length_R: torch.Tensor
) -> dict[str, float]:
    """Return NeMo-RL's metrics of the responses of the pools. There is no result without a prompt to draw for."""
    responses = [] if result is None else [source.response(row) for row in result.response_id_N.tolist()]
    tokens_N = np.array([response.tokens for response in responses] or [0])
    lengths = [len(message["token_ids"]) for response in responses for message in response.prompt]
    return {
        "mean_gen_tokens_per_sample": float(tokens_N.mean()),
        "max_gen_tokens_per_sample": float(tokens_N.max()),
        "truncation_rate": float(np.mean([response.truncated for response in responses] or [False])),
        # NeMo-RL's own would count placeholder rows. Over NeMo-Gym only the responses know their prompts' lengths.
        "mean_prompt_length": float(np.mean(lengths or [0]) if prompts.requests else length_R.float().mean()),
        **({} if result is None else compute_mean_reward(result)),
    }


def build_batch(
    prompts: Prompts,
    source: Responses,
    rows: StepRows,
    rewards: PoolRewards,
    settings: NemoSettings,
    rollout_call: int,
    *,
    whole: bool = True,
) -> tuple[Any, dict[str, float]]:
    """Return the batch of this step (same type as NeMo-RL's), and metrics of what the update will not compute.

    The rows of masked prompts are placeholder rows without weight. `whole` is False for a part of a step. Then the
    order of the rows stays.
    """
    masked_R = np.repeat(np.array(prompts.masked, np.int64), settings.group)
    # Rows are numbered by prompt so far. NeMo-RL cuts a batch into updates in order, so they are shuffled first.
    position_R = np.concatenate([np.array(prompts.position_P, np.int64)[rows.prompt_R], masked_R])
    order_R = shuffle_rows(position_R, settings.seed, rollout_call) if whole else np.arange(len(position_R))
    position_R = position_R[order_R]

    def padded(column_R: NDArray[Any], fill: float = 0.0) -> NDArray[Any]:
        return np.concatenate([column_R, np.full(len(masked_R), fill, column_R.dtype)])[order_R]

    batch = prompts.training_rows(position_R.tolist())
    placeholder_R = padded(_find_placeholders(rows, settings), True)
    weight_R = padded((rows.weight_R > 0).astype(np.float32))
    responses = [source.response(row) if row >= 0 else None for row in padded(rows.response_id_R, -1).tolist()]
    # NeMo-RL's metrics need a valid row in every update. Where all are placeholders, one stays whole, with advantage 0.
    # A cut row may stay so, too, where NeMo-RL takes cut rows out of the loss and none would be left.
    kept_R = np.zeros(len(weight_R), np.bool_)
    if whole:
        leaves_R = placeholder_R | (find_leaving_rows(responses, settings) if settings.placeholder_rows else False)
        kept_R = _keep_one_per_update(np.where(leaves_R, 0.0, weight_R), responses, settings.global_batch)
        _borrow(batch, responses, kept_R)
    placeholder_R &= ~(kept_R & np.array([response is not None for response in responses]))
    # A placeholder is cut to two tokens: it costs nothing, and the batch keeps the shape that NeMo-RL expects.
    batch["message_log"] = [
        make_placeholder(prompt, response.generated if response else ())
        if short or response is None
        else response.message_log
        for prompt, response, short in zip(list_row_prompts(batch["message_log"], responses), responses, placeholder_R,
                                           strict=True)
    ]  # fmt: skip
    truncated_R = np.array([response is not None and response.truncated for response in responses])
    tokens_R = np.array([response.tokens if response else 0 for response in responses], np.int64)
    tokens_R[weight_R == 0] = 0
    if settings.overlong:
        tokens_R[truncated_R] = 0  # NeMo-RL takes them out of the loss
    # The tokens that placeholders leave out. With denominator: all_rows they still count in the loss's mean.
    saved_R = np.where(placeholder_R, tokens_R, 0)
    loss_R = np.where(placeholder_R, np.float32(0), weight_R)
    advantage_R = np.where(kept_R, 0.0, padded(rows.advantage_R))
    reward_R = np.append(rewards.reward_N, 0.0)[rows.pool_R]  # 0 at -1, where there is no response
    if prompts.requests:  # the data loader knew no length
        for row, response in enumerate(responses):
            batch["length"][row] = 1 if response is None else len(response.prompt[0]["token_ids"])
    short_R = [len(log[0]["token_ids"]) == 1 for log in batch["message_log"]]  # rows with media stay whole
    batch["length"][torch.from_numpy(placeholder_R) & torch.tensor(short_R)] = 1
    batch["truncated"] = torch.from_numpy(truncated_R & ~placeholder_R & ~kept_R)
    batch["loss_multiplier"] = torch.where(
        torch.from_numpy(kept_R), 1.0, torch.from_numpy(loss_R) * batch["loss_multiplier"]
    )
    batch["total_reward"] = torch.from_numpy(padded(reward_R).astype(np.float32))
    batch["ada_uid"] = torch.from_numpy((rollout_call << UID_SHIFT) + position_R)
    batch["ada_advantage"] = torch.from_numpy(advantage_R.astype(np.float32))
    batch["ada_weight"] = torch.from_numpy(weight_R)
    batch["ada_reward"] = batch["total_reward"].clone()
    batch["ada_baseline"] = torch.from_numpy(padded(rewards.mean_P[rows.prompt_R]).astype(np.float32))
    batch["ada_std"] = torch.from_numpy(padded(rewards.std_P[rows.prompt_R]).astype(np.float32))
    batch["ada_saved"] = torch.from_numpy(saved_R)
    metrics = {
        "tokens_trained": float(tokens_R.sum() - saved_R.sum()),
        "tokens_skipped": float(saved_R.sum()),
        "rows_skipped": float((placeholder_R & (weight_R > 0)).sum()),
        "prompts_too_long": float(len(prompts.masked)),
    }
    return batch, metrics


def find_leaving_rows(responses: Sequence[Response | None], settings: NemoSettings) -> NDArray[np.bool_]:
    """Return which rows NeMo-RL will take out of the loss, because they were cut (grpo.overlong_filtering)."""
    return np.array([settings.overlong and response is not None and response.truncated for response in responses])


def list_row_prompts(
    logs: Sequence[Sequence[Message]], responses: Sequence[Response | None]
) -> Iterator[Sequence[Message]]:
    """Yield the prompt of each row.

    Over NeMo-Gym only responses know it, and only they know the experts of its tokens (policy.router_replay). So a row
    without a response borrows one.
    """
    known = next((response.prompt for response in responses if response is not None), None)
    routed = known is not None and ROUTES in known[0]
    for log, response in zip(logs, responses, strict=True):
        if response is not None:
            yield response.prompt
        elif any(len(message["token_ids"]) for message in log) and not routed:
            yield log
        else:
            yield known or [{"role": "user", "content": "", "token_ids": torch.zeros(1, dtype=torch.int64)}]


def _find_placeholders(rows: StepRows, settings: NemoSettings) -> NDArray[np.bool_]:
    """Rows that become placeholders: repeats always, rows without advantage where the loss has no gradient for them."""
    placeholder_R = rows.weight_R <= 0
    if settings.placeholder_rows:
        placeholder_R = placeholder_R | (rows.advantage_R == 0.0)
    return np.asarray(placeholder_R, np.bool_)


def _borrow(batch: Any, responses: list[Response | None], kept_R: NDArray[np.bool_]) -> None:
    """Give kept rows without a response one of the step, and all kept rows the length of their prompt."""
    for row in np.flatnonzero(kept_R).tolist():
        response = responses[row] = responses[row] or next(filter(None, responses), None)
        if response is not None:
            batch["length"][row] = sum(len(message["token_ids"]) for message in response.prompt)


def _keep_one_per_update(
    loss_R: FloatArray, responses: Sequence[Response | None], global_batch: int
) -> NDArray[np.bool_]:
    """Return a row of every optimizer step that would have none: NeMo-RL's metrics need a valid row.

    It counts in the loss with the advantage 0, so it changes nothing. It is whole: the log-probabilities of a
    placeholder row are not those of its response, and NeMo-RL compares them (token_mult_prob_error). So it is the first
    row with a response. Where all prompts of the optimizer step are too long, it is the first row, which borrows a
    response of the step.
    """
    chosen_R = np.zeros(len(loss_R), np.bool_)
    for start in range(0, len(loss_R), global_batch):
        part = range(start, min(start + global_batch, len(loss_R)))
        if not (loss_R[part] > 0).any():
            chosen_R[next((row for row in part if responses[row] is not None), start)] = True
    return chosen_R
