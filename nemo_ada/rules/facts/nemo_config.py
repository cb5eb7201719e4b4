"""The one reader of a NeMo-RL config. `NemoConfig` holds what the rules, the hooks, `check` and `plan` derive from it.

Nothing here imports NeMo-RL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import lcm
from typing import Any, Literal

from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.cards import A100, Card, choose_card
from nemo_ada.rules.facts.cards import KEY as CARD
from nemo_ada.rules.facts.lora import Lora

DEFAULT_RUN_DIR = "runs/nemo_rl"  # folder of a run whose config names none
VLLM_KWARGS = "policy.generation.vllm_kwargs"
FEW_MESSAGES = "nemo_ada.vllm.FewMessages"
CAPTURED, CAPTURED_BY_DEFAULT = "compilation_config.max_cudagraph_capture_size", 512
"""vLLM's default, 0.20 to 0.32, where twice max_num_seqs is not less."""
OFFLOAD, OFFLOADS = "optimizer_offload", ("pinned", "pageable")
"""CPU memory through which the optimizer leaves a GPU that learner and engine share. The first is the default."""
# The defaults of vLLM 0.20 for max_num_seqs (NeMo-RL pull request 4221).
ASYNC_MAX_NUM_SEQS, SYNC_MAX_NUM_SEQS = 128, 1024
A100_MAX_NUM_SEQS = 256  # of the synchronous engine: vllm/engine/arg_utils.py, get_batch_defaults
MEMORY_SHARE = 0.9  # vLLM's default of gpu_memory_utilization


class Loop(Enum):
    """NeMo-RL's training loops. The value is the setting that chooses one."""

    SYNC = ""
    ASYNC = "grpo.async_grpo.enabled=true"
    CONTROLLER = "async_rl"
    DATA_PLANE = "data_plane.enabled=true"

    @classmethod
    def of(cls, values: Values) -> Loop:
        """Return the loop that a config chooses. A section `async_rl` is read by the single controller only."""
        if values.get(cls.CONTROLLER.value) is not None:
            return cls.CONTROLLER
        if values.get("grpo.async_grpo.enabled", False):
            return cls.ASYNC
        return cls.DATA_PLANE if values.get("data_plane.enabled", False) else cls.SYNC

    @property
    def draws_ahead(self) -> bool:
        """Whether it draws every group by itself and ahead of its step: asynchronous training."""
        return self in (Loop.ASYNC, Loop.CONTROLLER)


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What a step samples.

    Attributes:
        prompts_per_step: prompts that a step trains on.
        prompts: prompts of one rollout call. Dynamic sampling draws grpo.batch_multiplier times the prompts of a step.
        max_calls: rollout calls of a step at most. It is above 1 under dynamic sampling only.
        group: rows that are kept per prompt.
        max_prompt: tokens of the longest prompt.
        max_new: tokens of the longest response of one turn.
        longest: tokens of the longest response over all of its turns.
    """

    prompts_per_step: int
    prompts: int
    max_calls: int
    group: int
    max_prompt: int
    max_new: int
    longest: int

    @classmethod
    def of(cls, values: Values) -> RolloutFacts:
        """Read it from a config. Raises UserError."""
        dynamic = bool(values.get("grpo.use_dynamic_sampling", False))
        multiplier = values.number("grpo.batch_multiplier") or 1.0
        prompts, length = (
            values.integer("grpo.num_prompts_per_step"),
            values.integer("policy.max_total_sequence_length"),
        )
        max_new = values.integer("policy.generation.max_new_tokens", length)
        max_prompt = values.integer("data.max_input_seq_length", length)
        turns = values.integer("grpo.max_rollout_turns", 1)
        if values.get("env.should_use_nemo_gym", False):
            # Gym does not cut prompts, and its agents count their turns. A turn has one token at least, so `length`
            # turns bound nothing.
            max_prompt, turns = max(length - max_new, 1), length
        return cls(
            prompts_per_step=prompts,
            prompts=max(1, int(prompts * multiplier)) if dynamic else prompts,
            # NeMo-RL lets one batch more through than dynamic_sampling_max_gen_batches.
            max_calls=values.integer("grpo.dynamic_sampling_max_gen_batches", 10) + 1 if dynamic else 1,
            group=values.integer("grpo.num_generations_per_prompt"),
            max_prompt=max_prompt,
            max_new=max_new,
            longest=min(max_new * turns, length),
        )

    @property
    def rows(self) -> int:
        """Rows of a step."""
        return self.prompts_per_step * self.group

    def count_divided_responses(self, ada: AdaSettings) -> int | None:
        """Return responses of a rollout call that the estimation variant divides. None for the sequential variant."""
        return self.prompts * self.group if isinstance(ada.sampling, EstimationSampling) else None

    def first_wave(self, ada: AdaSettings) -> int:
        """Return the responses of a rollout call that are issued before the first label. Raises UserError."""
        reserved = self.count_divided_responses(ada)
        return self.prompts * ada.plan(self.group, self.longest).stop.first_wave if reserved is None else reserved


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """How the learner cuts the rows of a step.

    Attributes:
        rows: rows of one optimizer step.
        micro_rows: rows of one training micro-batch.
        logprob_rows: rows of one micro-batch of the pass for log-probabilities.
        length: tokens of the longest row.
        packing: whether rows are packed.
        dynamic: whether micro-batches are made by their tokens.
        train_tokens: tokens of one training micro-batch. None where the rows decide.
        logprob_tokens: the same for the pass for log-probabilities.
    """

    rows: int
    micro_rows: int
    logprob_rows: int
    length: int
    packing: bool
    dynamic: bool
    train_tokens: int | None
    logprob_tokens: int | None

    @classmethod
    def of(cls, values: Values, rows: int) -> BatchFacts:
        """Read it from a config whose steps have `rows` rows. Raises UserError."""
        micro = values.integer("policy.train_micro_batch_size", None if _uses_megatron(values) else 1)
        packing = bool(values.get("policy.sequence_packing.enabled", False))
        dynamic = bool(values.get("policy.dynamic_batching.enabled", False))
        section = "policy.sequence_packing" if packing else "policy.dynamic_batching"
        by_tokens = packing or dynamic
        return cls(
            rows=values.integer("policy.train_global_batch_size", rows),
            micro_rows=micro,
            logprob_rows=values.integer("policy.logprob_batch_size", micro),
            length=values.integer("policy.max_total_sequence_length"),
            packing=packing,
            dynamic=dynamic,
            train_tokens=values.optional_integer(f"{section}.train_mb_tokens") if by_tokens else None,
            logprob_tokens=values.optional_integer(f"{section}.logprob_mb_tokens") if by_tokens else None,
        )

    def micro_batch_tokens(self, rows: int, tokens: int | None) -> int:
        """Return the tokens of a micro-batch of `rows` rows, or of `tokens` tokens where they are set.

        A pack holds any row.
        """
        wanted = rows * self.length if tokens is None else tokens
        return max(wanted, self.length) if self.packing else wanted


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """vLLM.

    Attributes:
        gpus: GPUs that it uses.
        tp: tensor-parallel size.
        pp: pipeline-parallel size.
        fp8: whether its weights are FP8.
        fp8_cache: whether its key-value cache is FP8.
        memory_share: its share of a GPU's memory.
        max_num_seqs: responses that one engine decodes at once, however large its cache is.
        kind: how tokens reach NeMo-RL: in one process (sync), or from another one, by a message per token (async) or
            by few messages per response (few, nemo_ada/vllm.py).
        captured: responses at once for which vLLM has CUDA graphs.
    """

    gpus: int
    tp: int
    pp: int
    fp8: bool
    fp8_cache: bool
    memory_share: float
    max_num_seqs: int
    kind: Literal["sync", "async", "few"]
    captured: int

    @classmethod
    def of(cls, values: Values, nodes: int, gpus_per_node: int) -> EngineFacts:
        """Read it from a config. Raises UserError."""
        vllm, resources = "policy.generation.vllm_cfg", "policy.generation.colocated.resources"
        gpus = nodes * gpus_per_node
        if not values.get("policy.generation.colocated.enabled", True):
            # NeMo-RL divides the GPUs of a single node, and whole nodes of several.
            engine_nodes = 1 if nodes == 1 else values.integer(f"{resources}.num_nodes", 1)
            gpus = engine_nodes * values.integer(f"{resources}.gpus_per_node", gpus_per_node)
        asynchronous = bool(values.get(f"{vllm}.async_engine", False))
        few = values.get(f"{VLLM_KWARGS}.scheduler_cls") == FEW_MESSAGES
        synchronous = A100_MAX_NUM_SEQS if choose_card({CARD: values.get(CARD)}) is A100 else SYNC_MAX_NUM_SEQS
        default = ASYNC_MAX_NUM_SEQS if asynchronous else synchronous
        seqs = values.integer(f"{VLLM_KWARGS}.max_num_seqs", default)
        captured = values.integer(f"{VLLM_KWARGS}.{CAPTURED}", min(2 * seqs, CAPTURED_BY_DEFAULT))
        share = values.number(f"{vllm}.gpu_memory_utilization")
        return cls(
            gpus=gpus,
            tp=values.integer(f"{vllm}.tensor_parallel_size", 1),
            pp=values.integer(f"{vllm}.pipeline_parallel_size", 1),
            fp8=values.get(f"{vllm}.precision") == "fp8",
            fp8_cache=str(values.get(f"{vllm}.kv_cache_dtype", "auto")).startswith("fp8"),
            memory_share=MEMORY_SHARE if share is None else share,
            max_num_seqs=seqs,
            kind="few" if asynchronous and few else "async" if asynchronous else "sync",
            captured=0 if values.get(f"{vllm}.enforce_eager", False) else captured,
        )

    @property
    def replicas(self) -> int:
        """Copies of the model that generate."""
        return max(1, self.gpus // (self.tp * self.pp))


@dataclass(frozen=True, slots=True)
class LearnerFacts:
    """The layout of Megatron, or of DTensor.

    Attributes:
        gpus: GPUs that it uses.
        tp: tensor-parallel size.
        pp: pipeline-parallel size.
        cp: context-parallel size.
        ep: expert-parallel size.
        etp: tensor-parallel size of the experts.
        first_stage: layers of the first pipeline stage. None where the layers divide evenly.
        last_stage: layers of the last pipeline stage. None as above.
        sequence_parallel: whether the tensor-parallel ranks split the tokens of the norms, too.
        fp8: whether it trains in FP8.
        recompute: whether it recomputes all activations.
        logprob_passes: forward passes of a step for log-probabilities: the policy's and the reference's, as needed.
        lora: the adapters that train. None where all weights do.
    """

    gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    first_stage: int | None
    last_stage: int | None
    sequence_parallel: bool
    fp8: bool
    recompute: bool
    logprob_passes: int
    lora: Lora | None

    @classmethod
    def of(cls, values: Values, gpus: int) -> LearnerFacts:
        """Read it from a config. Raises UserError."""
        # With a forced ratio the current log-probabilities stand for the old ones, and nobody computes those.
        policy = not values.get("loss_fn.force_on_policy_ratio", False)
        reference = not values.get("grpo.skip_reference_policy_logprobs_calculation", False)
        if not _uses_megatron(values):
            return cls._of_dtensor(values, gpus, int(policy) + int(reference))
        here, default = "policy.megatron_cfg", None  # None: the setting is required
        recompute = values.get(f"{here}.recompute_granularity", "full") == "full"
        return cls(
            gpus=gpus,
            tp=values.integer(f"{here}.tensor_model_parallel_size", default),
            pp=values.integer(f"{here}.pipeline_model_parallel_size", default),
            cp=values.integer(f"{here}.context_parallel_size", 1),
            ep=values.integer(f"{here}.expert_model_parallel_size", 1),
            etp=values.integer(f"{here}.expert_tensor_parallel_size", 1),
            first_stage=values.optional_integer(f"{here}.num_layers_in_first_pipeline_stage"),
            last_stage=values.optional_integer(f"{here}.num_layers_in_last_pipeline_stage"),
            sequence_parallel=bool(values.get(f"{here}.sequence_parallel", False)),
            fp8=bool(values.get(f"{here}.fp8_cfg.enabled", False)),
            recompute=bool(values.get(f"{here}.activation_checkpointing", False)) and recompute,
            logprob_passes=int(policy) + int(reference),
            lora=Lora.of(values.section(f"{here}.peft")),
        )

    @classmethod
    def _of_dtensor(cls, values: Values, gpus: int, logprob_passes: int) -> LearnerFacts:
        """Read the layout of DTensor, which has no pipeline. Without any learner all sizes are 1.

        Its LoRA is not read, because only the estimate of memory asks for it, and that is for Megatron.
        """
        here = name_other_learner(values)
        tp, cp, ep = (values.integer(f"{here}.{name}_parallel_size", 1) for name in ("tensor", "context", "expert"))
        return cls(
            gpus=gpus,
            tp=tp,
            pp=1,
            cp=cp,
            ep=ep,
            etp=1,
            first_stage=None,
            last_stage=None,
            sequence_parallel=bool(values.get(f"{here}.sequence_parallel", False)),
            fp8=False,
            recompute=bool(values.get(f"{here}.activation_checkpointing", False)),
            logprob_passes=logprob_passes,
            lora=None,
        )

    @property
    def model_parallel(self) -> int:
        """GPUs that share one replica."""
        return self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return max(1, self.gpus // self.model_parallel)

    @property
    def expert_replicas(self) -> int:
        """Data-parallel replicas of the experts."""
        return max(1, self.gpus // (self.ep * self.etp * self.pp))

    @property
    def length_unit(self) -> int:
        """The number of tokens of a row must be a multiple of this."""
        return (self.tp if self.sequence_parallel else 1) * (2 * self.cp if self.cp > 1 else 1)

    @property
    def pack_unit(self) -> int:
        """Packs (or rows) are padded to a multiple of this many tokens.

        With FP8 each rank's part of a pack must be a multiple of 128, because cuBLAS scales blocks of that size.
        Context parallelism cuts a pack into 2 cp parts, and tensor parallelism each part into tp.
        """
        if self.fp8:
            return lcm(self.length_unit, 128 * (2 * self.cp if self.cp > 1 else 1) * self.tp)
        return self.length_unit

    def stage_layers(self, layers: int) -> tuple[int, int]:
        """Return the layers of the first and of the last pipeline stage, rounded up where they do not divide."""
        given = [n for n in (self.first_stage, self.last_stage) if n is not None]
        stages = self.pp - len(given)
        each = -(-(layers - sum(given)) // stages) if stages > 0 else 0
        return (
            self.first_stage if self.first_stage is not None else each,
            self.last_stage if self.last_stage is not None else each,
        )


@dataclass(frozen=True, slots=True)
class NemoConfig:
    """What this project derives from a resolved NeMo-RL config.

    Attributes:
        values: the config itself, for keys that only one reader needs.
        card: its GPUs.
        model_name: a folder or a repository of the hub.
        nodes: nodes of the job.
        gpus_per_node: GPUs of a node.
        loop: NeMo-RL's training loop.
        rollout: what a step samples.
        batch: how the learner cuts the rows of a step.
        engine: vLLM.
        learner: layout of the learner.
        optimizer_offload: one of OFFLOADS.
    """

    values: Values
    card: Card
    model_name: str
    nodes: int
    gpus_per_node: int
    loop: Loop
    rollout: RolloutFacts
    batch: BatchFacts
    engine: EngineFacts
    learner: LearnerFacts
    optimizer_offload: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NemoConfig:
        """Read a resolved NeMo-RL config. Raises UserError for what is missing or of a wrong kind."""
        values = Values(config)
        # Megatron's layout and memory are computed from these sizes, so there they are required (None).
        default = None if _uses_megatron(values) else 1
        nodes = values.integer("cluster.num_nodes", default)
        gpus_per_node = values.integer("cluster.gpus_per_node", default)
        rollout, engine = RolloutFacts.of(values), EngineFacts.of(values, nodes, gpus_per_node)
        gpus = nodes * gpus_per_node
        return cls(
            values=values,
            card=choose_card(config),
            model_name=str(values.get("policy.model_name", "")),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            loop=Loop.of(values),
            rollout=rollout,
            batch=BatchFacts.of(values, rollout.rows),
            engine=engine,
            learner=LearnerFacts.of(values, gpus if engine.gpus == gpus else gpus - engine.gpus),
            optimizer_offload=str(values.get(OFFLOAD, OFFLOADS[0])),
        )

    @classmethod
    def of_megatron(cls, config: Mapping[str, Any]) -> NemoConfig:
        """Return the same for a reader that needs Megatron's layout. Raises UserError for another learner."""
        if not _uses_megatron(Values(config)):
            raise UserError(
                "policy.megatron_cfg.enabled=false: these recipes train with Megatron; set it to true (and "
                f"{name_other_learner(Values(config))}.enabled to false)",
                key="policy.megatron_cfg.enabled",
            )
        return cls.of(config)

    @property
    def dtensor(self) -> bool:
        """Whether the learner is DTensor, and not Megatron."""
        return not _uses_megatron(self.values)

    @property
    def colocated(self) -> bool:
        """Whether learner and engine share their GPUs."""
        return bool(self.values.get("policy.generation.colocated.enabled", True))

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def pack_tokens(self) -> int:
        """Tokens of one training micro-batch with its padding, before context parallelism splits it."""
        tokens = self.batch.micro_batch_tokens(self.batch.micro_rows, self.batch.train_tokens)
        return -(-tokens // self.learner.pack_unit) * self.learner.pack_unit

    @property
    def logprob_tokens(self) -> int:
        """Tokens of one micro-batch of the pass for log-probabilities, before context parallelism splits it.

        Its padding is left out, because it is less than `pack_unit` and this pass keeps the activations of one layer.
        """
        return self.batch.micro_batch_tokens(self.batch.logprob_rows, self.batch.logprob_tokens)


def name_other_learner(values: Values) -> str:
    """The section of the learner that is not Megatron: DTensor, which v0.8.0 calls Automodel (pull request 4282)."""
    return "policy.dtensor_cfg" if values.get("policy.automodel_cfg") is None else "policy.automodel_cfg"


def _uses_megatron(values: Values) -> bool:
    return bool(values.get("policy.megatron_cfg.enabled", False))
