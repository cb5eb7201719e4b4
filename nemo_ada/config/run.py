"""The YAML of a run on the embedded (CPU) back end. Key names follow NeMo-RL wherever it has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from nemo_ada.config.ada import MAX_RESPONSES, AdaSettings
from nemo_ada.config.parsing import Count, CountOrNone, Section, Size
from nemo_ada.config.presets import ada_settings
from nemo_ada.tasks.prompting import Template
from nemo_ada.tasks.settings import TaskSettings


class AsyncSettings(Section):
    """Drawing the next step's responses while this step is trained on; keys as in NeMo-RL."""

    enabled: bool = False
    """Draw ahead."""
    max_trajectory_age_steps: Annotated[int, Field(ge=0, le=1)] = 1
    """Updates that may lie between the weights that drew a response and its own update; 0 draws nothing ahead."""


class GrpoSettings(Section):
    """The training loop."""

    num_prompts_per_step: Size = 64
    """Prompts per step."""
    num_generations_per_prompt: Annotated[int, Field(ge=1, le=MAX_RESPONSES)] = 4
    """n: rows kept per prompt."""
    max_num_steps: Count = 150
    """Steps of the run."""
    val_period: CountOrNone = 25
    """Steps between evaluations; 0 = only before the first and after the last step."""
    val_at_start: bool = True
    """Evaluate before the first step."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of prompt order, responses and row selection."""
    async_grpo: AsyncSettings = AsyncSettings()
    """Asynchronous sampling."""


class LossSettings(Section):
    """Clipped policy gradient, averaged over tokens (algorithm.md section 4)."""

    ratio_clip_min: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The ratio is clipped at 1 - this."""
    ratio_clip_max: NonNegativeFloat = 0.28
    """The ratio is clipped at 1 + this."""
    ratio_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: bound of the loss for negative advantages; null = none."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Entropy bonus (paper 1e-4, the authors' scripts 0). With it, rows without advantage are trained on, too."""


class ModelSettings(Section):
    """A small Qwen2-style decoder, made and trained by supervision when policy.model_name is null."""

    hidden_size: Size = 128
    """Width."""
    ffn_hidden_size: Size = 256
    """Width of the feed-forward layer."""
    num_layers: Size = 2
    """Decoder layers."""
    num_attention_heads: Size = 4
    """Attention heads."""
    num_query_groups: Size = 2
    """Key-value heads."""


class OptimizerSettings(Section):
    """Adam."""

    lr: PositiveFloat = 1e-4
    """Learning rate."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """First moment's decay."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Second moment's decay."""
    adam_eps: PositiveFloat = 1e-8
    """Denominator's epsilon."""


class SchedulerSettings(Section):
    """Constant learning rate after a linear warm-up."""

    lr_warmup_iters: CountOrNone = 0
    """Training steps of the warm-up (paper: 10), whatever the number of updates per step. NeMo-RL's Megatron worker
    counts them so, too."""


class MegatronSettings(Section):
    """Parallel layout and optimizer of the learner."""

    tensor_model_parallel_size: Size = 1
    """TP: ranks that share each layer."""
    pipeline_model_parallel_size: Size = 1
    """PP: ranks that share the stack of layers."""
    optimizer: OptimizerSettings = OptimizerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()


class GenerationSettings(Section):
    """Responses."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""
    max_new_tokens: Size | None = None
    """Longest response, tokens; null takes the task's."""
    max_num_seqs: Size = 256
    """Responses that decode at the same time."""
    stop_at_line_end: bool = False
    """A response also ends with its first line, as answers to few-shot prompts do."""


class TokenizerSettings(Section):
    """How a task's prompt is shown to the model of policy.model_name. Small models made here read the bare prompt."""

    template: Template = "auto"
    """`auto` uses the folder's chat template where it has one, `chat` needs one, `plain` gives the prompt alone."""
    system: str | None = None
    """System message of a chat."""


class PackingSettings(Section):
    """Micro-batches in which tokens that rows have in common are computed once (policy.model_name only)."""

    enabled: bool = True
    """Pack; false pads rows to the longest, train_micro_batch_size at a time."""
    train_mb_tokens: Size = 1024
    """Different tokens of a micro-batch."""


class PolicySettings(Section):
    """The model and how it is trained."""

    model_name: str | None = None
    """Folder of a Llama, Qwen2 or Qwen3 model to start from; null makes a small model from `model` and `base`."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    megatron_cfg: MegatronSettings = MegatronSettings()
    data_parallel_size: Size = 1
    """DP: replicas of the learner."""
    train_global_batch_size: Count | None = None
    """Rows per optimizer step; null takes all rows of a step (one update)."""
    train_micro_batch_size: Size = 128
    """Rows per forward pass and rank."""
    sequence_packing: PackingSettings = PackingSettings()
    threads: Size = 1
    """Threads of the engine and of every learner rank; more help from some ten million parameters on."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm is clipped to this; 0 = never."""
    generation: GenerationSettings = GenerationSettings()


class BaseSettings(Section):
    """The supervised base model, trained once per setting and cached."""

    steps: CountOrNone = 700
    """Supervised optimizer steps."""
    batch_size: Size = 64
    """Demonstrations per step."""
    lr: PositiveFloat = 2e-3
    """Peak learning rate (warm-up over 5 % of the steps, then linear decay to 0)."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the initial weights and of the demonstrations' order."""
    cache_dir: str = ".cache/base"
    """Where trained bases and generated problems are kept."""


class ValidationSettings(Section):
    """Held-out evaluation."""

    responses: Size = 4
    """Responses per held-out prompt (accuracy is their mean, pass@k is over them)."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 = greedy."""
    max_prompts: Count | None = None
    """Held-out prompts used; null = all."""


class CheckpointSettings(Section):
    """Step folders."""

    enabled: bool = True
    """Write checkpoints."""
    save_period: Count = 50
    """Steps between them (the last step is always saved)."""
    keep: Size = 2
    """Newest ones that are kept."""


class LoggerSettings(Section):
    """What is written beside metrics.jsonl."""

    tensorboard: bool = True
    """TensorBoard events."""


class RunConfig(Section):
    """A run on the embedded back end."""

    backend: Literal["embedded"] = "embedded"
    run_dir: str = "runs/default"
    """Folder of the run; not empty."""
    resume: Literal["never", "auto"] = "never"
    """`auto` continues from the newest complete checkpoint in run_dir, or starts anew when there is none."""
    stall_seconds: PositiveFloat = 900.0
    """Longest wait for one answer of the engine or the learner, seconds; then stacks are written and the run ends."""
    task: TaskSettings
    """Problems and their verifier."""
    grpo: GrpoSettings = GrpoSettings()
    reinforce_ada: AdaSettings
    loss_fn: LossSettings = LossSettings()
    policy: PolicySettings = PolicySettings()
    base: BaseSettings = BaseSettings()
    validation: ValidationSettings = ValidationSettings()
    checkpointing: CheckpointSettings = CheckpointSettings()
    logger: LoggerSettings = LoggerSettings()

    @field_validator("run_dir")
    @classmethod
    def _names_a_folder(cls, run_dir: str) -> str:
        if not run_dir.strip():
            raise ValueError("names no folder; runs/NAME would work")
        return run_dir

    @field_validator("reinforce_ada", mode="before")
    @classmethod
    def _with_preset(cls, section: Any) -> Any:
        return ada_settings(section) if isinstance(section, dict) else section

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        size = self.policy.train_global_batch_size
        if size is not None and rows % size:
            raise ValueError(
                f"policy.train_global_batch_size={size} does not divide num_prompts_per_step * "
                f"num_generations_per_prompt = {rows}; null takes all of them"
            )
        return self

    @model_validator(mode="after")
    def _consistent_sampling(self) -> Self:
        self.reinforce_ada.plan(self.grpo.num_generations_per_prompt, max_new_tokens=1)
        self.reinforce_ada.check_rows(self.grpo.num_generations_per_prompt)
        return self

    @model_validator(mode="after")
    def _enough_candidates(self) -> Self:
        ada, prompts = self.reinforce_ada, self.grpo.num_prompts_per_step
        if 0 < ada.candidate_prompts <= prompts + ada.reserve_prompts:
            raise ValueError(
                f"reinforce_ada.candidate_prompts={ada.candidate_prompts} leaves no choice to a step of {prompts} "
                f"prompts (grpo.num_prompts_per_step) and {ada.reserve_prompts} reserve prompts; set it above "
                f"{prompts + ada.reserve_prompts}, or to 0 to take prompts as they come"
            )
        return self

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps per training step."""
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        return rows // (self.policy.train_global_batch_size or rows)

    @property
    def folder(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)
