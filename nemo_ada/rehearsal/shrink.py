"""Make a config that fits this machine from a cluster config. Sizes shrink, and the path through NeMo-RL stays.

This module works on dictionaries only. It records each change, so that the report can say what was not run as written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from pathlib import Path
from typing import Any, Literal

from nemo_ada.config.values import Values
from nemo_ada.core.sampling.budget import CAPS, TOKENS
from nemo_ada.errors import UserError
from nemo_ada.rehearsal.gym import SECTION as GYM_SECTION

PROMPT_TOKENS, NEW_TOKENS, LENGTH = 176, 16, 192
GYM_ROW = 4 * LENGTH  # tokens of a row over NeMo-Gym: six turns, and what the tools say between them
PROMPTS = 8
BLOCK_TOKENS = 32
"""Block of vLLM's KV cache, tokens. This is the least that the CPU build takes (its default is 128, a GPU's is 16).

A prompt is longer than a block. So keys and values of old weights that stay in the prefix cache become visible as
log-probabilities that differ.
"""
STAGE_LAYERS = 2  # layers of the small model per pipeline stage
VALIDATION_PROMPTS = 8
STORED_ROWS = 1000  # rows that a data plane may store
OF_A_STEP = {
    "async_rl.min_groups_for_streaming_train": 32,
    "async_rl.max_inflight_prompts": 32,
    "async_rl.max_buffered_rollouts": 64,
    "async_rl.rollout_failure.replacement_reserve_prompts": 1,
}
"""Numbers of prompts that are ratios of a step's prompts -> NeMo-RL's defaults. Fewer prompts keep the ratios."""
LEARNING_RATE, FULL_STEPS = 1e-2, 3
"""The learning rate is large, so that weights move far enough within a step to make a stale refit visible.

A rehearsal of more than FULL_STEPS steps divides it by its extra length. Otherwise the policy would become certain of
its answers, and gradients would become zero.
"""

LORA_RATE = 1e-3  # an adapter's matrices multiply, so a larger rate moves the weights beyond the clip range of the loss

LEARNER, GENERATION = "policy.megatron_cfg", "policy.generation"
_EXACT, _KERNEL, _ONE = "exact comparisons", "a CUDA kernel", "a CPU runs one operation at a time"
ON_A_CPU: tuple[tuple[str, Any, str], ...] = (
    ("policy.precision", "float32", _EXACT),
    (f"{GENERATION}.vllm_cfg.precision", "float32", _EXACT),
    (f"{LEARNER}.pipeline_dtype", "float32", _EXACT),
    (f"{LEARNER}.optimizer.bf16", False, _EXACT),
    (f"{LEARNER}.optimizer.params_dtype", "float32", _EXACT),
    (f"{LEARNER}.optimizer.use_precision_aware_optimizer", False, "it is Transformer Engine's Adam"),
    (f"{LEARNER}.optimizer.optimizer_cpu_offload", False, "the optimizer is on the CPU already"),
    (f"{LEARNER}.fp8_cfg.enabled", False, "FP8 needs Transformer Engine and a Hopper GPU"),
    (f"{LEARNER}.distributed_data_parallel_config.overlap_grad_reduce", False, _ONE),
    (f"{LEARNER}.distributed_data_parallel_config.overlap_param_gather", False, _ONE),
    (f"{LEARNER}.apply_rope_fusion", False, _KERNEL),
    (f"{LEARNER}.bias_activation_fusion", False, _KERNEL),
    (f"{LEARNER}.gradient_accumulation_fusion", False, _KERNEL),
    (f"{LEARNER}.moe_permute_fusion", False, _KERNEL),
    (f"{LEARNER}.moe_enable_deepep", False, "GPU communication"),
    (f"{GENERATION}.vllm_cfg.kv_cache_dtype", "auto", "FP8 needs the GPU's kernels"),
    (f"{GENERATION}.vllm_cfg.enforce_eager", True, "CUDA graphs need a GPU"),
    (f"{GENERATION}.vllm_kwargs.moe_backend", "auto", "the named backend is a GPU kernel"),
    (f"{GENERATION}.vllm_cfg.gpu_memory_utilization", 0.02, ""),
    (f"{GENERATION}.stop_token_ids", None, "the small vocabulary's own end token stops"),
    ("policy.refit_buffer_size_gb", 0.02, ""),
    ("logger.monitor_gpus", False, "no GPU to monitor"),
)
"""Key, value and reason of what a CPU computes otherwise. A key that a config does not have stays absent."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of the config.

    Attributes:
        key: Dotted name in the config.
        old: The user's value.
        new: The rehearsal's value.
        why: Reason, empty where only a size changed.
    """

    key: str
    old: Any
    new: Any
    why: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The processes of a rehearsal.

    Attributes:
        learner: NeMo-RL's learner.
        tp: Size of tensor parallelism.
        pp: Size of pipeline parallelism.
        cp: Size of context parallelism.
        ep: Size of expert parallelism.
        dp: Size of data parallelism.
        engines: Number of vLLM workers with GPUs of their own. 0 where they share the learner's GPUs.
    """

    learner: Literal["megatron", "dtensor"]
    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    engines: int = 0

    @property
    def world(self) -> int:
        """Number of policy workers. There are as many vLLM workers where these share the GPUs."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def gpus(self) -> int:
        """Number of GPUs that the machine pretends to have."""
        return self.world + self.engines

    @property
    def text(self) -> str:
        """The layout for people, such as `TP 2 x PP 1 x CP 1 x DP 1`."""
        expert = f", EP {self.ep}" if self.ep > 1 else ""
        apart = f", {self.engines} vLLM worker apart" if self.engines else ""
        return f"TP {self.tp} x PP {self.pp} x CP {self.cp} x DP {self.dp}{expert}{apart}"


class Shrinker(Values):
    """Edits a config and records every change.

    Attributes:
        config: A resolved config, which this object changes.
        changes: The changes so far.
    """

    def __init__(self, config: dict[str, Any], changes: Sequence[ConfigChange] = ()) -> None:
        super().__init__(config)
        self.changes = list(changes)

    def set(self, dotted: str, value: Any, why: str = "", *, add: bool = False) -> None:
        """Give a key another value and record the change.

        Args:
            dotted: The key.
            value: Its new value.
            why: Reason for the report.
            add: Whether a key that the config does not have is added. Otherwise it stays absent.
        """
        *path, name = dotted.split(".")
        node: Any = self.config
        for part in path:
            if not isinstance(node.get(part), dict):
                if not add:
                    return
                node[part] = {}
            node = node[part]
        if name not in node and not add:
            return
        old = node.get(name)
        if old != value:
            node[name] = value
            self.changes.append(ConfigChange(dotted, old, value, why))

    def lower(self, dotted: str, value: float) -> None:
        """Lower a number that is larger than `value`."""
        old = self.get(dotted)
        if isinstance(old, int | float) and not isinstance(old, bool) and old > value:
            self.set(dotted, value)


def shrink(
    config: Mapping[str, Any], *, model: Path | None, data: Path | None, out: Path, steps: int
) -> tuple[Shrinker, Layout]:
    """Make the config of the rehearsal.

    Args:
        config: The user's resolved config, which stays as it is.
        model: Folder of the small model. None keeps the config's.
        data: Folder with train.jsonl and validation.jsonl. None keeps the config's data.
        out: Folder of the run.
        steps: Training steps.

    Returns:
        The shrinker, which holds the new config and the changes, and the layout of the processes.

    Raises:
        UserError: No learner of NeMo-RL runs the config, or it needs something that a CPU lacks.
    """
    s = Shrinker(copy.deepcopy(dict(config)))
    gym = s.get("env.should_use_nemo_gym", False) is True
    layout = _lower_parallelism(s)
    if model is not None:
        use_small_model(s, model)
    tokens = NEW_TOKENS / max(int(s.get("policy.generation.max_new_tokens", NEW_TOKENS)), 1)
    lower_batches(s, PROMPTS, layout.dp, tokens)
    s.lower("reinforce_ada.reserve_prompts", 4 * int(s.get("grpo.num_prompts_per_step", 1)))
    s.lower("data_plane.storage_capacity", STORED_ROWS)
    s.lower("data_plane.num_storage_units", 1)
    _lower_lengths(s, GYM_ROW if gym else LENGTH)
    _avoid_gpu(s)
    _shorten_schedule(s, steps)
    if data is not None:
        (_use_gym_requests if gym else use_small_data)(s, data)
    move_folders(s, out)
    return s, layout


def _lower_parallelism(s: Shrinker) -> Layout:
    """Lower every kind of parallelism to 2 or 1."""
    megatron = bool(s.get("policy.megatron_cfg.enabled", False))
    if not megatron and s.get("policy.automodel_cfg.enabled", False):
        raise UserError(
            "policy.automodel_cfg is v0.8's section, which was not rehearsed; rehearse with "
            "policy.megatron_cfg.enabled=true policy.automodel_cfg.enabled=false"
        )
    if not megatron and not s.get("policy.dtensor_cfg.enabled", False):
        raise UserError("policy: neither megatron_cfg.enabled nor dtensor_cfg.enabled is true; set one of them to true")
    prefix = "policy.megatron_cfg" if megatron else "policy.dtensor_cfg"
    tensor = f"{prefix}.{'tensor_model_parallel_size' if megatron else 'tensor_parallel_size'}"
    context = f"{prefix}.{'context_parallel_size'}"
    s.lower(tensor, 2)
    if s.get(context, 1) > 1:
        s.set(context, 1, "context parallelism splits attention with Transformer Engine's kernels")
    tp, pp, ep = s.get(tensor, 1), 1, 1
    if megatron:
        for key in ("pipeline_model_parallel_size", "expert_model_parallel_size"):
            s.lower(f"{prefix}.{key}", 2)
        s.lower(f"{prefix}.expert_tensor_parallel_size", 1)
        pp, ep = s.get(f"{prefix}.pipeline_model_parallel_size", 1), s.get(f"{prefix}.expert_model_parallel_size", 1)
        stages = [f"{prefix}.num_layers_in_{which}_pipeline_stage" for which in ("first", "last")]
        uneven = [key for key in stages if s.get(key) is not None]
        for key, layers in zip(uneven, (1, STAGE_LAYERS * pp - 1), strict=False):
            s.set(key, layers)
    else:
        s.set("policy.sequence_packing.enabled", False, "DTensor packs with flash-attention's kernels")
        s.set("policy.dtensor_cfg.lora_cfg.use_triton", False, "Triton's kernels need a GPU")
    dp = 2 if tp * pp == 1 or tp % ep else 1
    colocated = "policy.generation.colocated"
    apart = not s.get(f"{colocated}.enabled", True)
    layout = Layout("megatron" if megatron else "dtensor", tp, pp, 1, ep, dp, engines=int(apart))
    s.set("cluster.num_nodes", 1)
    s.set("cluster.gpus_per_node", layout.gpus)
    s.set("cluster.segment_size", None, "it places ranks on racks of several nodes")
    if apart:
        s.set(f"{colocated}.resources.num_nodes", None)
        s.set(f"{colocated}.resources.gpus_per_node", layout.engines, add=True)
    shrink_engine(s)
    return layout


def shrink_engine(s: Shrinker) -> None:
    """Give each engine of vLLM one GPU."""
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size"):
        s.lower(f"{GENERATION}.vllm_cfg.{key}", 1)


def use_small_model(s: Shrinker, model: Path) -> None:
    """Take the small model and its tokenizer."""
    name = s.get("policy.model_name")
    s.set("policy.model_name", str(model))
    if s.get("policy.tokenizer.name") is not None:
        s.set("policy.tokenizer.name", str(model), f"{name}'s tokenizer is not on this machine")
    if s.get("policy.hf_config_overrides"):
        s.set("policy.hf_config_overrides", {}, "they belong to the full model")


def lower_batches(s: Shrinker, most: int, dp: int = 1, tokens: float = 1.0) -> float:
    """Lower the prompts per step. The updates per step stay, and batches still divide over the ranks.

    Args:
        s: the configuration.
        most: prompts of a step. A few more are taken where the batches ask for it.
        dp: data-parallel ranks.
        tokens: share of the tokens of a response.

    Returns:
        The share of the prompts.
    """
    prompts, group = int(s.get("grpo.num_prompts_per_step", 1)), int(s.get("grpo.num_generations_per_prompt", 1))
    rows = int(s.get("policy.train_global_batch_size", prompts * group))
    updates = max(1, prompts * group // max(rows, 1))
    fewer = min(prompts, most)
    while (fewer * group) % (updates * dp) and fewer < prompts:
        fewer += 1
    s.set("grpo.num_prompts_per_step", fewer)
    if rows * updates == prompts * group:  # otherwise NeMo-RL must refuse the config, so the wrong size stays
        s.set("policy.train_global_batch_size", fewer * group // updates)
    each = max(1, fewer * group // updates // dp)
    for key in ("train_micro_batch_size", "logprob_batch_size"):
        old = s.get(f"policy.{key}", 1)
        s.set(f"policy.{key}", gcd(int(old), each) if old else old)
    s.lower("policy.generation_batch_size", fewer * group)
    share = fewer / max(prompts, 1)
    for cap in CAPS:  # of a step; each must hold its rows
        value = s.get(cap.key)
        if cap.scales and value is not None:
            scale = share * tokens if cap is TOKENS else share
            s.set(cap.key, max(fewer * group, int(value * scale)))
    if isinstance(s.get("async_rl"), dict):
        for key, default in OF_A_STEP.items():
            old = int(s.get(key, default))
            s.set(key, ceil(old * fewer / max(prompts, 1)), add=old > 1)
    return share


def _lower_lengths(s: Shrinker, most: int) -> None:
    """Lower the lengths of prompts, responses, rows and packs. A row has `most` tokens at most."""
    old = int(s.get("policy.max_total_sequence_length", LENGTH))
    length = min(old, most)
    s.lower("policy.max_total_sequence_length", length)
    s.lower("data.max_input_seq_length", min(PROMPT_TOKENS, length))
    s.lower("policy.generation.max_new_tokens", NEW_TOKENS)
    s.lower("policy.generation.vllm_cfg.max_model_len", length)
    for part in ("sequence_packing", "dynamic_batching"):
        for key in ("train_mb_tokens", "logprob_mb_tokens"):
            tokens = s.get(f"policy.{part}.{key}")
            if isinstance(tokens, int) and tokens > 2 * length:
                s.set(f"policy.{part}.{key}", length * max(1, min(2, tokens // old)))
        s.lower(f"policy.{part}.sequence_length_round", 16)
    s.lower("policy.make_sequence_length_divisible_by", 16)
    if s.get("grpo.reward_shaping.enabled", False):
        s.lower("grpo.reward_shaping.max_response_length", NEW_TOKENS)
        s.lower("grpo.reward_shaping.overlong_buffer_length", NEW_TOKENS // 4)


def _avoid_gpu(s: Shrinker) -> None:
    """Compute in float32, and leave out what only a GPU has."""
    for key, value, why in ON_A_CPU:
        s.set(key, value, why)
    if s.get(f"{LEARNER}.env_vars"):
        s.set(f"{LEARNER}.env_vars", None, "they are for GPUs")
    why = "so that a prompt fills blocks of the KV cache, as on a GPU"
    s.set(f"{GENERATION}.vllm_kwargs.block_size", BLOCK_TOKENS, why, add=True)
    _turn_trackers_off(s)


def _turn_trackers_off(s: Shrinker) -> None:
    """Report to no service."""
    for name in ("wandb", "swanlab", "mlflow"):
        s.set(f"logger.{name}_enabled", False, "it would report to a service")


def shorten(config: Mapping[str, Any], *, out: Path, steps: int) -> Shrinker:
    """Make a short run of a config, without another change of its sizes.

    Args:
        config: A resolved config, which stays as it is.
        out: Folder of the run.
        steps: Training steps. The run saves after the last but one, and after the last.
    """
    s = Shrinker(copy.deepcopy(dict(config)))
    s.set("grpo.max_num_steps", steps)
    s.set("grpo.val_period", 0, "only training is compared")
    for key in ("val_at_start", "val_at_end"):
        s.set(f"grpo.{key}", False, "only training is compared")
    s.set("checkpointing.save_period", steps - 1)
    s.set("checkpointing.keep_top_k", 2)
    s.set("checkpointing.metric_name", None, "both checkpoints are kept")
    s.set("resume", "never", "a new run", add=True)
    _turn_trackers_off(s)
    move_folders(s, out)
    return s


def _shorten_schedule(s: Shrinker, steps: int) -> None:
    """Take few steps, save after each, and keep every checkpoint."""
    s.set("grpo.max_num_steps", steps)
    if s.get("grpo.val_period", 0):
        s.set("grpo.val_period", max(2, steps // 3))
    for key in ("max_val_samples", "val_batch_size"):
        s.lower(f"grpo.{key}", VALIDATION_PROMPTS)
    s.set("checkpointing.enabled", True, "so that save, export and resume run")
    s.set("checkpointing.save_period", 1)
    s.set("checkpointing.keep_top_k", steps)
    s.set("checkpointing.metric_name", None, "every checkpoint is kept")
    _raise_learning_rate(s, (LORA_RATE if trains_adapters(s) else LEARNING_RATE) * min(1.0, FULL_STEPS / steps))


def trains_adapters(s: Shrinker) -> bool:
    """Return whether adapters of LoRA train, on Megatron or on DTensor."""
    megatron = bool(s.get("policy.megatron_cfg.enabled", False))
    return bool(s.get("policy.megatron_cfg.peft.enabled" if megatron else "policy.dtensor_cfg.lora_cfg.enabled", False))


def _raise_learning_rate(s: Shrinker, rate: float) -> None:
    """Scale the learning rates so that the largest is `rate`."""
    why = "larger, so that a refit with old weights would be seen"
    prefix, scale = "policy.megatron_cfg", None
    lr = s.get(f"{prefix}.optimizer.lr")
    if isinstance(lr, int | float) and lr > 0:
        scale = rate / lr
        for key in ("optimizer.lr", "optimizer.min_lr", "scheduler.lr_warmup_init"):
            value = s.get(f"{prefix}.{key}")
            if isinstance(value, int | float):
                s.set(f"{prefix}.{key}", value * scale, why)
        s.lower(f"{prefix}.scheduler.lr_warmup_iters", 2)
    s.set("policy.optimizer.kwargs.lr", rate, why)
    for key in ("foreach", "fused"):
        s.set(f"policy.optimizer.kwargs.{key}", False, "a CUDA kernel")


def use_small_data(s: Shrinker, data: Path) -> None:
    """Train and validate on the rehearsal's problems, with the config's own environment, processor and prompts."""
    why = "the data set is not on this machine"
    split = s.get("data.train.split_validation_size", 0)
    for name, file in (("train", "train.jsonl"), ("validation", "validation.jsonl")):
        old = s.get(f"data.{name}")
        if old is None and not (name == "validation" and split):
            continue
        own = ("env_name", "processor", "prompt_file", "system_prompt_file")
        users = {key: old[key] for key in own if isinstance(old, Mapping) and key in old}
        new = {"dataset_name": "ResponseDataset", "data_path": str(data / file), "input_key": "problem",
               "output_key": "gt", "split_validation_size": 0, **users}  # fmt: skip
        s.set(f"data.{name}", new, why, add=True)
    _lower_workers(s)


def _use_gym_requests(s: Shrinker, data: Path) -> None:
    """Train and validate on the rehearsal's requests. Gym's own servers run in one interpreter."""
    for name, file in (("train", "train.jsonl"), ("validation", "validation.jsonl")):
        s.set(f"data.{name}.data_path", str(data / file), "the data set is not on this machine")
        s.set(f"data.{name}.repeat", 1)
    why = "Gym would make an environment per server with uv"
    s.set(f"{GYM_SECTION}.skip_venv_if_present", True, why, add=True)
    s.set(f"{GYM_SECTION}.uv_venv_dir", str(data.parent / "gym"), why, add=True)
    s.set(f"{GYM_SECTION}.default_host", "127.0.0.1", "everything is on this machine", add=True)
    _lower_workers(s)


def _lower_workers(s: Shrinker) -> None:
    """Lower the number of processes that load data or judge answers."""
    s.lower("data.num_workers", 1)
    for name, section in s.get("env", {}).items():
        for key in ("workers", "num_workers"):
            if isinstance(section, Mapping) and isinstance(section.get(key), int):
                s.lower(f"env.{name}.{key}", 2)


def move_folders(s: Shrinker, out: Path) -> None:
    """Write everything below the rehearsal's folder."""
    for key, folder in (
        ("run_dir", out),
        ("checkpointing.checkpoint_dir", out / "checkpoints"),
        ("logger.log_dir", out / "logs"),
    ):
        s.set(key, str(folder), add=True)
