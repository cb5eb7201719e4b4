"""What surrounds a learner's model in Megatron-core: process groups, the DDP wrapper, the optimizer, the schedule."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_ada.embedded.learner import shim
from nemo_ada.embedded.learner.settings import LearnerConfig

_FOREVER = 2**31 - 1
_LATER_S = 30.0


def join(config: LearnerConfig, rank: int, store: dist.Store) -> None:
    """Join the world over gloo and make Megatron's process groups (collective); installs the device shim.

    A collective's deadline comes _LATER_S after the driver's `call_timeout_s`, so that a rank that stalls is noticed as
    one, and not as the failure of those that wait for it.
    """
    torch.set_num_threads(1)
    seconds = config.call_timeout_s + _LATER_S
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=config.world_size, timeout=timeout)
    shim.install()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel,
        pipeline_model_parallel_size=config.pipeline_parallel,
        distributed_timeout_minutes=max(1, math.ceil(seconds / 60)),
        create_gloo_process_groups=False,
    )
    torch.manual_seed(config.seed)
    # Without dropout the model draws nothing, so Megatron's per-rank generators (on the GPU) can stay empty.
    tensor_parallel.model_parallel_cuda_manual_seed(config.seed, inference_rng_tracker=True)


def leave() -> None:
    """Undo `join` (collective)."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def wrap(module: torch.nn.Module, config: TransformerConfig) -> DistributedDataParallel:
    """Megatron's DDP around this rank's module; gradients are summed over data-parallel ranks."""
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), module)
    config.finalize_model_grads_func = _sum_model_grads
    config.no_sync_func = model.no_sync
    return model


def _sum_model_grads(model: list[torch.nn.Module], _num_tokens: Any, **groups: Any) -> None:
    """Megatron's reduction of gradients over ranks, without its division by a token count."""
    finalize_model_grads(model, None, **groups)


def build_optimizer(config: LearnerConfig, model: DistributedDataParallel) -> MegatronOptimizer:
    """Adam with decoupled weight decay (none on biases and norms) and clipping by the norm over all ranks.

    The distributed optimizer is off: on this stack its checkpoints do not load.
    """
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        min_lr=0.0,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        clip_grad=config.max_grad_norm,
        use_distributed_optimizer=False,
    )
    return get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)


def build_schedule(config: LearnerConfig, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    """Linear warm-up, then constant or a linear fall to 0. It is stepped before each update, so that the first update
    has lr / warmup_steps and not Megatron's 0."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.lr,
        min_lr=0.0,
        lr_warmup_steps=config.warmup_steps,
        lr_decay_steps=config.decay_steps or _FOREVER,
        lr_decay_style="linear" if config.decay_steps else "constant",
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )
