"""Rollouts and runs of grpo_train over a scripted NeMo-Gym (gym_actor.py).

Real: the loop, the rollout function, the data processor. Tiny: the policy, the engine.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo_rl.algorithms.grpo as grpo
import nemo_rl.environments.nemo_gym as nemo_gym
import nemo_rl.experience.rollouts as rollouts
import ray
import torch
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.interfaces import TaskDataSpec
from nemo_rl.data.processors import nemo_gym_data_processor
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from torchdata.stateful_dataloader import StatefulDataLoader

from nemo_ada.rules.facts.upstream import PER_PROMPT
from nemo_support.gym_actor import Rollout, Script, ScriptedGym
from nemo_support.gym_actor import failing_once as failing_once  # tests find it here
from nemo_support.harness import (
    OURS,
    TRAIN_PROMPTS,
    VALIDATION_PROMPTS,
    MetricRecorder,
    _save_state,
    make_config,
)
from nemo_support.tiny_generation import TinyGeneration, WeightChannel, seeded_labels
from nemo_support.tiny_model import tiny_model, tiny_tokenizer
from nemo_support.tiny_policy import TinyPolicy

ON_MAIN = hasattr(grpo, "run_nemo_gym_rollout_sync")
AGENT = "scripted_agent"
SETTINGS: dict[str, Any] = {
    "env": {"should_use_nemo_gym": True, "should_log_nemo_gym_responses": True, "nemo_gym": {}},
    "policy.generation.vllm_cfg.expose_http_server": True,
    "policy.generation.top_k": None,
    "grpo.reward_scaling.enabled": False,
}


def row(prompt: str, agent: str = AGENT, **more: Any) -> dict[str, Any]:
    """A line of a data set for NeMo-Gym."""
    params = {"input": [{"role": "user", "content": prompt}], "tools": [], "parallel_tool_calls": False}
    return {"responses_create_params": params, "agent_ref": {"type": "responses_api_agents", "name": agent}, **more}


def batch_of(rows: list[dict[str, Any]]) -> Any:
    """What NeMo-RL's data loader makes of such lines."""
    spec = TaskDataSpec(task_name="nemo_gym")
    data = [{"extra_env_info": json.dumps(one), "task_name": "nemo_gym"} for one in rows]
    return rl_collate_fn([nemo_gym_data_processor(datum, spec, None, None, i) for i, datum in enumerate(data)])


class Rows(torch.utils.data.Dataset):
    """A data set for NeMo-Gym, through NeMo-RL's processor."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Any:
        datum = {"extra_env_info": json.dumps(self._lines[index]), "task_name": "nemo_gym"}
        return nemo_gym_data_processor(datum, TaskDataSpec(task_name="nemo_gym"), None, None, index)


@functools.cache  # an actor dies with its last reference, and one takes seconds to start
def _actor() -> Any:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here / "startup"), os.environ.get("PYTHONPATH", "")])
    actor = ScriptedGym.options(runtime_env={"env_vars": {"PYTHONPATH": path}}).remote()
    if ON_MAIN:
        ray.get(actor.set_tokenizer.remote(tiny_tokenizer()))
    return actor


def actor_of(script: Script, **options: Any) -> Any:
    """The session's actor, over this script."""
    ray.get(_actor().play.remote(script, **options))
    return _actor()


def environment_of(actor: Any) -> dict[str, Any]:
    """NeMo-RL's `task_to_env` with this actor, alone in v0.8.0's set of shards where there is one."""
    shards = getattr(nemo_gym, "NemoGymShardSet", None)
    return {"nemo_gym": actor if shards is None else shards({"main": [actor]})}


@dataclass
class Parts:
    """What a run over NeMo-Gym is made of."""

    master_config: Any
    config: dict[str, Any]
    checkpointer: Any
    generation: TinyGeneration
    channel: WeightChannel
    logger: Any
    recorder: MetricRecorder


def parts_of(folder: Path, steps: int, overrides: Mapping[str, Any]) -> Parts:
    """Configuration, logger, checkpoints and a sleeping engine, for a folder of its own."""
    config = make_config(folder, steps, {**SETTINGS, **OURS, **overrides}, async_engine=True)
    recorder, logger = MetricRecorder(), Logger(config["logger"])
    logger.loggers.append(recorder)
    tokenizer, channel = tiny_tokenizer(), WeightChannel()
    generation = TinyGeneration(
        config["policy"]["generation"], tiny_model(len(tokenizer), seed=2), tokenizer, channel,
        max_length=config["policy"]["max_total_sequence_length"], labels=None,
    )  # fmt: skip
    master_config, checkpointer = grpo.MasterConfig(**config), CheckpointManager(config["checkpointing"])
    return Parts(master_config, config, checkpointer, generation, channel, logger, recorder)


def draw(parts: Parts, rows: list[dict[str, Any]], actor: Any) -> Any:
    """Call the rollout of the loop's module as grpo_train does. Returns its result."""
    group = parts.config["grpo"]["num_generations_per_prompt"]
    generation_config = {**parts.config["policy"]["generation"], "stop_token_ids": None, "stop_strings": None}
    arguments: dict[str, Any] = {
        "policy_generation": parts.generation,
        "input_batch": batch_of(rows).repeat_interleave(group),
        "tokenizer": tiny_tokenizer(),
        "task_to_env": environment_of(actor),
        "max_seq_len": parts.config["policy"]["max_total_sequence_length"],
        "generation_config": generation_config,
        "max_rollout_turns": None,
        "greedy": False,
        "effort_config": grpo._get_effort_config(parts.master_config),
    }
    if ON_MAIN:
        if PER_PROMPT in inspect.signature(rollouts.run_nemo_gym_rollout_sync).parameters:
            arguments[PER_PROMPT] = group
        return grpo.run_nemo_gym_rollout_sync(**arguments, log_full_result_tables=True)
    return grpo.run_async_nemo_gym_rollout(**arguments)


def seeded(rates: Mapping[str, float] | None = None) -> Script:
    """A script whose labels are those of nemo_support.tiny_generation. Lengths and turns differ by draw."""
    labels = seeded_labels({**TRAIN_PROMPTS, **VALIDATION_PROMPTS} if rates is None else dict(rates))
    Made = Rollout

    def script(prompt: str, number: int) -> Rollout:
        return Made(float(labels(prompt, number)), turns=(1 + number % 3,) * (1 + number % 2))

    return script


def run_gym(
    folder: Path,
    steps: int,
    overrides: Mapping[str, Any],
    *,
    script: Script | None = None,
    hooks: Callable[[Any], AbstractContextManager[Any]] = lambda parts: nullcontext(),
    actor: Any = None,
    rows: Sequence[dict[str, Any]] | None = None,
    policy_class: Callable[..., TinyPolicy] = TinyPolicy,
    loop: Callable[..., None] = grpo.grpo_train,
    **options: Any,
) -> SimpleNamespace:
    """Train with a loop until step `steps`, from the newest checkpoint of `folder` where it has one.

    `actor` is NeMo-RL's, over servers of its own; without it the script answers. `rows` are for training and
    validation.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    parts = parts_of(folder, steps, overrides)
    config, settings = parts.config, parts.config["grpo"]
    set_seed(settings["seed"])
    newest = parts.checkpointer.get_latest_checkpoint_path()
    weights_path, optimizer_path = parts.checkpointer.get_resume_paths(newest)
    tokenizer, size = tiny_tokenizer(), int(settings["num_prompts_per_step"])

    def loader(prompts: Mapping[str, Any], batch: int, **more: Any) -> Any:
        data = Rows(rows or [row(prompt) for prompt in prompts])
        return StatefulDataLoader(data, batch_size=batch, collate_fn=rl_collate_fn, num_workers=0, **more)

    train = loader(TRAIN_PROMPTS, size, shuffle=config["data"]["shuffle"], drop_last=True)
    if newest is not None:
        train.load_state_dict(torch.load(Path(newest) / "train_dataloader.pt"))
    policy = policy_class(
        config["policy"], tiny_model(len(tokenizer), seed=1), tokenizer, parts.channel,
        weights_path=weights_path, optimizer_path=optimizer_path,
    )  # fmt: skip
    scripted = actor is None
    if scripted:
        actor = actor_of(script or seeded(), **options)
    try:
        with hooks(parts):
            loop(
                policy,
                parts.generation,
                train,
                loader(VALIDATION_PROMPTS, settings["val_batch_size"], shuffle=False),
                tokenizer,
                ClippedPGLossFn(parts.master_config.loss_fn),
                environment_of(actor),
                environment_of(actor),
                parts.logger,
                parts.checkpointer,
                _save_state(parts.checkpointer.load_training_info(newest)),
                parts.master_config,
            )
    finally:
        if hasattr(parts.checkpointer, "shutdown"):
            parts.checkpointer.shutdown()
    facts = ray.get(actor.facts.remote()) if scripted else {}
    return SimpleNamespace(
        metrics=parts.recorder.metrics,
        batches=policy.batches,
        weights={name: tensor.clone() for name, tensor in policy.model.state_dict().items()},
        **facts,
    )
