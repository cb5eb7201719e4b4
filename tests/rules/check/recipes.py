"""A recipe that every check accepts, with the keys that a real one resolves to; tests break one at a time."""

import copy

from nemo_ada.rules.facts.models import TABLE
from nemo_ada.rules.facts.nemo_config import NemoConfig

VALID = {
    "backend": "nemo_rl",
    "reinforce_ada": {"preset": "ada_seq_balance"},
    "cluster": {"num_nodes": 1, "gpus_per_node": 8},
    "grpo": {
        "num_prompts_per_step": 512,
        "num_generations_per_prompt": 4,
        "skip_reference_policy_logprobs_calculation": True,
        "adv_estimator": {"name": "grpo"},
        "seed": 1,
    },
    "loss_fn": {
        "force_on_policy_ratio": False,
        "reference_policy_kl_penalty": 0.0,
        "use_importance_sampling_correction": True,
        "token_level_loss": True,
    },
    "checkpointing": {"enabled": True, "checkpoint_dir": "runs/x/checkpoints", "keep_top_k": 3, "save_optimizer": True},
    "policy": {
        "model_name": "Qwen/Qwen2.5-Math-7B",
        "precision": "bfloat16",
        "train_global_batch_size": 512,
        "train_micro_batch_size": 1,
        "logprob_batch_size": 1,
        "logprob_chunk_size": None,
        "max_total_sequence_length": 3072,
        "make_sequence_length_divisible_by": 4,
        "sequence_packing": {"enabled": True, "train_mb_tokens": 3072},
        "dynamic_batching": {"enabled": False, "train_mb_tokens": 3072},
        "hf_config_overrides": {},
        "megatron_cfg": {
            "enabled": True,
            "tensor_model_parallel_size": 4,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "expert_tensor_parallel_size": 1,
            "sequence_parallel": True,
            "activation_checkpointing": True,
            "recompute_granularity": "full",
            "defer_fp32_logits": False,
            "gradient_accumulation_fusion": False,
            "freeze_moe_router": True,
            "moe_router_dtype": "fp64",
            "moe_router_load_balancing_type": "none",
            "env_vars": {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"},
            "fp8_cfg": {"enabled": False, "fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param": False},
            "optimizer": {
                "bf16": True,
                "use_distributed_optimizer": True,
                "use_precision_aware_optimizer": False,
                "optimizer_cpu_offload": False,
            },
            "distributed_data_parallel_config": {"grad_reduce_in_fp32": False},
        },
        "generation": {
            "backend": "vllm",
            "max_new_tokens": 2048,
            "vllm_kwargs": {"max_num_seqs": 1024},
            "vllm_cfg": {
                "async_engine": True,
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "expert_parallel_size": 1,
                "gpu_memory_utilization": 0.6,
                "max_model_len": 3072,
                "precision": "bfloat16",
                "kv_cache_dtype": "auto",
            },
        },
    },
    "data": {
        "max_input_seq_length": 1024,
        "train": {"data_path": "RLHFlow/reinforce_ada_easy_prompt", "input_key": "problem", "output_key": "gt"},
    },
}

FP8_TRAINING = {"policy.megatron_cfg.fp8_cfg.enabled": True}
FP8_ROLLOUT = {"policy.generation.vllm_cfg.precision": "fp8", **FP8_TRAINING}
EXPERTS = {
    "policy.model_name": "Qwen/Qwen3-30B-A3B",
    "cluster.num_nodes": 4,
    "policy.megatron_cfg.expert_model_parallel_size": 8,
    "policy.generation.vllm_cfg.tensor_parallel_size": 2,
}


def changed(changes):
    """VALID with dotted keys set."""
    config = copy.deepcopy(VALID)
    for dotted, value in changes.items():
        node = config
        *parents, leaf = dotted.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = value
    return config


def read(changes):
    """The facts of a changed recipe."""
    recipe = NemoConfig.of(changed(changes))
    return recipe, TABLE[recipe.model_name]


_TP, _PP, _EP = (f"policy.megatron_cfg.{word}_model_parallel_size" for word in ("tensor", "pipeline", "expert"))
LAYOUTS = {
    "1.5B TP1, tied": {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B", _TP: 1},
    "7B TP4": {},
    "8B TP1 PP2": {"policy.model_name": "meta-llama/Llama-3.1-8B-Instruct", _TP: 1, _PP: 2},
    "32B TP4 PP4": {"policy.model_name": "Qwen/Qwen2.5-32B", "cluster.num_nodes": 4, _PP: 4},
    "70B TP4 PP4": {"policy.model_name": "meta-llama/Llama-3.3-70B-Instruct", "cluster.num_nodes": 8, _PP: 4},
    "72B TP4 PP8": {"policy.model_name": "Qwen/Qwen2.5-72B", "cluster.num_nodes": 8, _PP: 8},
    "30B-A3B EP8": {"policy.model_name": "Qwen/Qwen3-30B-A3B", "cluster.num_nodes": 4, _TP: 1, _EP: 8},
}
