"""The one reader of a NeMo-RL config: what `check` and `plan` need of the resolved YAML.

The hooks in `nemo/` read the live configuration of a run; what both derive (`rollout_sizes`) stands here once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from nemo_ada.cluster.site import site_setting
from nemo_ada.config.load import find_prompt_files, load_words, load_yaml, plain, split_words
from nemo_ada.errors import UserError

HOME = "NEMO_RL_HOME"
EXAMPLES = "examples/configs"  # of a checkout
RUN_DIR = "runs/nemo_rl"  # folder of a run whose config names none
# What vLLM 0.20 takes where nobody sets max_num_seqs (NeMo-RL pull request 4221).
ASYNC_MAX_NUM_SEQS, SYNC_MAX_NUM_SEQS = 128, 1024
_ARITHMETIC: dict[str, Callable[..., Any]] = {"mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": max}


def load_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A YAML of either back end, with its `defaults`, overlays, overrides and interpolations resolved.

    `overrides` may name overlays, too: more YAMLs, such as configs/methods/grpo8.yaml.
    Raises UserError, with what to set where NEMO_RL_HOME is needed and missing.
    """
    for name, rule in _ARITHMETIC.items():  # as NeMo-RL's own files use them
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, rule)
    home = site_setting(HOME)
    if home and HOME not in os.environ and Path(home).is_dir():
        os.environ[HOME] = home  # where the recipe's interpolations look
    try:
        return find_prompt_files(plain(load_words(path, overrides)), split_words(path, overrides)[0])
    except UserError as problem:
        works = f"set {HOME} to a checkout of NeMo-RL v0.7.0 (export {HOME}=/path/to/RL)"
        if HOME in str(problem):
            raise UserError(f"{path} builds on NeMo-RL's own files; {works}, or in slurm/site.env") from None
        if home and not (Path(home) / EXAMPLES).is_dir() and str(Path(home).resolve()) in str(problem):
            raise UserError(f"{HOME}={home} is no checkout of NeMo-RL: it has no folder {EXAMPLES}; {works}") from None
        raise


def upstream_part(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What YAMLs that `load_config` has read take from NeMo-RL's own files, interpolations unresolved."""
    taken = OmegaConf.merge(*map(_upstream, split_words(path, overrides)[0]))
    return cast(dict[str, Any], OmegaConf.to_container(taken, resolve=False))


def _upstream(path: Path) -> DictConfig:
    home = os.environ.get(HOME)
    if home is not None and Path(home).resolve() in path.resolve().parents:
        return load_yaml(path)
    taken = OmegaConf.create({})
    parents = cast(DictConfig, OmegaConf.load(path)).get("defaults", [])
    for name in [parents] if isinstance(parents, str) else parents:
        taken.merge_with(_upstream(path.parent / name))
    return taken


class Values:
    """Dotted look-up in a nested mapping; a missing key is an error that names it unless a default is given."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, dotted: str, default: Any = None) -> Any:
        """The value, or `default` where a part of the path is missing or null."""
        node: Any = self.config
        for part in dotted.split("."):
            if not isinstance(node, Mapping):
                return default
            node = node.get(part)
        return default if node is None else node

    def integer(self, dotted: str, default: int | None = None) -> int:
        """A positive whole number. Raises UserError."""
        value = self.get(dotted, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a whole number above 0; set it", key=dotted)
        return value

    def section(self, dotted: str) -> Mapping[str, Any]:
        """A section, empty where it is not set. Raises UserError."""
        value = self.get(dotted, {})
        if not isinstance(value, Mapping):
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a section; set it", key=dotted)
        return value

    @property
    def validates(self) -> bool:
        """Whether the run validates; NeMo-RL takes a val_period of 0 or -1 for never."""
        return (self.number("grpo.val_period") or 0) > 0 or any(
            self.get(f"grpo.val_at_{end}", False) for end in ("start", "end")
        )

    def number(self, dotted: str) -> float | None:
        """A number, also one that YAML reads as text (1e-6); None where it is not set. Raises UserError."""
        value = self.get(dotted)
        if value is None:
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a number; set it", key=dotted) from None


@dataclass(frozen=True, slots=True)
class RolloutSizes:
    """Prompts of one rollout call, rows kept per prompt, tokens of the longest response over all of its turns."""

    prompts: int
    group: int
    longest: int


def rollout_sizes(get: Callable[..., Any]) -> RolloutSizes:
    """As NeMo-RL derives them; dynamic sampling draws grpo.batch_multiplier times the prompts of a step.

    get(key, default) looks up a dotted key.
    """
    multiplier = float(get("grpo.batch_multiplier", 1)) if get("grpo.use_dynamic_sampling", False) else 1.0
    room = int(get("policy.max_total_sequence_length"))
    turns = int(get("grpo.max_rollout_turns", 1))
    return RolloutSizes(
        prompts=max(1, int(int(get("grpo.num_prompts_per_step")) * multiplier)),
        group=int(get("grpo.num_generations_per_prompt")),
        longest=min(int(get("policy.generation.max_new_tokens", room)) * turns, room),
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Parallel layout, batches and lengths. Lengths in tokens, batches in rows."""

    values: Values
    model_name: str
    nodes: int
    gpus_per_node: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    first_stage: int | None
    last_stage: int | None
    sequence_parallel: bool
    packing: bool
    dynamic: bool
    train_rows: int
    micro_rows: int
    logprob_rows: int
    prompts: int
    group: int
    max_length: int
    max_new: int
    max_prompt: int
    fp8_train: bool
    fp8_rollout: bool
    vllm_tp: int
    vllm_pp: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ClusterConfig:
        """Read a resolved NeMo-RL configuration. Raises UserError for what is missing."""
        v = Values(config)
        if not v.get("policy.megatron_cfg.enabled", False):
            raise UserError(
                "policy.megatron_cfg.enabled=false: these recipes train with Megatron; set it to true (and "
                "policy.dtensor_cfg.enabled to false)",
                key="policy.megatron_cfg.enabled",
            )
        learner, vllm = "policy.megatron_cfg", "policy.generation.vllm_cfg"
        length = v.integer("policy.max_total_sequence_length")
        micro = v.integer("policy.train_micro_batch_size")
        return cls(
            values=v,
            model_name=str(v.get("policy.model_name", "")),
            nodes=v.integer("cluster.num_nodes"),
            gpus_per_node=v.integer("cluster.gpus_per_node"),
            tp=v.integer(f"{learner}.tensor_model_parallel_size"),
            pp=v.integer(f"{learner}.pipeline_model_parallel_size"),
            cp=v.integer(f"{learner}.context_parallel_size", 1),
            ep=v.integer(f"{learner}.expert_model_parallel_size", 1),
            etp=v.integer(f"{learner}.expert_tensor_parallel_size", 1),
            first_stage=v.get(f"{learner}.num_layers_in_first_pipeline_stage"),
            last_stage=v.get(f"{learner}.num_layers_in_last_pipeline_stage"),
            sequence_parallel=bool(v.get(f"{learner}.sequence_parallel", False)),
            packing=bool(v.get("policy.sequence_packing.enabled", False)),
            dynamic=bool(v.get("policy.dynamic_batching.enabled", False)),
            train_rows=v.integer("policy.train_global_batch_size"),
            micro_rows=micro,
            logprob_rows=v.integer("policy.logprob_batch_size", micro),
            prompts=v.integer("grpo.num_prompts_per_step"),
            group=v.integer("grpo.num_generations_per_prompt"),
            max_length=length,
            max_new=v.integer("policy.generation.max_new_tokens", length),
            max_prompt=v.integer("data.max_input_seq_length", length),
            fp8_train=bool(v.get(f"{learner}.fp8_cfg.enabled", False)),
            fp8_rollout=v.get(f"{vllm}.precision") == "fp8",
            vllm_tp=v.integer(f"{vllm}.tensor_parallel_size", 1),
            vllm_pp=v.integer(f"{vllm}.pipeline_parallel_size", 1),
        )

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def engine_gpus(self) -> int:
        """GPUs that vLLM uses: all, or those of policy.generation.colocated.resources where it has its own."""
        v, resources = self.values, "policy.generation.colocated.resources"
        if v.get("policy.generation.colocated.enabled", True):
            return self.gpus
        nodes = 1 if self.nodes == 1 else v.integer(f"{resources}.num_nodes", 1)
        return nodes * v.integer(f"{resources}.gpus_per_node", self.gpus_per_node)

    @property
    def learner_gpus(self) -> int:
        """GPUs that the learner uses."""
        return self.gpus if self.engine_gpus == self.gpus else self.gpus - self.engine_gpus

    @property
    def model_parallel(self) -> int:
        """GPUs that share one replica of the learner."""
        return self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Data-parallel replicas of the learner."""
        return max(1, self.learner_gpus // self.model_parallel)

    @property
    def expert_replicas(self) -> int:
        """Data-parallel replicas of the experts."""
        return max(1, self.learner_gpus // (self.ep * self.etp * self.pp))

    @property
    def rows(self) -> int:
        """Rows of a step."""
        return self.prompts * self.group

    @property
    def engines(self) -> int:
        """vLLM replicas."""
        return max(1, self.engine_gpus // (self.vllm_tp * self.vllm_pp))

    @property
    def recompute(self) -> bool:
        """Whether the learner recomputes all activations."""
        full = self.values.get("policy.megatron_cfg.recompute_granularity", "full") == "full"
        return bool(self.values.get("policy.megatron_cfg.activation_checkpointing", False)) and full

    @property
    def logprob_passes(self) -> int:
        """Forward passes of a step for log-probabilities: the policy's and the reference's, where they are needed."""
        policy = not self.values.get("loss_fn.force_on_policy_ratio", False)
        reference = not self.values.get("grpo.skip_reference_policy_logprobs_calculation", False)
        return int(policy) + int(reference)

    @property
    def max_num_seqs(self) -> int:
        """Responses that one engine decodes at once, whatever its cache holds. vLLM's default depends on the caller."""
        asynchronous = self.values.get("policy.generation.vllm_cfg.async_engine", False)
        default = ASYNC_MAX_NUM_SEQS if asynchronous else SYNC_MAX_NUM_SEQS
        return self.values.integer("policy.generation.vllm_kwargs.max_num_seqs", default)

    @property
    def pack_unit(self) -> int:
        """Packs (or rows) are padded to a multiple of this many tokens."""
        unit = (self.tp if self.sequence_parallel else 1) * (2 * self.cp if self.cp > 1 else 1)
        if self.fp8_train:
            unit = lcm(unit, 128 * (2 * self.cp if self.cp > 1 else 1) * self.tp)
        return unit

    @property
    def pack_tokens(self) -> int:
        """Tokens of one training micro-batch before context parallelism splits it, padding included."""
        v = self.values
        tokens = self.micro_rows * self.max_length
        if self.packing:
            tokens = max(int(v.get("policy.sequence_packing.train_mb_tokens", tokens)), self.max_length)
        elif self.dynamic:
            tokens = int(v.get("policy.dynamic_batching.train_mb_tokens", tokens))
        return -(-tokens // self.pack_unit) * self.pack_unit

    @property
    def logprob_tokens(self) -> int:
        """Tokens of one micro-batch of the pass for log-probabilities, before context parallelism splits it."""
        v = self.values
        tokens = self.logprob_rows * self.max_length
        if self.packing:
            return max(int(v.get("policy.sequence_packing.logprob_mb_tokens", tokens)), self.max_length)
        if self.dynamic:
            return int(v.get("policy.dynamic_batching.logprob_mb_tokens", tokens))
        return tokens

    def stage_layers(self, layers: int) -> tuple[int, int]:
        """Layers of the first and of the last pipeline stage (rounded up where they do not divide)."""
        given = [n for n in (self.first_stage, self.last_stage) if n is not None]
        stages = self.pp - len(given)
        each = -(-(layers - sum(given)) // stages) if stages > 0 else 0
        return (
            self.first_stage if self.first_stage is not None else each,
            self.last_stage if self.last_stage is not None else each,
        )
