"""Build a learner's parts with Megatron-core: process groups, model, DDP wrapper, optimizer, learning-rate schedule."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_ada.cpu.learner import shim
from nemo_ada.cpu.learner.settings import LearnerConfig

_FOREVER = 2**31 - 1
_LATER_S = 30.0


def join(config: LearnerConfig, rank: int, store: dist.Store) -> None:
    """Join the world over gloo, install the device shim and make Megatron's process groups (collective).

    A collective waits _LATER_S longer than the driver's `call_timeout_s`. So the driver reports the rank that stalls,
    and not the ranks that wait for it.
    """
    torch.set_num_threads(config.threads)
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
    # Without dropout the model draws nothing, so Megatron's generators, one per GPU, can stay empty.
    tensor_parallel.model_parallel_cuda_manual_seed(config.seed, inference_rng_tracker=True)


def leave() -> None:
    """Undo `join` (collective)."""
    RotaryEmbedding.forward.cache_clear()  # the cache refers to modules, and these refer to process groups
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def make_transformer_config(config: LearnerConfig) -> TransformerConfig:
    """Megatron's settings: without dropout and fusions, and with sums of losses and gradients instead of averages.

    The loss is already divided by the caller's denominator, so micro-batches and data-parallel ranks add up.
    """
    shape = config.shape
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=config.tensor_parallel,
        pipeline_model_parallel_size=config.pipeline_parallel,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        variable_seq_lengths=config.pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall",  # there are no experts, but the default refuses variable lengths
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )


class TreeAttention(torch.nn.Module):
    """Core attention for packed micro-batches, in which each token attends to the tokens of the mask.

    On a CPU, Megatron's own has the causal mask only. The constructor takes the arguments that Megatron gives to core
    attentions.
    """

    def __init__(self, config: TransformerConfig, **_for_other_attentions: Any) -> None:
        super().__init__()
        self._repeats = config.num_attention_heads // config.num_query_groups

    def forward(
        self,
        query_TBHD: torch.Tensor,
        key_TBGD: torch.Tensor,
        value_TBGD: torch.Tensor,
        attention_mask: torch.Tensor,
        **_for_other_attentions: Any,
    ) -> torch.Tensor:
        """Return the attention's output [T, B, H * D], for T tokens, H heads of width D and G query groups.

        `attention_mask` is [T, T], and true where a token (row) attends to another (column).
        """
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query_TBHD, key_TBGD, value_TBGD))
        key, value = (part.repeat_interleave(self._repeats, dim=1) for part in (key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def build_model(config: LearnerConfig, transformer: TransformerConfig) -> GPTModel:
    """This rank's share of the model, without its weights. It needs Megatron's process groups."""
    shape = config.shape
    layers = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm)
    if config.packed_tokens is not None:
        layers.submodules.self_attention.submodules.core_attention = TreeAttention
    return GPTModel(
        config=transformer,
        transformer_layer_spec=layers,
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="rope",
        rotary_percent=1.0,
        rotary_base=shape.rope_theta,
    )


def wrap(module: torch.nn.Module, config: TransformerConfig) -> DistributedDataParallel:
    """Megatron's DDP around this rank's module. It sums gradients over data-parallel ranks."""
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), module)
    config.finalize_model_grads_func = _sum_model_grads
    config.no_sync_func = model.no_sync
    return model


def _sum_model_grads(model: list[torch.nn.Module], _num_tokens: Any, **groups: Any) -> None:
    """Megatron's reduction of gradients over ranks, without its division by a token count."""
    finalize_model_grads(model, None, **groups)


def build_optimizer(config: LearnerConfig, model: DistributedDataParallel) -> MegatronOptimizer:
    """Adam with clipping by the norm over all ranks and decoupled weight decay, except on biases and norms.

    The distributed optimizer is off, because its checkpoints do not load on this stack.
    """
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.optimizer.lr,
        min_lr=0.0,
        weight_decay=config.optimizer.weight_decay,
        adam_beta1=config.optimizer.adam_beta1,
        adam_beta2=config.optimizer.adam_beta2,
        adam_eps=config.optimizer.adam_eps,
        clip_grad=config.max_grad_norm,
        use_distributed_optimizer=False,
    )
    return get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)


def build_schedule(config: LearnerConfig, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    """Return a schedule with linear warm-up, and then a constant rate or a linear fall to 0.

    Step it before each update. Then the first update has lr / warmup_updates, where Megatron's own order would give 0.
    """
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.optimizer.lr,
        min_lr=0.0,
        lr_warmup_steps=config.warmup_updates,
        lr_decay_steps=config.decay_updates or _FOREVER,
        lr_decay_style="linear" if config.decay_updates else "constant",
        start_wd=config.optimizer.weight_decay,
        end_wd=config.optimizer.weight_decay,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )
