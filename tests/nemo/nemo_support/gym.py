"""Rollouts and runs of grpo_train over a scripted NeMo-Gym (gym_actor.py).

Real: the loop, the rollout function, the data processor. Tiny: the policy, the engine.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo_rl.algorithms.grpo as grpo
import nemo_rl.environments.nemo_gym as nemo_gym
import nemo_rl.experience.rollouts as rollouts
import ray
import torch
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.interfaces import TaskDataSpec
from nemo_rl.data.processors import nemo_gym_data_processor
from nemo_rl.utils.checkpoint import CheckpointManager

from nemo_ada.rules.facts.upstream import PER_PROMPT
from nemo_support.gym_actor import Rollout, Script, ScriptedGym
from nemo_support.gym_actor import failing_once as failing_once  # tests find it here
from nemo_support.harness import OURS, TRAIN_PROMPTS, VALIDATION_PROMPTS, RunRecord, make_config, run_grpo
from nemo_support.harness import hooks as hooks  # tests find it here, too
from nemo_support.tiny_generation import TinyGeneration, WeightChannel, seeded_labels
from nemo_support.tiny_model import tiny_model, tiny_tokenizer

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


def parts_of(folder: Path, steps: int, overrides: Mapping[str, Any]) -> SimpleNamespace:
    """Configuration, checkpoints and a sleeping engine, for a folder of its own."""
    config = make_config(folder, steps, {**SETTINGS, **OURS, **overrides}, async_engine=True)
    tokenizer = tiny_tokenizer()
    generation = TinyGeneration(
        config["policy"]["generation"], tiny_model(len(tokenizer), seed=2), tokenizer, WeightChannel(),
        max_length=config["policy"]["max_total_sequence_length"], labels=None,
    )  # fmt: skip
    return SimpleNamespace(
        master_config=grpo.MasterConfig(**config), config=config, generation=generation,
        checkpointer=CheckpointManager(config["checkpointing"]),
    )  # fmt: skip


def draw(parts: SimpleNamespace, rows: list[dict[str, Any]], actor: Any, **more: Any) -> Any:
    """Call the rollout of the loop's module as grpo_train does, with `more` arguments. Returns its result."""
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
        **more,
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
    actor: Any = None,
    rows: Sequence[dict[str, Any]] | None = None,
    **options: Any,
) -> RunRecord:
    """`run_grpo` over NeMo-Gym, from the newest checkpoint of `folder` where it has one.

    `actor` is NeMo-RL's, over servers of its own; without it the script answers. `rows` are for training and
    validation. `options` are those of `run_grpo`.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    scripted = actor is None
    if scripted:
        actor = actor_of(script or seeded())
    record = run_grpo(
        folder,
        steps,
        {**SETTINGS, **OURS, **overrides},
        resume=None,
        async_engine=True,
        data=lambda prompts, *_: Rows(rows or [row(prompt) for prompt in prompts]),
        environments=lambda: environment_of(actor),
        **options,
    )
    vars(record).update(ray.get(actor.facts.remote()) if scripted else {})
    return record
