"""Each hard constraint, broken once, is found under its key, and the message says what would work.

1. The valid recipe has no errors, also with FP8, experts and a pipeline.
2. Every mutation gives exactly the expected key at the expected level; the message names a remedy.
3. The table of shapes gives the TP, PP and FP8 sizes that were published for the models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_ada.check import gpu, precision
from nemo_ada.check.command import recipe as check
from nemo_ada.check.finding import Finding, divisors, exit_code
from nemo_ada.cluster.shapes import TABLE

sys.path.insert(0, str(Path(__file__).parent))
from recipes import EXPERTS, FP8_ROLLOUT, FP8_TRAINING, changed

LEARNER, VLLM = "policy.megatron_cfg", "policy.generation.vllm_cfg"
OPTIMIZER, CORRECTION = f"{LEARNER}.optimizer", "loss_fn.use_importance_sampling_correction"
TP, PP, CP = (f"{LEARNER}.{word}_parallel_size" for word in ("tensor_model", "pipeline_model", "context"))

STAGES = EXPERTS | {
    "policy.model_name": "Qwen/Qwen3-235B-A22B",
    "cluster.num_nodes": 16,
    TP: 2,
    PP: 8,
    CP: 2,
    "policy.make_sequence_length_divisible_by": 8,
    f"{LEARNER}.expert_model_parallel_size": 16,
    f"{VLLM}.tensor_parallel_size": 16,
}

# (what breaks, the change, the key that must be named, a part of the remedy)
MUTATIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("GPUs by layout", {"cluster.gpus_per_node": 6}, "cluster.num_nodes", "cluster.num_nodes=2"),
    (
        "GPUs by context parallelism",
        {CP: 3, "policy.make_sequence_length_divisible_by": 24},
        "cluster.num_nodes",
        "cluster.num_nodes=3, 6 or 9",
    ),
    (
        "feed-forward columns by TP",
        {"cluster.gpus_per_node": 7, TP: 7, "policy.make_sequence_length_divisible_by": 7},
        TP,
        "18944 feed-forward columns do not divide by TP 7; 1, 2 or 4 would work",
    ),
    ("heads by TP", {TP: 8, "policy.make_sequence_length_divisible_by": 8}, TP, "1, 2 or 4 would work"),
    ("layers by PP", {TP: 1, PP: 8, "policy.make_sequence_length_divisible_by": 1}, PP, "1, 2, 4, 7 or 14"),
    (
        "outer stages",
        {TP: 1, PP: 4, f"{LEARNER}.num_layers_in_first_pipeline_stage": 5},
        f"{LEARNER}.num_layers_in_first_pipeline_stage",
        "would work",
    ),
    (
        "outer stages of 94 layers",
        STAGES | {f"{LEARNER}.num_layers_in_{end}_pipeline_stage": 10 for end in ("first", "last")},
        f"{LEARNER}.num_layers_in_first_pipeline_stage",
        "outer stages of 11 or 14 layers would work",
    ),
    ("94 layers by PP", STAGES, PP, "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage"),
    ("TP accuracy", {"policy.logprob_batch_size": 2}, "policy.logprob_batch_size", "set logprob_batch_size=1"),
    (
        "one update per forced ratio",
        {"loss_fn.force_on_policy_ratio": True},
        "loss_fn.force_on_policy_ratio",
        "policy.train_global_batch_size=2048",
    ),
    (
        "packing and dynamic batching",
        {"policy.dynamic_batching.enabled": True},
        "policy.dynamic_batching.enabled",
        "set it to false",
    ),
    (
        "dynamic batching and PP",
        {"policy.dynamic_batching.enabled": True, "policy.sequence_packing.enabled": False, TP: 1, PP: 2},
        "policy.dynamic_batching.enabled",
        "policy.sequence_packing.enabled=true",
    ),
    (
        "CP without packing",
        {CP: 2, "policy.sequence_packing.enabled": False, "policy.make_sequence_length_divisible_by": 16},
        "policy.sequence_packing.enabled",
        "set it to true",
    ),
    (
        "length multiple, sequence parallel",
        {"policy.make_sequence_length_divisible_by": 2},
        "policy.make_sequence_length_divisible_by",
        "4 would work",
    ),
    ("length multiple, both", {CP: 2}, "policy.make_sequence_length_divisible_by", "16 would work"),
    (
        "length multiple, CP alone",
        {TP: 1, CP: 2, f"{LEARNER}.sequence_parallel": False, "policy.make_sequence_length_divisible_by": 2},
        "policy.make_sequence_length_divisible_by",
        "must be a multiple of 4 (2 * CP 2); 4 would work",
    ),
    (
        "rows by batch",
        {"policy.train_global_batch_size": 600},
        "policy.train_global_batch_size",
        "2048 would work",
    ),
    (
        "batch by replicas",
        {"policy.train_global_batch_size": 1},
        "policy.train_global_batch_size",
        "2048 would work",
    ),
    (
        "rows of a replica by micro-batch",
        {"policy.sequence_packing.enabled": False, "policy.train_micro_batch_size": 3, "policy.logprob_batch_size": 3},
        "policy.train_micro_batch_size",
        "1, 2, 4",
    ),
    (
        "positions",
        {"policy.max_total_sequence_length": 8192},
        "policy.max_total_sequence_length",
        "4096 would work",
    ),
    (
        "prompt and response",
        {"policy.generation.max_new_tokens": 2049},
        "policy.generation.max_new_tokens",
        "max_new_tokens=2048",
    ),
    ("vLLM's length", {f"{VLLM}.max_model_len": 2048}, f"{VLLM}.max_model_len", "3072 would work"),
    ("vLLM by heads", {f"{VLLM}.tensor_parallel_size": 8}, f"{VLLM}.tensor_parallel_size", "1, 2 or 4"),
    ("vLLM by GPUs", {f"{VLLM}.pipeline_parallel_size": 3}, f"{VLLM}.tensor_parallel_size", "do not divide"),
    (
        "vLLM pipeline without async",
        {f"{VLLM}.pipeline_parallel_size": 2, f"{VLLM}.async_engine": False},
        f"{VLLM}.async_engine",
        "async_engine: true",
    ),
    (
        "vLLM expert parallel",
        EXPERTS | {f"{VLLM}.expert_parallel_size": 4},
        f"{VLLM}.expert_parallel_size",
        "2 would work",
    ),
    ("chunked log-probs", {"policy.logprob_chunk_size": 1024}, "policy.logprob_chunk_size", "defer_fp32_logits=true"),
    (
        "reference pass with KL",
        {"loss_fn.reference_policy_kl_penalty": 0.01},
        "grpo.skip_reference_policy_logprobs_calculation",
        "set it to false",
    ),
    (
        "FP8 rollout blocks",
        FP8_ROLLOUT
        | {"policy.model_name": "Qwen/Qwen2.5-72B", f"{VLLM}.tensor_parallel_size": 2, "cluster.num_nodes": 8, PP: 4},
        f"{VLLM}.precision",
        "tensor_parallel_size=1 would work",
    ),
    (
        "FP8 rollout without correction",
        FP8_ROLLOUT | {CORRECTION: False},
        CORRECTION,
        "set it to true",
    ),
    ("FP8 format", FP8_TRAINING | {f"{LEARNER}.fp8_cfg.fp8": "hybrid"}, f"{LEARNER}.fp8_cfg.fp8", "'e4m3'"),
    (
        "FP8 recipe",
        FP8_TRAINING | {f"{LEARNER}.fp8_cfg.fp8_recipe": "tensorwise"},
        f"{LEARNER}.fp8_cfg.fp8_recipe",
        "'blockwise'",
    ),
    ("FP8 weights", FP8_TRAINING | {f"{LEARNER}.fp8_cfg.fp8_param": True}, f"{LEARNER}.fp8_cfg.fp8_param", "False"),
    (
        "FP8 and precision-aware optimizer",
        FP8_TRAINING | {f"{OPTIMIZER}.use_precision_aware_optimizer": True},
        f"{OPTIMIZER}.use_precision_aware_optimizer",
        "set it to false",
    ),
    (
        "FP8 scales",
        FP8_TRAINING | {f"{LEARNER}.env_vars": None},
        f"{LEARNER}.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES",
        'set it to "1"',
    ),
    (
        "precision-aware without the distributed optimizer",
        {f"{OPTIMIZER}.use_precision_aware_optimizer": True, f"{OPTIMIZER}.use_distributed_optimizer": False},
        f"{OPTIMIZER}.use_precision_aware_optimizer",
        "use_distributed_optimizer=true",
    ),
    ("precision", {f"{OPTIMIZER}.bf16": False}, f"{OPTIMIZER}.bf16", "agree"),
    ("router trained", EXPERTS | {f"{LEARNER}.freeze_moe_router": False}, f"{LEARNER}.freeze_moe_router", "True"),
    ("router precision", EXPERTS | {f"{LEARNER}.moe_router_dtype": "fp32"}, f"{LEARNER}.moe_router_dtype", "'fp64'"),
    (
        "balancing loss",
        EXPERTS | {f"{LEARNER}.moe_router_load_balancing_type": "aux_loss"},
        f"{LEARNER}.moe_router_load_balancing_type",
        "'none'",
    ),
    (
        "experts by GPUs",
        EXPERTS | {f"{LEARNER}.expert_model_parallel_size": 64},
        f"{LEARNER}.expert_model_parallel_size",
        "16 or 32 would work",
    ),
    (
        "experts by expert parallelism",
        EXPERTS
        | {
            "cluster.num_nodes": 3,
            "grpo.num_prompts_per_step": 510,
            "policy.train_global_batch_size": 2040,
            f"{LEARNER}.expert_model_parallel_size": 24,
        },
        f"{LEARNER}.expert_model_parallel_size",
        "128 experts do not divide by EP 24; 1, 2, 4, 8",
    ),
    (
        "experts of a dense model",
        {f"{LEARNER}.expert_model_parallel_size": 2},
        f"{LEARNER}.expert_model_parallel_size",
        "set it to 1",
    ),
    (
        "column",
        {"data.train.output_key": "answer"},
        "data.train.output_key",
        "problem, gt",
    ),
    (
        "prompt file",
        {"data.default.system_prompt_file": "no/such.txt"},
        "data.default.system_prompt_file",
        "absolute path",
    ),
    (
        "first waves",
        {"reinforce_ada": {"preset": "ada_seq_balance", "budget": {"max_samples": 2048}}},
        "reinforce_ada",
        "raise it to 4096",
    ),
    (
        "misspelled key of ours",
        {"reinforce_ada": {"presett": "ada_seq_balance"}},
        "reinforce_ada",
        "did you mean preset",
    ),
    ("asynchronous trainer", {"grpo.async_grpo": {"enabled": True}}, "reinforce_ada", "set it to false"),
    (
        "learner memory",
        {TP: 1, "policy.sequence_packing.train_mb_tokens": 65536, f"{LEARNER}.activation_checkpointing": False},
        "policy.train_micro_batch_size",
        "activation_checkpointing=true",
    ),
    (
        "no room for a response",
        {f"{VLLM}.gpu_memory_utilization": 0.2},
        f"{VLLM}.gpu_memory_utilization",
        "larger share",
    ),
    ("Megatron off", {f"{LEARNER}.enabled": False}, f"{LEARNER}.enabled", "set it to true"),
]


def errors(changes: dict[str, Any]) -> list[Finding]:
    return [finding for finding in check(changed(changes)) if finding.level == "error"]


@pytest.mark.parametrize(
    "changes",
    [{}, FP8_TRAINING, FP8_ROLLOUT, EXPERTS, {TP: 2, PP: 2}, {"loss_fn.force_on_policy_ratio": True,
     "policy.train_global_batch_size": 2048, "policy.logprob_batch_size": 2},
     STAGES | {f"{LEARNER}.num_layers_in_{end}_pipeline_stage": 11 for end in ("first", "last")}],
    ids=["bf16", "fp8 training", "fp8", "experts", "pipeline", "forced ratio", "outer stages"],
)  # fmt: skip
def test_a_valid_recipe_has_no_errors(changes: dict[str, Any]) -> None:
    assert errors(changes) == []


@pytest.mark.parametrize(("changes", "key", "remedy"), [m[1:] for m in MUTATIONS], ids=[m[0] for m in MUTATIONS])
def test_a_broken_constraint_is_found_under_its_key_with_a_remedy(
    changes: dict[str, Any], key: str, remedy: str
) -> None:
    found = errors(changes)
    assert {finding.key for finding in found} == {key}
    assert any(remedy in finding.message for finding in found), [finding.message for finding in found]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"policy.model_name": "Qwen/Qwen2.5-Math-1.5B", TP: 4}, TP),
        ({"grpo.skip_reference_policy_logprobs_calculation": False}, "grpo.skip_reference_policy_logprobs_calculation"),
        (FP8_TRAINING | {CORRECTION: False}, CORRECTION),
        (FP8_TRAINING | {"policy.sequence_packing.train_mb_tokens": 3100}, "policy.sequence_packing.train_mb_tokens"),
        ({"checkpointing.enabled": False}, "checkpointing.enabled"),
        ({"policy.model_name": "someone/unknown"}, "policy.model_name"),
        ({"grpo.adv_estimator.name": "grpo"}, "grpo.adv_estimator.name"),
        ({f"{VLLM}.gpu_memory_utilization": 0.26}, f"{VLLM}.gpu_memory_utilization"),
    ],
)
def test_what_may_work_is_a_warning(changes: dict[str, Any], key: str) -> None:
    found = check(changed(changes))
    assert [finding.level for finding in found if finding.key == key and finding.level != "ok"] == ["warning"]
    assert not [finding for finding in found if finding.level == "error"]


def test_tp_accuracy_can_be_waived_knowingly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRL_IGNORE_TP_ACCURACY_CHECK", "1")
    found = check(changed({"policy.logprob_batch_size": 2}))
    assert [finding.level for finding in found if finding.key == "policy.logprob_batch_size"] == ["warning"]


def test_the_fused_kernel_is_asked_for_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"{LEARNER}.gradient_accumulation_fusion"
    assert [finding.key for finding in errors({key: True})] == [key]
    monkeypatch.setattr(precision, "FUSED_KERNEL", "json")  # a module that can be imported
    assert errors({key: True}) == []


def test_positions_may_be_raised_by_an_override() -> None:
    longer = {
        "policy.max_total_sequence_length": 8192,
        "policy.hf_config_overrides": {"max_position_embeddings": 8192},
        f"{VLLM}.max_model_len": 8192,
    }
    assert errors(longer) == []


def test_an_unknown_model_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 6, '
        '"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 4096}'
    )
    assert {finding.key for finding in errors({"policy.model_name": str(tmp_path)})} == {TP}


def test_fp8_blocks_must_fit_the_key_value_width_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, '
        '"num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 4096}'
    )
    narrow = FP8_ROLLOUT | {"policy.model_name": str(tmp_path), f"{VLLM}.tensor_parallel_size": 4}
    found = errors(narrow)  # 4096 / 4 fits blocks of 128, 256 / 4 does not
    assert [finding.key for finding in found] == [f"{VLLM}.precision"]
    assert "tensor_parallel_size=1 or 2 would work" in found[0].message
    assert errors(narrow | {f"{VLLM}.tensor_parallel_size": 2}) == []


@pytest.mark.parametrize(("model", "tp", "padded"), [("Qwen/Qwen2.5-Math-7B", 4, 152064), ("Qwen/Qwen3-4B", 8, 152576)])
def test_the_vocabulary_is_padded_to_a_multiple_of_128_by_tp(model: str, tp: int, padded: int) -> None:
    assert TABLE[model].padded_vocab(tp) == padded
    assert padded % (128 * tp) == 0


@pytest.mark.parametrize(
    ("capability", "cuda", "said"),
    [((8, 0), "12.9", "need Hopper"), ((9, 0), "12.8", "12.9 or newer"), ((9, 0), "13.0", "Transformer Engine")],
)
def test_fp8_needs_hopper_a_new_cuda_and_transformer_engine(
    capability: tuple[int, int], cuda: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_capability=lambda index: capability), version=SimpleNamespace(cuda=cuda)
    )
    found = list(gpu._fp8(torch))
    assert [finding.level for finding in found] == ["warning"]
    assert said in found[0].message
    used = gpu.for_recipe(found, fp8=True)
    assert [finding.level for finding in used] == ["error"]
    assert "without -fp8" in used[0].message
    assert gpu.for_recipe(found, fp8=False) == found


# From the published sizes: model, TP, even PP up to 8, FP8 rollout TP.
SIZES = {
    "Qwen/Qwen2.5-Math-1.5B": ([1, 2], [1, 2, 4], [1, 2]),
    "Qwen/Qwen2.5-Math-7B": ([1, 2, 4], [1, 2, 4], [1, 2, 4]),
    "Qwen/Qwen3-4B-Instruct-2507": ([1, 2, 4, 8], [1, 2, 4], [1, 2, 4]),
    "meta-llama/Llama-3.2-3B-Instruct": ([1, 2, 4, 8], [1, 2, 4], [1, 2, 4, 8]),
    "meta-llama/Llama-3.1-8B-Instruct": ([1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    "Qwen/Qwen2.5-32B": ([1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    "meta-llama/Llama-3.3-70B-Instruct": ([1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    "Qwen/Qwen2.5-72B": ([1, 2, 4, 8], [1, 2, 4, 8], [1]),
    "Qwen/Qwen3-30B-A3B": ([1, 2, 4], [1, 2, 4, 8], [1, 2]),
}
BILLIONS = {
    "Qwen/Qwen2.5-Math-1.5B": 1.54, "Qwen/Qwen2.5-Math-7B": 7.62, "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21, "meta-llama/Llama-3.1-8B-Instruct": 8.03, "Qwen/Qwen2.5-32B": 32.8,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6, "Qwen/Qwen2.5-72B": 72.7, "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen3-235B-A22B": 235.1,
}  # fmt: skip


@pytest.mark.parametrize("model", SIZES)
def test_parallel_sizes_are_the_published_ones(model: str) -> None:
    shape, (tp, pp, fp8) = TABLE[model], SIZES[model]
    powers = (1, 2, 4, 8)
    assert [n for n in divisors(shape.heads, shape.kv) if n in powers] == tp
    assert [n for n in divisors(shape.layers) if n in powers] == pp
    assert [n for n in precision.rollout_parallel_sizes(shape, 8) if n in tp] == fp8


@pytest.mark.parametrize("model", BILLIONS)
def test_parameters_are_the_published_count(model: str) -> None:
    assert TABLE[model].parameters / 1e9 == pytest.approx(BILLIONS[model], rel=0.005)
