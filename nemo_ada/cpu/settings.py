"""The YAML of a run on the CPU back end. Key names follow NeMo-RL wherever it has one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.load import load_words, resolve_config
from nemo_ada.config.parsing import Count, CountOrNone, Section, Size, parse
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.sampling.plan import MAX_RESPONSES
from nemo_ada.standing import get_whole_path
from nemo_ada.tasks.prompting import PromptFormat
from nemo_ada.tasks.settings import TaskSettings


class AsyncSettings(Section):
    """The responses of the next step are drawn while this step is trained on. The keys are those of NeMo-RL."""

    enabled: bool = False
    """Draw the next step's responses while this step is trained on."""
    max_trajectory_age_steps: Annotated[int, Field(ge=0, le=1)] = 1
    """Steps by which the weights that drew a response may be older than those that train on it. 0 is synchronous."""


class GrpoSettings(Section):
    """The training loop."""

    num_prompts_per_step: Size = 64
    """Prompts per step."""
    num_generations_per_prompt: Annotated[int, Field(ge=1, le=MAX_RESPONSES)] = 4
    """n, the number of rows per prompt."""
    max_num_steps: Count = 150
    """Training steps of the run."""
    val_period: CountOrNone = 25
    """Steps between evaluations. With 0 the run evaluates only before the first and after the last step."""
    val_at_start: bool = True
    """Evaluate before the first step."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the prompt order, the responses and the row selection."""
    async_grpo: AsyncSettings = AsyncSettings()
    """Asynchronous sampling."""


class LossSettings(Section):
    """Clipped policy gradient, averaged over tokens (algorithm.md section 4)."""

    ratio_clip_min: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 minus this value."""
    ratio_clip_max: NonNegativeFloat = 0.28
    """The ratio is clipped above at 1 plus this value."""
    ratio_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Bound of the ratio for negative advantages (dual clip). null does not bound it."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus (paper 1e-4, the authors' scripts 0). With a bonus, rows without advantage are
    trained on, too."""


class ModelSettings(Section):
    """A small Qwen2-style decoder. It is created and trained by supervision when policy.model_name is null."""

    hidden_size: Size = 128
    """Width of the hidden states."""
    ffn_hidden_size: Size = 256
    """Width of the feed-forward layer."""
    num_layers: Size = 2
    """Number of decoder layers."""
    num_attention_heads: Size = 4
    """Number of attention heads."""
    num_query_groups: Size = 2
    """Number of key-value heads."""


class OptimizerSettings(Section):
    """The settings of Adam."""

    lr: PositiveFloat = 1e-4
    """Learning rate."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    adam_eps: PositiveFloat = 1e-8
    """A small number that is added to the denominator."""


class SchedulerSettings(Section):
    """The learning rate is constant after a linear warm-up."""

    lr_warmup_iters: CountOrNone = 0
    """Training steps of the warm-up (paper: 10). Steps count, not updates, as in NeMo-RL's Megatron worker."""


class MegatronSettings(Section):
    """Parallel layout and optimizer of the learner."""

    tensor_model_parallel_size: Size = 1
    """Number of ranks that share each layer (TP)."""
    pipeline_model_parallel_size: Size = 1
    """Number of ranks that share the stack of layers (PP)."""
    optimizer: OptimizerSettings = OptimizerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()


class GenerationSettings(Section):
    """The settings of how the engine draws responses."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""
    max_new_tokens: Size | None = None
    """Tokens of the longest response (default: the task's)."""
    max_num_seqs: Size = 256
    """Responses that decode at the same time."""
    stop_at_line_end: bool = False
    """Whether a response also ends with its first line, as answers to few-shot prompts do."""


class PackingSettings(Section):
    """The learner computes tokens that rows of a micro-batch share only once (policy.model_name only)."""

    enabled: bool = True
    """Whether to pack. Without packing, train_micro_batch_size rows at a time are padded to the longest."""
    train_mb_tokens: Size = 1024
    """Largest number of different tokens in a micro-batch."""


class PolicySettings(Section):
    """The model and how it is trained."""

    model_name: str | None = None
    """Folder of a Llama, Qwen2 or Qwen3 model to start from. null creates a small model from `model` and `base`."""
    tokenizer: PromptFormat = PromptFormat()
    model: ModelSettings = ModelSettings()
    megatron_cfg: MegatronSettings = MegatronSettings()
    data_parallel_size: Size = 1
    """Number of replicas of the learner (DP)."""
    train_global_batch_size: Count | None = None
    """Rows per optimizer step (default: all rows of a step, which gives one update)."""
    train_micro_batch_size: Size = 128
    """Rows per forward pass and rank."""
    sequence_packing: PackingSettings = PackingSettings()
    threads: Size = 1
    """Threads of the engine and of every learner rank. More than one helps from about ten million parameters on."""
    max_grad_norm: NonNegativeFloat = 1.0
    """The gradient's norm is clipped to this value. With 0 it is not clipped."""
    generation: GenerationSettings = GenerationSettings()


class BaseSettings(Section):
    """The supervised base model. It is trained once per setting and cached."""

    steps: CountOrNone = 700
    """Supervised optimizer steps."""
    batch_size: Size = 64
    """Demonstrations per step."""
    lr: PositiveFloat = 2e-3
    """Peak learning rate (warm-up over 5 % of the steps, then linear decay to 0)."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the initial weights and of the demonstrations' order."""
    cache_dir: Annotated[str, AfterValidator(get_whole_path), Field(validate_default=True)] = ".cache/base"
    """Folder of the trained base models and the generated problems."""


class ValidationSettings(Section):
    """The settings of the evaluation on held-out prompts."""

    responses: Size = 4
    """Responses per held-out prompt. Accuracy is their mean, and pass@k is over them."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 is greedy."""
    max_prompts: Count | None = None
    """Number of held-out prompts (default: all)."""


class CheckpointSettings(Section):
    """The settings of the checkpoints, one folder per saved step."""

    enabled: bool = True
    """Whether to write checkpoints."""
    save_period: Count = 50
    """Steps between checkpoints. The last step is always saved."""
    keep: Size = 2
    """Number of the newest checkpoints that stay on disk."""


class LoggerSettings(Section):
    """The settings of what is written beside metrics.jsonl."""

    tensorboard: bool = True
    """Whether to write TensorBoard events."""
    gradient_cosine: bool = False
    """Whether every update also compares the gradients of two halves of its prompts (`ada/gradient_cosine`,
    `ada/gradient_signal`, `ada/gradient_noise`). It needs one learner rank. The sums are rounded differently, so the
    weights differ in their last bits."""


class RunConfig(Section):
    """A run on the CPU back end."""

    backend: Literal["embedded"] = "embedded"
    run_dir: Annotated[str, Field(validate_default=True)] = "runs/default"
    """Folder of the run. The name must not be empty."""
    resume: Literal["never", "auto"] = "never"
    """`auto` continues from the newest complete checkpoint in run_dir, or starts anew when there is none."""
    changed_inputs: bool = False
    """Whether a resumed run may go on where the content of its data, tokenizer, template or own code has changed."""
    stall_seconds: PositiveFloat = 900.0
    """Longest wait for one answer of the engine or the learner, in seconds. Then stacks are written and the run ends.
    """
    task: TaskSettings
    """The problems and their verifier."""
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
        return get_whole_path(run_dir)

    @field_validator("reinforce_ada", mode="before")
    @classmethod
    def _with_preset(cls, section: Any) -> Any:
        return parse_ada_settings(section) if isinstance(section, dict) else section

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
        # Refuses settings that contradict each other. The real number of tokens is not known before the task is made.
        self.reinforce_ada.plan(self.grpo.num_generations_per_prompt, max_new_tokens=1)
        self.reinforce_ada.check_rows(self.grpo.num_generations_per_prompt)
        return self

    @property
    def updates_per_step(self) -> int:
        """Number of optimizer steps per training step."""
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        return rows // (self.policy.train_global_batch_size or rows)

    @property
    def folder(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration of a CPU run; `overrides` may name overlays, too."""
    return parse(RunConfig, resolve_config(load_words(path, overrides)))
