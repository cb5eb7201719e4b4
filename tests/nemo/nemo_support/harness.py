"""Run NeMo-RL's own ``grpo_train`` on a CPU in seconds.

Real: the training loop, rollouts, loss, advantage estimator, data loader, logger, checkpoint manager, configuration
(the YAML of NeMo-RL's own example, with overrides), Ray environments. Tiny: the policy, the engine, the data set.

    record = run_grpo(tmp_path, steps=6, resume=True, hooks=lambda parts: reinforce_ada(parts.master_config, ...))
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
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

from nemo_ada.nemo import reinforce_ada
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
OURS: dict[str, Any] = {
    "grpo.normalize_rewards": False,
    "grpo.use_leave_one_out_baseline": False,
}
"""More overrides, for Reinforce-Ada: the example sets both to true."""


class TinyPrompts(torch.utils.data.Dataset):
    """Prompts as NeMo-RL's data processors make them (``DatumSpec``)."""

    def __init__(self, prompts: list[str], tokenizer: Any, tasks: Sequence[str] = (TASK,)) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._tasks = tasks

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
            "task_name": self._tasks[index % len(self._tasks)],
        }


NO_DIVISION = {
    f"{section}.{key}": False
    for section in ("grpo", "grpo.adv_estimator")
    for key in ("normalize_rewards", "use_leave_one_out_baseline")
}
"""NeMo-RL's own GRPO with the baseline of preset `grpo` and no division by the standard deviation."""
PENALTY = {"loss_fn.reference_policy_kl_penalty": 1e-12, "grpo.skip_reference_policy_logprobs_calculation": False}
"""Weighing 1e-12, it changes nothing but that rows without advantage stay in the update."""
ALL_ROWS = {"loss_fn.reference_policy_kl_penalty": 0.01, "grpo.skip_reference_policy_logprobs_calculation": False}
"""With a penalty the rows without an advantage stay in the loss."""
OF_ROWS_IN_THE_LOSS = (
    "train/advantages/", "train/total_num_tokens", "train/num_valid_samples", "train/approx_entropy",
    "train/global_valid",
)  # fmt: skip
"""Metrics that change where rows without an advantage leave the loss. together.md says what they mean then."""
CLOCKED = ("timing/", "per_sec", "_time", "seconds", "latency", "memory", "utilization", "performance/")
"""Parts of the names of metrics that a clock decides, so that only their names are compared."""


def assert_same_metrics(ours: RunRecord, own: RunRecord, but: tuple[str, ...] = ()) -> None:
    """Every metric that NeMo-RL's loop logs without the hooks is there with them, and has its value.

    Both runs draw the same groups, so what differs comes from the hooks. `but` are beginnings of names that may differ.
    """
    for step, theirs in own.metrics.items():
        missing = theirs.keys() - ours.metrics[step].keys()
        assert not missing, (step, missing)
        pairs = {name: (ours.metrics[step][name], value) for name, value in theirs.items()}
        other = {
            name: (mine, value)
            for name, (mine, value) in pairs.items()
            if not (any(word in name for word in CLOCKED) or name.startswith(but) or _equal(mine, value))
        }
        assert not other, (step, other)


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal up to rounding. Lists may be in another order."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, _ordered(one), _ordered(other)))
    if isinstance(one, int | float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-7) or (one != one and other != other)
    return bool(one == other) if isinstance(one, str | dict | None) else True


def _ordered(value: Any) -> Any:
    """Sort lists, and lists of lists."""
    return sorted(map(_ordered, value)) if isinstance(value, list | tuple) else value


def rows_of(batch: Mapping[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Rows of a training batch: their tokens, masks, engine log-probabilities and advantages, to the bit."""
    rows = []
    for row, length in enumerate(batch["input_lengths"].tolist()):
        counted = batch["token_mask"][row, :length] * batch["sample_mask"][row] != 0
        columns = (batch[name][row, :length][counted].tolist() for name in ("generation_logprobs", "advantages"))
        tokens = batch["input_ids"][row, :length].tolist()
        rows.append((tokens, counted.tolist(), float(batch["sample_mask"][row]), *columns))
    return rows


def hooks(parts: Any) -> AbstractContextManager[Any]:
    """Reinforce-Ada in a run."""
    return reinforce_ada(parts.master_config, checkpointer=parts.checkpointer)


class MetricRecorder(LoggerInterface):
    """A back end of NeMo-RL's logger that keeps everything: ``metrics[step]["train/loss"]``."""

    def __init__(self) -> None:
        self.metrics: dict[int, dict[str, Any]] = {}

    def log_metrics(self, metrics: dict[str, Any], step: int, prefix: str = "", *_: Any, **__: Any) -> None:
        self.metrics.setdefault(step, {}).update({f"{prefix}/{name}": value for name, value in metrics.items()})

    def log_hyperparams(self, *_: Any) -> None:
        """Not needed here."""

    log_histogram = log_plot = log_hyperparams


@dataclass
class RunRecord:
    """What a run did. ``batches`` are the training batches; ``*_rows`` the rows that the environments saw, per call."""

    losses: list[float]
    metrics: dict[int, dict[str, Any]]
    train_rows: list[int]
    validation_rows: list[int]
    batches: list[dict[str, torch.Tensor]]
    logprob_lengths: list[torch.Tensor]
    generation: GenerationLog | None
    checkpoints: list[Path]
    weights: dict[str, torch.Tensor]

    @property
    def trained(self) -> dict[int, dict[str, Any]]:
        """The metrics of each training step."""
        return {step: numbers for step, numbers in self.metrics.items() if "train/loss" in numbers}

    @property
    def sampler(self) -> dict[str, Any]:
        """The sampler's state in the last checkpoint, without what is measured in seconds."""
        content: dict[str, Any] = json.loads((self.checkpoints[-1] / "reinforce_ada.json").read_text())
        del content["sampler"]["latency"], content["sha256"]
        return content

    def column(self, name: str) -> list[Any]:
        """A metric of each training step."""
        return [numbers.get(f"train/{name}", 0) for _, numbers in sorted(self.trained.items())]

    def draws(self, prompts: Mapping[str, Any]) -> list[Draw]:
        """The responses of these prompts (TRAIN_PROMPTS, VALIDATION_PROMPTS) in the order of their completion."""
        return [draw for draw in self.generation.draws if draw.prompt in prompts]


def make_config(folder: Path, steps: int, overrides: Mapping[str, Any], async_engine: bool) -> dict[str, Any]:
    """NeMo-RL's example configuration with SETTINGS, the run's own folders, and ``overrides`` by dotted key."""
    register_omegaconf_resolvers()
    config = load_config(EXAMPLE)
    run = {
        "grpo.max_num_steps": steps,
        "policy.generation.vllm_cfg.async_engine": async_engine,
        "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
        "logger.log_dir": str(folder / "logs"),
    }
    for key, value in {**SETTINGS, **run, **overrides}.items():
        OmegaConf.update(config, key, value, merge=not isinstance(value, dict), force_add=True)
    return OmegaConf.to_container(config, resolve=True)


def loader(data: torch.utils.data.Dataset, size: int, **options: Any) -> Any:
    """A data loader as NeMo-RL's ``setup`` makes it."""
    return StatefulDataLoader(data, batch_size=size, collate_fn=rl_collate_fn, num_workers=0, **options)


def run_grpo(
    folder: Path,
    steps: int,
    overrides: Mapping[str, Any] | None = None,
    *,
    resume: bool | None = False,
    async_engine: bool = False,
    hooks: Callable[[Any], AbstractContextManager[Any]] = lambda parts: nullcontext(),
    labels: Labels | None = None,
    seconds_per_token: float = 0.0,
    fails: Callable[[str, int], bool] = lambda prompt, draw: False,
    before_train: Callable[[int], None] = lambda step: None,
    kinds: Mapping[str, str] = MappingProxyType({TASK: "plain"}),
    policy_class: Callable[..., TinyPolicy] = TinyPolicy,
    loop: Callable[..., None] = grpo.grpo_train,
    engine: Callable[[dict[str, Any], WeightChannel, Labels, int], Any] | None = None,
    data: Callable[..., torch.utils.data.Dataset] | None = None,
    environments: Callable[[], dict[str, Any]] | None = None,
) -> RunRecord:
    """Train until step ``steps`` in ``folder``; ``resume`` continues what is there and is needed exactly then.

    None continues what is there, if anything is.

    ``hooks`` gets the master_config and the checkpointer. ``labels`` default to the pass rates of the prompts;
    ``before_train(k)`` is called before training step k of this process, which is where a test kills it. ``kinds`` are
    the tasks of the training prompts, in turn, with the kind of environment of each. ``loop`` is NeMo-RL's trainer.
    ``engine`` takes the section of the engine, the channel of weights, labels and the longest sequence. ``data`` makes
    a data set of prompts. ``environments`` makes those of training, and again those of validation.
    """
    config = make_config(folder, steps, overrides or {}, async_engine)
    found = any(Path(config["checkpointing"]["checkpoint_dir"]).glob("step_*"))
    if resume is not None and found != resume:
        raise ValueError(f"resume={resume}, but {folder} has {'checkpoints' if found else 'no checkpoint'}")
    master_config, settings = grpo.MasterConfig(**config), config["grpo"]
    loss = master_config["loss_fn"] if isinstance(master_config, dict) else master_config.loss_fn
    set_seed(settings["seed"])
    logger, recorder = Logger(config["logger"]), MetricRecorder()
    logger.loggers.append(recorder)
    checkpointer = CheckpointManager(config["checkpointing"])
    newest = checkpointer.get_latest_checkpoint_path()
    weights_path, optimizer_path = checkpointer.get_resume_paths(newest)
    tokenizer, channel = tiny_tokenizer(), WeightChannel()
    size = int(settings["num_prompts_per_step"] * settings["batch_multiplier"])
    made = data or (lambda prompts, tasks=(TASK,): TinyPrompts(list(prompts), tokenizer, tasks))
    train = loader(made(TRAIN_PROMPTS, tuple(kinds)), size, shuffle=config["data"]["shuffle"], drop_last=True)
    if newest is not None:
        train.load_state_dict(torch.load(Path(newest) / "train_dataloader.pt"))
    policy = policy_class(
        config["policy"],
        tiny_model(len(tokenizer), seed=1),
        tokenizer,
        channel,
        weights_path=weights_path,
        optimizer_path=optimizer_path,
        before_train=before_train,
    )
    labels = labels or seeded_labels({**TRAIN_PROMPTS, **VALIDATION_PROMPTS})
    longest = config["policy"]["max_total_sequence_length"]
    if engine is None:
        generation: Any = TinyGeneration(
            config["policy"]["generation"], tiny_model(len(tokenizer), seed=2), tokenizer, channel, max_length=longest,
            labels=labels, seconds_per_token=seconds_per_token, fails=fails,
        )  # fmt: skip
    else:
        generation = engine(config["policy"]["generation"], channel, labels, longest)
    counted = {} if environments else {task: environment(f"train-{task}", kind) for task, kind in kinds.items()}
    judged = {} if environments else {TASK: environment("validation")}
    try:
        with hooks(SimpleNamespace(master_config=master_config, checkpointer=checkpointer)):
            loop(
                policy,
                generation,
                train,
                loader(made(VALIDATION_PROMPTS), settings["val_batch_size"], shuffle=False),
                tokenizer,
                ClippedPGLossFn(loss),
                environments() if environments else counted,
                environments() if environments else judged,
                logger,
                checkpointer,
                _save_state(checkpointer.load_training_info(newest)),
                master_config,
            )
    finally:
        if hasattr(checkpointer, "shutdown"):  # after v0.7: checkpoints are renamed in the background
            checkpointer.shutdown()
    metrics = recorder.metrics
    return RunRecord(
        [float(metrics[step]["train/loss"]) for step in sorted(metrics) if "train/loss" in metrics[step]],
        metrics,
        *([rows for one in asked.values() for rows in ray.get(one.rows.remote())] for asked in (counted, judged)),
        policy.batches,
        policy.logprob_lengths,
        getattr(generation, "log", None),
        sorted(checkpointer.checkpoint_dir.glob("step_*"), key=lambda path: int(path.name[5:])),
        {name: tensor.clone() for name, tensor in policy.model.state_dict().items()},
    )


def _save_state(loaded: dict[str, Any] | None) -> Any:
    """The loop's counters: a dict up to v0.7, a dataclass with its own loader after it."""
    if hasattr(grpo, "_get_grpo_save_state"):
        return grpo._get_grpo_save_state(loaded)
    return loaded or grpo._default_grpo_save_state()
