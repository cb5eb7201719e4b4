"""NeMo-RL's own ``async_grpo_train`` on a CPU: collector and replay buffer are its Ray actors, the engine is one, too.

As harness.py otherwise. The engine is a TinyGeneration in an actor of its own, which the driver (validation, refits)
and the collector (training) both ask.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo_rl.algorithms.grpo as grpo
import ray
import torch
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.interfaces import GenerationInterface
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from torchdata.stateful_dataloader import StatefulDataLoader

import nemo_support.gym
from nemo_support.environment import CountingEnvironment
from nemo_support.harness import (
    TASK,
    TRAIN_PROMPTS,
    VALIDATION_PROMPTS,
    MetricRecorder,
    _save_state,
    loader,
    make_config,
)
from nemo_support.tiny_generation import Labels, TinyGeneration, WeightChannel, seeded_labels
from nemo_support.tiny_model import tiny_model, tiny_tokenizer
from nemo_support.tiny_policy import TinyPolicy

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "grpo.async_grpo.enabled": True,
    "grpo.async_grpo.max_trajectory_age_steps": 1,
    "grpo.async_grpo.in_flight_weight_updates": False,
    "grpo.val_at_start": False,
    "loss_fn.use_importance_sampling_correction": True,
    "policy.generation.vllm_cfg.enable_prefix_caching": False,
    "policy.generation.colocated.enabled": False,
    "policy.generation.colocated.resources.gpus_per_node": 1,
}


@ray.remote(num_cpus=0, max_concurrency=1000)
class Engine:
    """A TinyGeneration; `hangs` names the prompts whose first response never ends."""

    def __init__(self, cfg: dict[str, Any], labels: Labels, hangs: set[str], max_length: int) -> None:
        self._tokenizer = tokenizer = tiny_tokenizer()
        self._channel, self._hangs = WeightChannel(), set(hangs)
        self._engine = TinyGeneration(
            cfg, tiny_model(len(tokenizer), seed=2), tokenizer, self._channel, max_length=max_length, labels=labels,
            seconds_per_token=0.01,
        )  # fmt: skip

    async def generate(self, data: Any, greedy: bool) -> Any:
        prompt = self._tokenizer.decode(data["input_ids"][0, : int(data["input_lengths"][0])], skip_special_tokens=True)
        if prompt in self._hangs:
            self._hangs.remove(prompt)
            await asyncio.Event().wait()
        async for _, output in self._engine.generate_async(data, greedy):
            return output

    async def refit(self, weights: dict[str, torch.Tensor]) -> bool:
        self._channel.weights = weights
        self._engine._refit()
        return True


class RemoteGeneration(GenerationInterface):
    """The engine as a process sees it."""

    def __init__(self, cfg: dict[str, Any], engine: Any, channel: WeightChannel | None) -> None:
        self.cfg, self._engine, self._channel = cfg, engine, channel
        self.worker_group = SimpleNamespace(workers=[engine])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_channel": None}

    async def generate_async(self, data: Any, greedy: bool = False) -> AsyncIterator[tuple[int, Any]]:
        yield 0, await self._engine.generate.remote(data, greedy)

    def update_weights_from_collective(self) -> list[Any]:
        assert self._channel is not None
        return [self._engine.refit.remote(self._channel.weights)]

    def generate(self, data: Any, greedy: bool = False) -> Any:
        raise NotImplementedError("asynchronous training asks for one response at a time")

    def init_collective(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def done(self, *_: Any, **__: Any) -> bool:
        return True

    prepare_for_generation = finish_generation = shutdown = prepare_refit_info = done
    update_weights_via_ipc_zmq = clear_logger_metrics = get_logger_metrics = done


def run_async(
    folder: Path,
    steps: int,
    overrides: Mapping[str, Any] | None = None,
    *,
    hooks: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    labels: Labels | None = None,
    hangs: set[str] | None = None,
    before_train: Callable[[int], None] = lambda step: None,
    gym: Any = None,
) -> SimpleNamespace:
    """Train until step ``steps`` in ``folder``, from its newest checkpoint where it has one.

    `gym` is a NemoGym actor, which the rollouts then go over.
    """
    here = (str(Path(__file__).parent / "startup"), str(ROOT), str(ROOT / "tests" / "nemo"))
    path = os.pathsep.join([*here, os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path  # NeMo-RL passes it on to its actors
    for name in ("AsyncTrajectoryCollector", "ReplayBuffer"):
        ACTOR_ENVIRONMENT_REGISTRY[f"nemo_rl.algorithms.async_utils.{name}"] = sys.executable
    given = {**SETTINGS, **(nemo_support.gym.SETTINGS if gym is not None else {}), **(overrides or {})}
    config = make_config(folder, steps, given, async_engine=True)
    master_config, settings = grpo.MasterConfig(**config), config["grpo"]
    set_seed(settings["seed"])
    logger, recorder = Logger(config["logger"]), MetricRecorder()
    logger.loggers.append(recorder)
    checkpointer = CheckpointManager(config["checkpointing"])
    newest = checkpointer.get_latest_checkpoint_path()
    weights_path, optimizer_path = checkpointer.get_resume_paths(newest)
    tokenizer, channel = tiny_tokenizer(), WeightChannel()
    size = int(settings["num_prompts_per_step"])

    def prompts(names: Mapping[str, Any], batch: int, **options: Any) -> Any:
        if gym is None:
            return loader(config, names, tokenizer, batch, **options)
        rows = nemo_support.gym.Rows([nemo_support.gym.row(name) for name in names])
        return StatefulDataLoader(rows, batch_size=batch, collate_fn=rl_collate_fn, **options)

    train = prompts(TRAIN_PROMPTS, size, shuffle=config["data"]["shuffle"], drop_last=True)
    if newest is not None:  # as NeMo-RL's `setup` does
        train.load_state_dict(torch.load(Path(newest) / "train_dataloader.pt"))
    policy = TinyPolicy(
        config["policy"], tiny_model(len(tokenizer), seed=1), tokenizer, channel, weights_path=weights_path,
        optimizer_path=optimizer_path, before_train=before_train,
    )  # fmt: skip
    made = labels or seeded_labels({**TRAIN_PROMPTS, **VALIDATION_PROMPTS})
    length = config["policy"]["max_total_sequence_length"]
    engine = Engine.options(runtime_env={"env_vars": {"PYTHONPATH": path}}).remote(
        config["policy"]["generation"], made, hangs or set(), length
    )
    with hooks(SimpleNamespace(master_config=master_config, checkpointer=checkpointer)):
        grpo.async_grpo_train(
            policy,
            RemoteGeneration(config["policy"]["generation"], engine, channel),
            train,
            prompts(VALIDATION_PROMPTS, settings["val_batch_size"], shuffle=False),
            tokenizer,
            ClippedPGLossFn(master_config.loss_fn),
            *(
                {TASK: CountingEnvironment.remote()} if gym is None else nemo_support.gym.environment_of(gym)
                for _ in ("train", "validation")  # the loop ends them
            ),
            logger,
            checkpointer,
            _save_state(checkpointer.load_training_info(newest)),
            master_config,
            max_trajectory_age_steps=settings["async_grpo"]["max_trajectory_age_steps"],
        )
    return SimpleNamespace(metrics=recorder.metrics, batches=policy.batches, checkpoints=checkpointer.checkpoint_dir)
