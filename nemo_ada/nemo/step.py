"""From a step's rows to the batch that grpo_train goes on with. R rows, in the order and number of its input.

Columns that the hooks add (1-D tensors, length R; they survive to the advantage estimator and go no further):

    ada_uid        int64    identity of the row's prompt occurrence over the run: groups are formed by it
    ada_advantage  float32  0.0 for placeholder rows
    ada_weight     float32  0.0 for placeholder rows
    ada_reward     float32  the reward that advantages were computed on; must equal `total_reward`
    ada_baseline   float32  mean reward of the row's pool
    ada_std        float32  standard deviation (population) of the pool's raw rewards; 0 = no signal
    ada_saved      int64    tokens of the row that left the loss because its advantage is zero
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_ada.core.learning.rows import StepRows
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.nemo.call import Prompts
from nemo_ada.nemo.response import Message, Response, placeholder
from nemo_ada.nemo.settings import NemoSettings

FloatArray = NDArray[np.float64]
COLUMNS = ("ada_uid", "ada_advantage", "ada_weight", "ada_reward", "ada_baseline", "ada_std", "ada_saved")
UID_SHIFT = 24  # a draw number above, a position in its batch below: at most 2**24 prompts


class Responses(Protocol):
    """Where the kept responses are."""

    def response(self, row: int) -> Response: ...


@dataclass(frozen=True, slots=True)
class PoolMoments:
    """Mean reward and standard deviation of the raw reward per prompt; 0 for an empty pool."""

    mean_P: FloatArray
    std_P: FloatArray


def pool_moments(result: SamplingResult, raw_reward_N: FloatArray) -> PoolMoments:
    """Moments of the pools; result.reward_N are the rewards of the update, raw_reward_N those of the environment."""
    prompts = len(result.uid_P)
    size_P = np.maximum(np.bincount(result.prompt_N, minlength=prompts), 1)
    mean_P = np.bincount(result.prompt_N, result.reward_N, prompts) / size_P
    raw_mean_P = np.bincount(result.prompt_N, raw_reward_N, prompts) / size_P
    squares_P = np.bincount(result.prompt_N, (raw_reward_N - raw_mean_P[result.prompt_N]) ** 2, prompts)
    return PoolMoments(mean_P, np.sqrt(squares_P / size_P))


def build_batch(
    repeated_batch: Any,
    prompts: Prompts,
    source: Responses,
    result: SamplingResult,
    rows: StepRows,
    moments: PoolMoments,
    settings: NemoSettings,
    draw: int,
) -> tuple[Any, dict[str, float]]:
    """The batch of this step (same type as repeated_batch), and metrics of what the update will not compute."""
    batch = prompts.rows(rows.prompt_R.tolist())
    advantage_R = rows.advantage_R.astype(np.float32)
    placeholder_R = _placeholders(rows, settings)
    weight_R = (rows.weight_R > 0).astype(np.float32)
    reward_R = (
        np.where(rows.pool_R >= 0, result.reward_N[rows.pool_R], 0.0)
        if len(result.reward_N)
        else np.zeros(len(placeholder_R))
    )
    logs: list[list[Message]] = []
    lengths = batch["length"].clone()
    truncated_R = np.zeros(len(rows.response_id_R), np.bool_)
    tokens_R = np.zeros(len(rows.response_id_R), np.int64)
    saved_R = np.zeros(len(rows.response_id_R), np.int64)
    prompt_logs = prompts.logs
    input_weight_R = batch["loss_multiplier"].to(torch.float32).numpy()
    for r, row in enumerate(rows.response_id_R.tolist()):
        prompt_log = prompt_logs[rows.prompt_R[r]]
        response = source.response(row) if row >= 0 else None
        if response is None or placeholder_R[r]:
            logs.append(placeholder(prompt_log, response.generated if response else ()))
            lengths[r] = 1
        else:
            logs.append(response.message_log)
            truncated_R[r] = response.truncated
        if response is not None and weight_R[r] > 0 and input_weight_R[r] > 0:
            masked = settings.overlong and response.truncated
            tokens_R[r] = 0 if masked else response.tokens
            saved_R[r] = tokens_R[r] if placeholder_R[r] else 0
    loss_R = np.where(placeholder_R, 0.0, weight_R)
    kept_R = _one_per_update(loss_R * input_weight_R, settings.global_batch)
    loss_R[kept_R] = 1.0
    advantage_R[kept_R] = 0.0
    batch["message_log"] = logs
    batch["length"] = lengths
    batch["truncated"] = torch.from_numpy(truncated_R)
    batch["loss_multiplier"] = torch.where(
        torch.from_numpy(kept_R), torch.ones_like(batch["loss_multiplier"]), batch["loss_multiplier"]
    ) * torch.from_numpy(loss_R).to(batch["loss_multiplier"].dtype)
    batch["total_reward"] = torch.from_numpy(reward_R.astype(np.float32))
    batch["ada_uid"] = torch.from_numpy((draw << UID_SHIFT) + rows.prompt_R.astype(np.int64))
    batch["ada_advantage"] = torch.from_numpy(advantage_R)
    batch["ada_weight"] = torch.from_numpy(weight_R)
    batch["ada_reward"] = batch["total_reward"].clone()
    batch["ada_baseline"] = torch.from_numpy(moments.mean_P[rows.prompt_R].astype(np.float32))
    batch["ada_std"] = torch.from_numpy(moments.std_P[rows.prompt_R].astype(np.float32))
    batch["ada_saved"] = torch.from_numpy(saved_R)
    metrics = {
        "tokens_trained": float(tokens_R.sum() - saved_R.sum()),
        "tokens_skipped": float(saved_R.sum()),
        "rows_skipped": float((placeholder_R & (weight_R > 0)).sum()),
    }
    return batch, metrics


def _placeholders(rows: StepRows, settings: NemoSettings) -> NDArray[np.bool_]:
    """Rows that become placeholders: repeats always, rows without advantage where the loss has no gradient for them."""
    placeholder_R = rows.weight_R <= 0
    if settings.placeholder_rows:
        placeholder_R = placeholder_R | (rows.advantage_R == 0.0)
    return np.asarray(placeholder_R, np.bool_)


def _one_per_update(loss_R: FloatArray, global_batch: int) -> NDArray[np.bool_]:
    """The first row of every optimizer step that would have none: NeMo-RL's metrics need a valid row.

    It counts in the loss with the advantage 0, so it changes nothing.
    """
    chosen_R = np.zeros(len(loss_R), np.bool_)
    for start in range(0, len(loss_R), global_batch):
        if not (loss_R[start : start + global_batch] > 0).any():
            chosen_R[start] = True
    return chosen_R
