"""Ways to break a config: each is refused under its key, and the message says what would work.

1. The valid config has no errors, also with FP8, experts and a pipeline.
2. Every entry of BREAKAGES gives errors of exactly its key; the message names a remedy.
3. The table of shapes gives the TP, PP and FP8 sizes that were published for the models.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_ada.check import gpu, precision
from nemo_ada.check.bounds import BOUNDS
from nemo_ada.check.capacity import checkpoint_disk
from nemo_ada.check.command import recipe as check
from nemo_ada.check.data import PUBLISHED
from nemo_ada.check.finding import Finding, divisors, exit_code
from nemo_ada.check.names import key_names
from nemo_ada.check.site import site as site_findings
from nemo_ada.cluster import hub
from nemo_ada.cluster.config import Values
from nemo_ada.cluster.memory import checkpoint_bytes
from nemo_ada.cluster.shapes import TABLE

sys.path.insert(0, str(Path(__file__).parent))
from recipes import EXPERTS, FP8_ROLLOUT, FP8_TRAINING, changed, read

LEARNER, VLLM = "policy.megatron_cfg", "policy.generation.vllm_cfg"
OPTIMIZER, CORRECTION = f"{LEARNER}.optimizer", "loss_fn.use_importance_sampling_correction"
KWARGS, SHARE = "policy.generation.vllm_kwargs", f"{VLLM}.gpu_memory_utilization"
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

SMALL = (
    '{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 6, '
    '"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 4096}'
)

# (what breaks, the change, the key that must be named, a part of the remedy)
BREAKAGES: list[tuple[str, dict[str, Any], str, str]] = [
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
        "experts by expert tensor parallelism",
        EXPERTS | {f"{LEARNER}.expert_tensor_parallel_size": 8},
        f"{LEARNER}.expert_model_parallel_size",
        "do not divide by EP 8 * expert TP 8",
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
    ("key-value heads by TP", {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B"}, TP, "1 or 2 would work"),
    (
        "reference pass without KL",
        {"grpo.skip_reference_policy_logprobs_calculation": False},
        "grpo.skip_reference_policy_logprobs_calculation",
        "set it to true",
    ),
    ("FP8 training without correction", FP8_TRAINING | {CORRECTION: False}, CORRECTION, "set it to true"),
    ("no checkpoints", {"checkpointing.enabled": False}, "checkpointing.enabled", "set it to true"),
    # numbers
    ("share of 2", {SHARE: 2}, SHARE, "must be a number above 0, at most 0.92; 0.8 would work"),
    ("share of .95", {SHARE: 0.95}, SHARE, "0.8 would work"),
    ("temperature", {"policy.generation.temperature": -1}, "policy.generation.temperature", "above 0; 1.0 would work"),
    ("no temperature", {"policy.generation.temperature": math.nan}, "policy.generation.temperature", "1.0 would work"),
    ("top_p", {"policy.generation.top_p": 1.5}, "policy.generation.top_p", "at most 1"),
    ("learning rate of 1", {f"{OPTIMIZER}.lr": 1}, f"{OPTIMIZER}.lr", "at most 0.001; 1.0e-6 would work"),
    ("learning rate in words", {f"{OPTIMIZER}.lr": "fast"}, f"{OPTIMIZER}.lr", "1.0e-6 would work"),
    ("steps", {"grpo.max_num_steps": -1}, "grpo.max_num_steps", "a whole number of 1 or more; 400 would work"),
    ("steps that are no number", {"grpo.max_num_steps": True}, "grpo.max_num_steps", "400 would work"),
    ("validation period", {"grpo.val_period": -5}, "grpo.val_period", "0 or more"),
    ("save period", {"checkpointing.save_period": 0}, "checkpointing.save_period", "50 would work"),
    ("no run folder", {"run_dir": "  "}, "run_dir", "runs/NAME would work"),
    (
        "a cap below one response",
        {"reinforce_ada": {"preset": "ada_seq_balance", "budget": {"max_seconds": 1}}},
        "reinforce_ada.budget.max_seconds",
        "`nemo-ada plan CONFIG`",
    ),
    (
        "fewer sequences than the cache holds",
        {f"{KWARGS}.max_num_seqs": 128},
        f"{KWARGS}.max_num_seqs",
        f"{KWARGS}.max_num_seqs=512 would work",
    ),
    # names
    ("section", {"gpro": {"max_num_steps": 3}}, "gpro", "did you mean grpo?"),
    ("key", {"grpo.batch_multiplyer": 2}, "grpo.batch_multiplyer", "did you mean grpo.batch_multiplier?"),
    ("section of a key", {"grpo.max_new_tokens": 5}, "grpo.max_new_tokens", "policy.generation.max_new_tokens?"),
    ("TP's name", {f"{LEARNER}.tensor_parallel_size": 2}, f"{LEARNER}.tensor_parallel_size", TP),
    ("unknown key", {"cluster.colour": "red"}, "cluster.colour", "remove it"),
    ("vLLM's argument", {f"{KWARGS}.max_num_seq": 9}, f"{KWARGS}.max_num_seq", f"did you mean {KWARGS}.max_num_seqs?"),
    # the site
    ("model", {"policy.model_name": "Qwen/Qwen2.5-Math-7BB"}, "policy.model_name", "nemo-ada prepare CONFIG"),
    ("half a model", {"policy.model_name": "half/model", TP: 2}, "policy.model_name", "lacks model.safetensors"),
    ("tokenizer", {"policy.tokenizer.name": "Qwen/Qwen2"}, "policy.tokenizer.name", "nemo-ada prepare CONFIG"),
    ("tokenizer's folder", {"policy.tokenizer.name": "{tmp}"}, "policy.tokenizer.name", "no tokenizer.json"),
    (
        "data set of the hub",
        {"data.train.data_path": "RLHFlow/reinforce_ada_esy_prompt"},
        "data.train.data_path",
        "nemo-ada prepare CONFIG",
    ),
    ("Parquet file", {"data.train.data_path": "{tmp}/no.parquet"}, "data.train.data_path", "is not there; name a file"),
    ("no validation set", {"grpo.val_period": 5}, "data.validation", "dataset_name: AIME2024 would work"),
    (
        "validation set",
        {"grpo.val_period": 5, "data.validation.dataset_name": "AIME24"},
        "data.validation.dataset_name",
        "AIME2024",
    ),
    (
        "validation set not prepared",
        {"grpo.val_period": 5, "data.validation.dataset_name": "AIME2026"},
        "data.validation.dataset_name",
        "nemo-ada prepare CONFIG",
    ),
    (
        "metric without validation",
        {"checkpointing.metric_name": "val:accuracy"},
        "checkpointing.metric_name",
        "set grpo.val_period",
    ),
    ("environment", {"data.default.env_name": "mat"}, "data.default.env_name", "ada_math or math would work"),
    ("environment's section", {"data.default.env_name": "math"}, "data.default.env_name", "add it"),
    ("run folder", {"run_dir": "{tmp}/file/run"}, "run_dir", "set RUN_ROOT"),
    (
        "checkpoint folder",
        {"checkpointing.checkpoint_dir": "/proc/x", "checkpointing.keep_top_k": 1},
        "checkpointing.checkpoint_dir",
        "set RUN_ROOT",
    ),
    (
        "disk",
        {"checkpointing.checkpoint_dir": "{tmp}", "checkpointing.keep_top_k": 10**6},
        "checkpointing.checkpoint_dir",
        "keep fewer",
    ),
    (
        "vLLM without GPUs",
        {"policy.generation.colocated": {"enabled": False}},
        "policy.generation.colocated.resources.gpus_per_node",
        "set enabled to true",
    ),
    ("W&B without a key", {"logger.wandb_enabled": True}, "logger.wandb_enabled", "export WANDB_API_KEY"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as `nemo-ada prepare` leaves it, half a model, and the parts of a checkout that are read."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "file").touch()
    for name in (*TABLE, "half/model"):
        cached = folder / f"hub/models--{name.replace('/', '--')}"
        files = cached / "snapshots/1"
        files.mkdir(parents=True)
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text("1")
        for file in ("config.json", "tokenizer.json", *(("model.safetensors",) if name in TABLE else ())):
            (files / file).write_text(SMALL if name not in TABLE else "")
    for name in PUBLISHED:
        (folder / "datasets" / name.replace("/", "___")).mkdir(parents=True)
        (folder / "datasets" / name.replace("/", "___") / "train.arrow").touch()
    checkout(folder, "7")
    return folder


def checkout(folder: Path, minor: str) -> None:
    for path, text in (
        ("package_info.py", f"MAJOR = 0\nMINOR = {minor}\n"),
        ("environments/utils.py", '\nENV_REGISTRY: Dict = {\n    "math": {\n    },\n}\n'),
        (
            "data/datasets/response_datasets/__init__.py",
            '\nDATASET_REGISTRY = {\n    "AIME2024": A,\n    "AIME2026": B,\n}\n',
        ),
    ):
        (folder / "nemo_rl" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "nemo_rl" / path).write_text(text)


@pytest.fixture(autouse=True)
def offline(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HF_HOME": site, "HF_HUB_OFFLINE": 1, "NEMO_RL_HOME": site, "NEMO_ADA_SITE": "/none"}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("RUN_ROOT", "WANDB_API_KEY", "WANDB_MODE", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("netrc.netrc", lambda: SimpleNamespace(authenticators=lambda host: None))


def everything(changes: dict[str, Any], tmp: object = "") -> list[Finding]:
    filled = {k: v.replace("{tmp}", str(tmp)) if isinstance(v, str) else v for k, v in changes.items()}
    config = changed(filled)
    found = check(config, site=True)
    if any(finding.key in BOUNDS or finding.key == "run_dir" for finding in found if finding.level == "error"):
        return found
    return [*found, *site_findings(Values(config)), *key_names(config, {})]


def errors(changes: dict[str, Any], tmp: object = "") -> list[Finding]:
    return [finding for finding in everything(changes, tmp) if finding.level == "error"]


@pytest.mark.parametrize(
    "changes",
    [{}, FP8_TRAINING, FP8_ROLLOUT, EXPERTS, {TP: 2, PP: 2}, {"loss_fn.force_on_policy_ratio": True,
     "policy.train_global_batch_size": 2048, "policy.logprob_batch_size": 2},
     STAGES | {f"{LEARNER}.num_layers_in_{end}_pipeline_stage": 11 for end in ("first", "last")}],
    ids=["bf16", "fp8 training", "fp8", "experts", "pipeline", "forced ratio", "outer stages"],
)  # fmt: skip
def test_a_valid_recipe_has_no_errors(changes: dict[str, Any]) -> None:
    assert errors(changes) == []


@pytest.mark.parametrize(("changes", "key", "remedy"), [m[1:] for m in BREAKAGES], ids=[m[0] for m in BREAKAGES])
def test_a_broken_constraint_is_found_under_its_key_with_a_remedy(
    changes: dict[str, Any], key: str, remedy: str, site: Path
) -> None:
    found = errors(changes, site)
    assert {finding.key for finding in found} == {key}
    assert any(remedy in finding.message for finding in found), [finding.message for finding in found]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (FP8_TRAINING | {"policy.sequence_packing.train_mb_tokens": 3100}, "policy.sequence_packing.train_mb_tokens"),
        ({"policy.model_name": "Qwen/Qwen3-4B"}, "policy.tokenizer.chat_template_kwargs.enable_thinking"),
        ({"grpo.adv_estimator.name": "grpo"}, "grpo.adv_estimator.name"),
        ({f"{VLLM}.gpu_memory_utilization": 0.26}, f"{VLLM}.gpu_memory_utilization"),
    ],
)
def test_what_may_work_is_a_warning(changes: dict[str, Any], key: str) -> None:
    found = everything(changes)
    assert [finding.level for finding in found if finding.key == key and finding.level != "ok"] == ["warning"]
    assert not [finding for finding in found if finding.level == "error"]


def test_tp_accuracy_can_be_waived_knowingly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRL_IGNORE_TP_ACCURACY_CHECK", "1")
    found = check(changed({"policy.logprob_batch_size": 2}))
    assert [finding.level for finding in found if finding.key == "policy.logprob_batch_size"] == ["warning"]


@pytest.mark.parametrize(("room", "level"), [(3.9, "warning"), (4.1, "ok")])
def test_the_disk_needs_room_for_the_kept_checkpoints_and_the_one_being_written(
    room: float, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, shape = read({"checkpointing.checkpoint_dir": str(tmp_path), "checkpointing.keep_top_k": 3})
    free = room * checkpoint_bytes(shape)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free))
    assert [finding.level for finding in checkpoint_disk(recipe, shape)] == [level]


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


def test_an_unknown_model_is_read_from_its_folder_or_the_cache(site: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(SMALL)
    (tmp_path / "tokenizer.json").touch()
    assert {finding.key for finding in errors({"policy.model_name": str(tmp_path)})} == {TP}
    (site / "hub/models--half--model/snapshots/1/model.safetensors").touch()
    try:
        assert {finding.key for finding in errors({"policy.model_name": "half/model"})} == {TP}
    finally:
        (site / "hub/models--half--model/snapshots/1/model.safetensors").unlink()


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [("there", "ok", "on the hub"), ("gated", "error", "HF_TOKEN"), ("missing", "error", "mend the name"),
     ("no answer", "error", "where there is internet")],
)  # fmt: skip
def test_what_is_not_in_the_cache_is_asked_of_the_hub(
    answer: str, level: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "ask", lambda name, kind: answer)
    found = next(f for f in everything({"policy.tokenizer.name": "a/b"}) if f.key == "policy.tokenizer.name")
    assert found.level == level and said in found.message


def test_another_version_of_nemo_rl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, "6")
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    assert [(f.key, "check out v0.7.0" in f.message) for f in errors({})] == [("NEMO_RL_HOME", True)]


def test_fewer_gpus_than_the_config_wants_are_refused() -> None:
    found = gpu.for_config([], 4, Values(changed({})))
    assert [(f.level, f.key, "4 would work" in f.message) for f in found] == [("error", "cluster.gpus_per_node", True)]
    assert gpu.for_config([], 8, Values(changed({}))) == []


def test_fp8_blocks_must_fit_the_key_value_width_too(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, '
        '"num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 4096}'
    )
    narrow = FP8_ROLLOUT | {
        "policy.model_name": str(tmp_path), f"{VLLM}.tensor_parallel_size": 4, f"{KWARGS}.max_num_seqs": 2048
    }  # fmt: skip
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
    [((8, 0), "12.9", "need Hopper"), ((9, 0), "12.8", "12.9 or newer"), ((9, 0), "13.0", "Transformer Engine"),
     ((9, 0), "13.1", "too old")],
)  # fmt: skip
def test_fp8_needs_hopper_a_new_cuda_and_transformer_engine(
    capability: tuple[int, int], cuda: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "raise SystemExit(1)" if said == "Transformer Engine" else "print(False, 'too old')"
    monkeypatch.setattr(gpu, "ASK_ENGINE", code)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_capability=lambda index: capability), version=SimpleNamespace(cuda=cuda)
    )
    found = list(gpu._fp8(torch))
    assert [finding.level for finding in found] == ["warning"]
    assert said in found[0].message
    used = gpu.for_config(found, 8, Values(changed(FP8_TRAINING)))
    assert [finding.level for finding in used] == ["error"]
    assert "without -fp8" in used[0].message
    assert gpu.for_config(found, 8, Values(changed({}))) == found


def test_transformer_engine_is_looked_for_where_megatrons_workers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker/bin/python"
    worker.parent.mkdir(parents=True)
    worker.write_text("#!/bin/sh\necho True\n")
    worker.chmod(0o755)
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
    found = list(gpu._transformer_engine())
    assert [finding.level for finding in found] == ["ok"] and "MegatronPolicyWorker" in found[0].message


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
