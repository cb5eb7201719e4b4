"""Training behind NeMo-RL's ``ColocatablePolicyInterface``: in process, on the CPU, with NeMo-RL's own loss.

It follows what NeMo-RL's DTensor worker does with a batch (v0.7.0, ``dtensor_policy_worker_v2.train``): shards per
data-parallel rank, one optimizer step per global batch, valid sequences and tokens counted over the global batch, and
metrics only from microbatches with at least one valid sequence.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from nemo_rl.algorithms.loss.interfaces import LossFunction
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.interfaces import ColocatablePolicyInterface
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from nemo_support.tiny_generation import WeightChannel
from nemo_support.tiny_model import next_token_logprobs

WEIGHTS, OPTIMIZER = "model.pt", "optimizer.pt"


class TinyPolicy(ColocatablePolicyInterface):
    """See the module. ``batches`` keeps a copy of every batch that it was trained on, column by column."""

    def __init__(
        self,
        cfg: dict[str, Any],
        model: Qwen2ForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        channel: WeightChannel,
        *,
        weights_path: Path | None = None,
        optimizer_path: Path | None = None,
        data_parallel: int = 2,
        before_train: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.cfg = cfg
        self.model = model
        self.batches: list[dict[str, torch.Tensor]] = []
        self.logprob_lengths: list[torch.Tensor] = []
        self._reference = copy.deepcopy(model).eval()
        self._tokenizer = tokenizer
        self._channel = channel
        self._data_parallel = data_parallel
        self._before_train = before_train
        self._optimizer = torch.optim.AdamW(model.parameters(), **cfg["optimizer"]["kwargs"])
        if weights_path is not None:
            model.load_state_dict(torch.load(weights_path / WEIGHTS))
        if optimizer_path is not None:
            self._optimizer.load_state_dict(torch.load(optimizer_path / OPTIMIZER))

    @property
    def sharding_annotations(self) -> Any:
        """Asynchronous training asks it for the data-parallel size."""
        return SimpleNamespace(get_axis_size=lambda axis: self._data_parallel)

    # -- log-probabilities -------------------------------------------------------------------------------------------

    def get_logprobs(self, data: BatchedDataDict, timer: Any = None) -> BatchedDataDict:
        self.logprob_lengths.append(data["input_lengths"].clone())
        return BatchedDataDict({"logprobs": self._logprobs(self.model, data)})

    def get_reference_policy_logprobs(
        self, data: BatchedDataDict, micro_batch_size: int | None = None, timer: Any = None
    ) -> BatchedDataDict:
        return BatchedDataDict({"reference_logprobs": self._logprobs(self._reference, data)})

    @torch.no_grad()
    def _logprobs(self, model: Qwen2ForCausalLM, data: BatchedDataDict) -> torch.Tensor:
        """[R, T] with 0 in front: column t is the log-probability of token t."""
        rows = [
            next_token_logprobs(model, part["input_ids"])
            for part in data.make_microbatch_iterator(self.cfg["train_micro_batch_size"])
        ]
        return torch.nn.functional.pad(torch.cat(rows), (1, 0))

    def get_topk_logits(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("GRPO on this policy does not ask for it")

    calibrate_qkv_fp8_scales = get_topk_logits

    # -- training ----------------------------------------------------------------------------------------------------

    def train(
        self,
        data: BatchedDataDict,
        loss_fn: LossFunction,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Any = None,
        check_dim_skip_keys: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        self._before_train(len(self.batches))
        self.batches.append({name: column.clone() for name, column in data.items() if torch.is_tensor(column)})
        global_size = gbs or self.cfg["train_global_batch_size"]
        micro_size = mbs or self.cfg["train_micro_batch_size"]
        local_size = global_size // self._data_parallel
        shards = data.shard_by_batch_size(self._data_parallel, batch_size=global_size)
        losses: list[float] = []
        metrics: dict[str, list[float]] = defaultdict(list)
        grad_norm = torch.tensor(0.0)
        for index in range(data.size // global_size):
            parts = [shard.get_batch(batch_idx=index, batch_size=local_size) for shard in shards]
            valid_rows = torch.stack([part["sample_mask"].sum() for part in parts]).sum()
            valid_tokens = torch.stack(
                [(part["token_mask"][:, 1:] * part["sample_mask"].unsqueeze(-1)).sum() for part in parts]
            ).sum()
            self._optimizer.zero_grad()
            total = 0.0
            for microbatch in (micro for part in parts for micro in part.make_microbatch_iterator(micro_size)):
                loss, numbers = loss_fn(
                    next_token_logprobs=next_token_logprobs(self.model, microbatch["input_ids"]),
                    data=microbatch,
                    global_valid_seqs=valid_rows,
                    global_valid_toks=valid_tokens,
                )
                if not eval_mode:
                    loss.backward()
                if numbers["num_valid_samples"] > 0:
                    total += float(loss.detach())
                    numbers |= {
                        "lr": self._optimizer.param_groups[0]["lr"],
                        "global_valid_seqs": valid_rows.item(),
                        "global_valid_toks": valid_tokens.item(),
                    }
                    for name, number in numbers.items():
                        metrics[name].append(number)
            if not eval_mode:
                grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg["max_grad_norm"])
                self._optimizer.step()
            losses.append(total)
        self._optimizer.zero_grad()
        return {"loss": torch.tensor(losses), "grad_norm": grad_norm.detach(), "all_mb_metrics": dict(metrics)}

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> None:
        self.model.train()

    def finish_training(self, *args: Any, **kwargs: Any) -> None:
        self.model.eval()

    prepare_for_lp_inference = finish_training

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: dict[str, Any] | None = None,
    ) -> None:
        Path(weights_path).mkdir(parents=True)
        torch.save(self.model.state_dict(), Path(weights_path) / WEIGHTS)
        if optimizer_path is not None:
            Path(optimizer_path).mkdir(parents=True)
            torch.save(self._optimizer.state_dict(), Path(optimizer_path) / OPTIMIZER)
        if tokenizer_path is not None:
            self._tokenizer.save_pretrained(tokenizer_path)

    def finalize_async_save(self) -> None:
        """Versions after v0.7 ask for it before they rename a checkpoint; nothing here is written in the background."""

    def shutdown(self) -> bool:
        return True

    # -- weights to the engine ---------------------------------------------------------------------------------------

    def init_collective(self, ip: str, port: int, world_size: int, *, train_world_size: int) -> list[ray.ObjectRef]:
        return []

    def prepare_refit_info(self) -> dict[str, Any] | None:
        return None

    def offload_before_refit(self) -> None:
        """Nothing to move on a CPU."""

    offload_after_refit = offload_before_refit

    def get_free_memory_bytes(self) -> int:
        return 2**30

    def stream_weights_via_ipc_zmq(self, *args: Any, **kwargs: Any) -> list[ray.ObjectRef]:
        self._channel.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return [ray.put(True)]

    broadcast_weights_for_collective = stream_weights_via_ipc_zmq
