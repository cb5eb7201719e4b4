"""Run NeMo-RL's own ``grpo_train`` on a CPU in seconds.

Real: the training loop, rollouts, loss, advantage estimator, data loader, logger, checkpoint manager, configuration
(the YAML of NeMo-RL's own example, with overrides), Ray environments. Tiny: the policy, the engine, the data set.

    record = run_grpo(tmp_path, steps=3)
    record = run_grpo(tmp_path, steps=6, resume=True, hooks=lambda parts: reinforce_ada(parts.master_config, ...))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nemo_rl
import nemo_rl.algorithms.grpo as grpo
import ray
import torch
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
from nemo_rl.utils.logger import Logger, LoggerInterface
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader

from nemo_support.environment import environment
from nemo_support.tiny_generation import Draw, GenerationLog, Labels, TinyGeneration, WeightChannel, seeded_labels
from nemo_support.tiny_model import tiny_model, tiny_tokenizer
from nemo_support.tiny_policy import TinyPolicy

EXAMPLE = Path(nemo_rl.__file__).parents[1] / "examples" / "configs" / "grpo_math_1B.yaml"
TASK = "tiny"
RATES = (0.1, 0.3, 0.5, 0.9)
TRAIN_PROMPTS = {f"p{index}=": RATES[index % len(RATES)] for index in range(10, 26)}
VALIDATION_PROMPTS = {f"v{index}=": RATES[index % len(RATES)] for index in range(10, 14)}

SETTINGS: dict[str, Any] = {
    "grpo.num_prompts_per_step": 4,
    "grpo.num_generations_per_prompt": 4,
    "grpo.max_num_epochs": 100,
    "grpo.val_period": 2,
    "grpo.val_at_start": True,
    "grpo.max_val_samples": 4,
    "grpo.val_batch_size": 4,
    "grpo.seed": 7,
    "loss_fn.reference_policy_kl_penalty": 0.0,
    "grpo.skip_reference_policy_logprobs_calculation": True,
    "policy.model_name": "tiny",
    "policy.train_global_batch_size": 16,
    "policy.train_micro_batch_size": 4,
    "policy.max_total_sequence_length": 32,
    "policy.make_sequence_length_divisible_by": 1,
    "policy.optimizer.kwargs.lr": 0.01,
    "policy.generation.max_new_tokens": 8,
    "policy.generation.vllm_cfg.enable_vllm_metrics_logger": False,
    "data.num_workers": 0,
    "env": {"should_use_nemo_gym": False},
    "checkpointing.save_period": 1,
    "checkpointing.keep_top_k": 1000,
    "logger.tensorboard_enabled": True,
    "logger.monitor_gpus": False,
}
"""Overrides on NeMo-RL's example, dotted key by dotted key."""


class TinyPrompts(torch.utils.data.Dataset):
    """Prompts as NeMo-RL's data processors make them (``DatumSpec``)."""

    def __init__(self, prompts: Sequence[str], tokenizer: Any) -> None:
        self._prompts = list(prompts)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        prompt = self._prompts[index]
        token_ids = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
        return {
            "message_log": [{"role": "user", "content": prompt, "token_ids": token_ids}],
            "length": len(token_ids),
            "extra_env_info": {"prompt": prompt},
            "loss_multiplier": 1.0,
            "idx": index,
            "task_name": TASK,
        }


class MetricRecorder(LoggerInterface):
    """A back end of NeMo-RL's logger that keeps everything: ``metrics[step]["train/loss"]``."""

    def __init__(self) -> None:
        self.metrics: dict[int, dict[str, Any]] = {}

    def log_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        self.metrics.setdefault(step, {}).update({f"{prefix}/{name}": value for name, value in metrics.items()})

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Not needed here."""

    def log_histogram(self, histogram: list[Any], step: int, name: str) -> None:
        """Not needed here."""

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """Not needed here."""


@dataclass(slots=True)
class GrpoParts:
    """Everything that ``grpo_train`` takes, assembled as NeMo-RL's ``setup`` does it."""

    config: dict[str, Any]
    master_config: Any
    policy: TinyPolicy
    generation: TinyGeneration
    dataloader: StatefulDataLoader
    val_dataloader: StatefulDataLoader
    tokenizer: Any
    loss_fn: ClippedPGLossFn
    task_to_env: dict[str, Any]
    val_task_to_env: dict[str, Any]
    logger: Logger
    checkpointer: CheckpointManager
    save_state: Any
    recorder: MetricRecorder


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run did. ``batches`` are the training batches; ``*_rows`` the rows that the environments saw, per call."""

    losses: list[float]
    metrics: dict[int, dict[str, Any]]
    train_rows: list[int]
    validation_rows: list[int]
    batches: list[dict[str, torch.Tensor]]
    logprob_lengths: list[torch.Tensor]
    generation: GenerationLog
    checkpoints: list[Path]
    weights: dict[str, torch.Tensor]
    parts: GrpoParts = field(repr=False)

    def draws(self, prompts: Mapping[str, Any]) -> list[Draw]:
        """The responses of these prompts (TRAIN_PROMPTS, VALIDATION_PROMPTS) in the order of their completion."""
        return [draw for draw in self.generation.draws if draw.prompt in prompts]


Hooks = Callable[[GrpoParts], AbstractContextManager[Any]]


def no_hooks(parts: GrpoParts) -> AbstractContextManager[None]:
    """NeMo-RL as it is."""
    return nullcontext()


def make_config(
    folder: Path, steps: int, overrides: Mapping[str, Any] | None = None, async_engine: bool = False
) -> dict[str, Any]:
    """NeMo-RL's example configuration with SETTINGS, the run's own folders, and ``overrides`` by dotted key."""
    register_omegaconf_resolvers()
    config = load_config(EXAMPLE)
    run = {
        "grpo.max_num_steps": steps,
        "policy.generation.vllm_cfg.async_engine": async_engine,
        "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
        "logger.log_dir": str(folder / "logs"),
    }
    for key, value in {**SETTINGS, **run, **(overrides or {})}.items():
        OmegaConf.update(config, key, value, merge=not isinstance(value, dict), force_add=True)
    return OmegaConf.to_container(config, resolve=True)


def build(
    config: dict[str, Any],
    *,
    labels: Labels | None = None,
    train_prompts: Mapping[str, float] = TRAIN_PROMPTS,
    validation_prompts: Mapping[str, float] = VALIDATION_PROMPTS,
    seconds_per_token: float = 0.0,
    fails: Callable[[str, int], bool] = lambda prompt, draw: False,
    before_train: Callable[[int], None] = lambda step: None,
) -> GrpoParts:
    """Assemble a run in the order of NeMo-RL's ``setup``; it continues from the newest checkpoint of its folder.

    ``labels`` default to the pass rates of the prompts; ``before_train(k)`` is called before training step k of this
    process, which is where a test kills it.
    """
    master_config = grpo.MasterConfig(**config)
    loss_section = master_config["loss_fn"] if isinstance(master_config, dict) else master_config.loss_fn
    set_seed(config["grpo"]["seed"])
    logger = Logger(config["logger"])
    recorder = MetricRecorder()
    logger.loggers.append(recorder)
    checkpointer = CheckpointManager(config["checkpointing"])
    last_checkpoint = checkpointer.get_latest_checkpoint_path()
    tokenizer = tiny_tokenizer()
    dataloader = StatefulDataLoader(
        TinyPrompts(list(train_prompts), tokenizer),
        batch_size=int(config["grpo"]["num_prompts_per_step"] * config["grpo"]["batch_multiplier"]),
        shuffle=config["data"]["shuffle"],
        collate_fn=rl_collate_fn,
        drop_last=True,
        num_workers=config["data"]["num_workers"],
    )
    if last_checkpoint is not None:
        dataloader.load_state_dict(torch.load(Path(last_checkpoint) / "train_dataloader.pt"))
    val_dataloader = StatefulDataLoader(
        TinyPrompts(list(validation_prompts), tokenizer),
        batch_size=config["grpo"]["val_batch_size"],
        shuffle=False,
        collate_fn=rl_collate_fn,
        num_workers=config["data"]["num_workers"],
    )
    channel = WeightChannel()
    weights_path, optimizer_path = checkpointer.get_resume_paths(last_checkpoint)
    return GrpoParts(
        config=config,
        master_config=master_config,
        policy=TinyPolicy(
            config["policy"],
            tiny_model(len(tokenizer), seed=1),
            tokenizer,
            channel,
            weights_path=weights_path,
            optimizer_path=optimizer_path,
            before_train=before_train,
        ),
        generation=TinyGeneration(
            config["policy"]["generation"],
            tiny_model(len(tokenizer), seed=2),
            tokenizer,
            channel,
            max_length=config["policy"]["max_total_sequence_length"],
            labels=labels or seeded_labels({**train_prompts, **validation_prompts}),
            seconds_per_token=seconds_per_token,
            fails=fails,
        ),
        dataloader=dataloader,
        val_dataloader=val_dataloader,
        tokenizer=tokenizer,
        loss_fn=ClippedPGLossFn(loss_section),
        task_to_env={TASK: environment("train")},
        val_task_to_env={TASK: environment("validation")},
        logger=logger,
        checkpointer=checkpointer,
        save_state=_save_state(checkpointer.load_training_info(last_checkpoint)),
        recorder=recorder,
    )


def _save_state(loaded: dict[str, Any] | None) -> Any:
    """The loop's counters: a dict up to v0.7, a dataclass with its own loader after it."""
    if hasattr(grpo, "_get_grpo_save_state"):
        return grpo._get_grpo_save_state(loaded)
    return loaded or grpo._default_grpo_save_state()


def train(parts: GrpoParts, hooks: Hooks = no_hooks) -> RunRecord:
    """Run ``grpo_train`` inside ``hooks(parts)`` until its last step, and say what happened."""
    try:
        with hooks(parts):
            grpo.grpo_train(
                parts.policy,
                parts.generation,
                parts.dataloader,
                parts.val_dataloader,
                parts.tokenizer,
                parts.loss_fn,
                parts.task_to_env,
                parts.val_task_to_env,
                parts.logger,
                parts.checkpointer,
                parts.save_state,
                parts.master_config,
            )
    finally:
        if hasattr(parts.checkpointer, "shutdown"):  # after v0.7: checkpoints are renamed in the background
            parts.checkpointer.shutdown()
    steps = parts.recorder.metrics
    return RunRecord(
        losses=[float(steps[step]["train/loss"]) for step in sorted(steps) if "train/loss" in steps[step]],
        metrics=steps,
        train_rows=ray.get(parts.task_to_env[TASK].rows.remote()),
        validation_rows=ray.get(parts.val_task_to_env[TASK].rows.remote()),
        batches=parts.policy.batches,
        logprob_lengths=parts.policy.logprob_lengths,
        generation=parts.generation.log,
        checkpoints=sorted(parts.checkpointer.checkpoint_dir.glob("step_*"), key=lambda path: int(path.name[5:])),
        weights={name: tensor.clone() for name, tensor in parts.policy.model.state_dict().items()},
        parts=parts,
    )


def run_grpo(
    folder: Path,
    steps: int,
    config_overrides: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    async_engine: bool = False,
    hooks: Hooks = no_hooks,
    **build_options: Any,
) -> RunRecord:
    """Train until step ``steps`` in ``folder``; ``resume`` continues what is there and is needed exactly then.

    ``build_options`` are those of :func:`build`.
    """
    config = make_config(folder, steps, config_overrides, async_engine)
    found = any(Path(config["checkpointing"]["checkpoint_dir"]).glob("step_*"))
    if found != resume:
        raise ValueError(f"resume={resume}, but {folder} has {'checkpoints' if found else 'no checkpoint'}")
    return train(build(config, **build_options), hooks)
