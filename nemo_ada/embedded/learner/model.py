"""The Megatron-core model of a `PolicyShape`: GPTModel with the local layer spec, float32, on the CPU."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_ada.embedded.learner.shape import PolicyShape


def transformer_config(shape: PolicyShape, tensor_parallel: int, pipeline_parallel: int) -> TransformerConfig:
    """Megatron's settings for the shape: no dropout, no fusion, losses and gradients summed (never averaged) over
    micro-batches and data-parallel ranks, because the loss is already divided by the caller's denominator."""
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=tensor_parallel,
        pipeline_model_parallel_size=pipeline_parallel,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        variable_seq_lengths=pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall",  # no experts here, but the default refuses variable lengths
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )


def build_model(shape: PolicyShape, config: TransformerConfig) -> GPTModel:
    """This rank's share of the model, weights not yet set; needs Megatron's process groups."""
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
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
