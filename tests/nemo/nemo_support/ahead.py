"""NeMo-RL's own ``async_grpo_train`` on a CPU: collector and replay buffer are its Ray actors, the engine is one, too.

As harness.py otherwise. The engine is a TinyGeneration in an actor of its own, which the driver (validation, refits)
and the collector (training) both ask.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo_rl.algorithms.grpo as grpo
import ray
import torch
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.models.generation.interfaces import GenerationInterface

import nemo_support.gym
from nemo_ada.nemo import reinforce_ada
from nemo_support.environment import CountingEnvironment
from nemo_support.harness import TASK, RunRecord, run_grpo
from nemo_support.private_ray import actors_ended
from nemo_support.tiny_generation import Labels, TinyGeneration, WeightChannel
from nemo_support.tiny_model import tiny_model, tiny_tokenizer

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


def noting(pools: list[Any]) -> Callable[[Any], AbstractContextManager[Any]]:
    """The argument `hooks` of a run with Reinforce-Ada, whose steps add their groups to the list."""

    @contextmanager
    def hooks(parts: Any) -> Iterator[Any]:
        with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer) as own:
            finish = own.sampler.finish_step
            own.sampler.finish_step = lambda groups, rows: (pools.append(groups), finish(groups, rows))[1]
            yield own

    return hooks


def run_async(
    folder: Path,
    steps: int,
    overrides: Mapping[str, Any] | None = None,
    *,
    hangs: set[str] | None = None,
    gym: Any = None,
    **options: Any,
) -> RunRecord:
    """`run_grpo` with the asynchronous loop, from the newest checkpoint of ``folder`` where it has one.

    `gym` is a NemoGym actor, which the rollouts then go over. No actor that the run starts is alive behind it.
    """
    here = (str(Path(__file__).parent / "startup"), str(ROOT), str(ROOT / "tests" / "nemo"))
    path = os.pathsep.join([*here, os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path  # NeMo-RL passes it on to its actors
    for name in ("AsyncTrajectoryCollector", "ReplayBuffer"):
        ACTOR_ENVIRONMENT_REGISTRY[f"nemo_rl.algorithms.async_utils.{name}"] = sys.executable
    given = {**SETTINGS, **(nemo_support.gym.SETTINGS if gym is not None else {}), **(overrides or {})}

    def engine(cfg: dict[str, Any], channel: WeightChannel, labels: Labels, longest: int) -> RemoteGeneration:
        actor = Engine.options(runtime_env={"env_vars": {"PYTHONPATH": path}})
        return RemoteGeneration(cfg, actor.remote(cfg, labels, hangs or set(), longest), channel)

    def environments() -> dict[str, Any]:  # the loop ends them
        return {TASK: CountingEnvironment.remote()} if gym is None else nemo_support.gym.environment_of(gym)

    if gym is not None:
        options["data"] = lambda names, *_: nemo_support.gym.Rows([nemo_support.gym.row(name) for name in names])
    with actors_ended():
        return run_grpo(
            folder,
            steps,
            given,
            resume=None,
            async_engine=True,
            engine=engine,
            environments=environments,
            loop=functools.partial(
                grpo.async_grpo_train, max_trajectory_age_steps=given["grpo.async_grpo.max_trajectory_age_steps"]
            ),
            **options,
        )
