"""Stand-ins for the few NeMo-RL types that the hooks touch; test_contract.py compares them with the real ones.

`Batch` is BatchedDataDict, `loop_module` the module of grpo_train with what the hooks replace, `step` the part of
grpo_train between the data loader and the loss, in its order.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections import Counter, UserDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.nemo.rollouts.requests import AsyncSource
from nemo_ada.rules.facts.upstream import LOOP, PATCH_POINTS, ROLLOUTS

PROMPT_TOKENS = 3
Script = Callable[[int, int], tuple[float, int]]
"""(prompt number, draw) -> (reward, tokens); a reward of None is an engine that fails."""


class Batch(UserDict):
    """Columns of equal length: tensors or lists."""

    @property
    def size(self) -> int:
        return len(next(iter(self.data.values()))) if self.data else 0

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> Batch:
        columns = {name: [batch[name] for batch in batches] for name in batches[0]}
        return cls(
            {
                name: torch.cat(parts) if torch.is_tensor(parts[0]) else [item for part in parts for item in part]
                for name, parts in columns.items()
            }
        )

    def slice(self, start: int, end: int) -> Batch:
        return Batch({name: column[start:end] for name, column in self.data.items()})

    def to(self, device: str) -> Batch:
        return self

    def select_indices(self, indices: Sequence[int]) -> Batch:
        return Batch({k: v[indices] if torch.is_tensor(v) else [v[i] for i in indices] for k, v in self.data.items()})

    def repeat_interleave(self, repeats: int) -> Batch:
        return Batch(
            {
                k: v.repeat_interleave(repeats, dim=0)
                if torch.is_tensor(v)
                else [copy.deepcopy(item) for item in v for _ in range(repeats)]
                for k, v in self.data.items()
            }
        )


def prompt_batch(prompts: Sequence[int]) -> Batch:
    """A data loader's batch; prompt number p is the token sequence [2, 3, p]."""
    return Batch(
        {
            "message_log": [
                [{"role": "user", "content": f"p{p}", "token_ids": torch.tensor([2, 3, p])}] for p in prompts
            ],
            "length": torch.full((len(prompts),), PROMPT_TOKENS),
            "loss_multiplier": torch.ones(len(prompts)),
            "extra_env_info": [{"prompt": p} for p in prompts],
            "task_name": ["task"] * len(prompts),
            "idx": list(prompts),
            "stop_strings": [None] * len(prompts),
        }
    )


def config(group: int, prompts: int, ada: dict, *, asynchronous: bool = False, **changes: Any) -> dict[str, Any]:
    """The keys of NeMo-RL's configuration that the hooks read; changes by dotted key with __ for the dots."""
    base: dict[str, Any] = {
        "grpo": {
            "num_prompts_per_step": prompts,
            "num_generations_per_prompt": group,
            "max_rollout_turns": 1,
            "seed": 7,
            "use_dynamic_sampling": False,
            "batch_multiplier": 1,
            "overlong_filtering": False,
            "reward_scaling": {"enabled": False},
            "reward_shaping": {"enabled": False},
            "async_grpo": {"enabled": False},
            "advantage_clip_low": None,
        },
        "policy": {
            "train_global_batch_size": group * prompts,
            "max_total_sequence_length": 512,
            "generation": {"backend": "vllm", "max_new_tokens": 64, "vllm_cfg": {"async_engine": asynchronous}},
        },
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "token_level_loss": True},
        "env": {},
        "checkpointing": {"metric_name": None},
        "reinforce_ada": ada,
    }
    for key, value in changes.items():
        section = base
        *path, last = key.split("__")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return base


@dataclass
class Engine:
    """Draws from a script. calls: the prompts of each rollout call, in order; finished: those that ran to their end."""

    script: Script
    calls: list[list[int]] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    drawn: Counter[int] = field(default_factory=Counter)
    seconds_per_token: float = 0.0
    sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep
    limit: int = 1000  # tokens at which a response is cut off

    def take(self, log: list[dict[str, Any]]) -> tuple[int, int]:
        prompt = int(log[0]["token_ids"][2])
        self.drawn[prompt] += 1
        return prompt, self.drawn[prompt] - 1

    def answer(self, log: list[dict[str, Any]], prompt: int, draw: int) -> float:
        """Append a response to the log; its reward."""
        reward, tokens = self.script(prompt, draw)
        if reward is None:
            return 0.0
        ids = torch.full((tokens,), 10 + int(reward > 0))
        log.append({"role": "assistant", "content": "r", "token_ids": ids, "generation_logprobs": torch.zeros(tokens)})
        content = "no verdict: verifier_timeout" if np.isnan(reward) else "seen"
        log.append({"role": "environment", "content": content, "token_ids": torch.tensor([5])})
        self.finished.append((prompt, draw))
        return reward


class VirtualTime:
    """An engine's `sleep` without a wall clock: each time the driver waits, the response that is next to end ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._asleep: list[tuple[float, int, asyncio.Future[None]]] = []
        wait = AsyncSource.poll

        def poll(source: AsyncSource) -> Outcomes:
            asyncio.run_coroutine_threadsafe(self._pass(), source._loop)
            return wait(source)

        monkeypatch.setattr(AsyncSource, "poll", poll)
        monkeypatch.setattr(AsyncSource, "clock", lambda source: self._now)

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self._now + seconds, next(self._order), awake))
        await awake

    async def _pass(self) -> None:
        for _ in range(10):  # so that every response that was issued before is asleep
            await asyncio.sleep(0)
        while self._asleep:
            end, _, awake = heapq.heappop(self._asleep)
            if not awake.done():  # a dropped response's is
                self._now = end
                awake.set_result(None)
                return


def loop_module(engine: Engine) -> tuple[ModuleType, ModuleType]:
    """(the loop's module, the rollouts' module)."""
    loop, rollouts = ModuleType(LOOP), ModuleType(ROLLOUTS)

    def cut_off(log):
        return sum(len(m["token_ids"]) for m in log if m["role"] == "assistant") >= engine.limit

    def run_multi_turn_rollout(
        policy_generation, input_batch, tokenizer, task_to_env, max_seq_len, max_rollout_turns=999999, greedy=False
    ):
        places = [engine.take(log) for log in input_batch["message_log"]]
        engine.calls.append([prompt for prompt, _ in places])
        rewards = [engine.answer(log, *place) for log, place in zip(input_batch["message_log"], places, strict=True)]
        final = Batch(dict(input_batch))
        final["total_reward"] = torch.tensor(rewards, dtype=torch.float32)
        final["truncated"] = torch.tensor([cut_off(log) for log in final["message_log"]])
        return final, {"mean_gen_tokens_per_sample": 1.0}

    async def run_sample_multi_turn_rollout(
        sample_idx, initial_sample_state, policy_generation, tokenizer, task_to_env, max_seq_len, max_rollout_turns=9,
        greedy=False,
    ):  # fmt: skip
        log = copy.deepcopy(initial_sample_state["message_log"])
        prompt, draw = engine.take(log)
        engine.calls.append([prompt])
        reward, tokens = engine.script(prompt, draw)
        await engine.sleep(engine.seconds_per_token * tokens)
        failed = reward is None
        value = engine.answer(log, prompt, draw)
        state = {"message_log": log, "total_reward": torch.tensor(value), "idx": sample_idx}
        cut = cut_off(log)
        return state, {"turn_count": 1, "terminated": not failed, "truncated": cut, "max_turns_reached": True}

    def run_async_multi_turn_rollout(
        policy_generation, input_batch, tokenizer, task_to_env, max_seq_len, max_rollout_turns=999999, greedy=False
    ):
        return run_multi_turn_rollout(policy_generation, input_batch, tokenizer, task_to_env, max_seq_len)

    def validate(policy_generation, val_dataloader, tokenizer, val_task_to_env, step, master_config, logger=None):
        final, _ = loop.run_multi_turn_rollout(
            policy_generation, val_dataloader, tokenizer, val_task_to_env, max_seq_len=9, max_rollout_turns=1
        )
        return {"accuracy": float(final["total_reward"].mean())}, {}

    def _create_advantage_estimator(master_config):
        return "NeMo-RL's"

    def calculate_baseline_and_std_per_prompt(
        prompts, rewards, valid_mask, leave_one_out_baseline=True, std_rewards=None
    ):
        assert prompts is not None, "groups by token equality, and only the check of what it returns may ask for that"
        return torch.zeros_like(rewards), torch.zeros_like(rewards)

    def scale_rewards(repeated_batch, reward_scaling_cfg):
        if reward_scaling_cfg["enabled"]:
            repeated_batch["total_reward"] = repeated_batch["total_reward"] * reward_scaling_cfg["target_max"]
        return repeated_batch

    def apply_reward_shaping(batch, cfg):
        batch["total_reward"] = batch["total_reward"] - 0.5
        return batch

    functions = dict(locals())
    for target in PATCH_POINTS:
        functions[target.name].__module__ = target.origin
        setattr(loop, target.name, functions[target.name])
    run_sample_multi_turn_rollout.__module__ = rollouts.__name__
    rollouts.run_sample_multi_turn_rollout = run_sample_multi_turn_rollout
    return loop, rollouts


@dataclass
class Checkpointer:
    """A CheckpointManager that keeps folders under `root`."""

    root: Path

    def get_latest_checkpoint_path(self) -> str | None:
        steps = sorted(self.root.glob("step_*"), key=lambda path: int(path.name[5:]))
        return str(steps[-1]) if steps else None

    def load_training_info(self, path: str | None) -> dict[str, Any] | None:
        return {"total_steps": int(Path(path).name[5:])} if path else None

    def finalize_checkpoint(self, checkpoint_path: Path) -> None:
        checkpoint_path.rename(self.root / checkpoint_path.name.removeprefix("tmp_"))

    def save(self, step: int) -> Path:
        folder = self.root / f"tmp_step_{step}"
        folder.mkdir()
        self.finalize_checkpoint(folder)
        return self.root / f"step_{step}"


@dataclass
class StepRecord:
    """What the loss would get, and what was logged."""

    batch: Batch
    advantages_RT: torch.Tensor
    mask_RT: torch.Tensor
    baseline_R: torch.Tensor
    std_R: torch.Tensor
    metrics: dict[str, Any]


def step(
    loop: ModuleType,
    master_config: dict[str, Any],
    prompts: Sequence[int],
    asynchronous: bool = False,
    too_long: Sequence[int] = (),
) -> StepRecord:
    """One step of grpo_train, from the data loader's batch to the advantages; too_long: positions of such prompts."""
    grpo = master_config["grpo"]
    estimator = loop._create_advantage_estimator(master_config)
    batch = prompt_batch(prompts)
    batch["loss_multiplier"][list(too_long)] = 0.0
    repeated = batch.repeat_interleave(grpo["num_generations_per_prompt"])
    rollout = loop.run_async_multi_turn_rollout if asynchronous else loop.run_multi_turn_rollout
    batch, metrics = rollout(
        policy_generation=None, input_batch=repeated, tokenizer=None, task_to_env={}, max_seq_len=512,
        max_rollout_turns=1, greedy=False,
    )  # fmt: skip
    assert batch.size == repeated.size
    batch = loop.scale_rewards(batch, grpo["reward_scaling"])
    if grpo["reward_shaping"]["enabled"]:
        batch = loop.apply_reward_shaping(batch, grpo["reward_shaping"])
    rewards = batch["total_reward"]
    baseline, std = loop.calculate_baseline_and_std_per_prompt(
        None, rewards, torch.ones_like(rewards), leave_one_out_baseline=True, std_rewards=None
    )
    if grpo["overlong_filtering"]:
        batch["loss_multiplier"] = torch.where(batch["truncated"], 0.0, batch["loss_multiplier"])
    mask, advantages = weigh(estimator, batch)
    return StepRecord(batch, advantages, mask, baseline, std, metrics)


def weigh(estimator: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in the loss, and their advantages."""
    lengths = [sum(len(m["token_ids"]) for m in log) for log in batch["message_log"]]
    mask = torch.zeros(batch.size, max(lengths))
    for r, log in enumerate(batch["message_log"]):
        at = 0
        for message in log:
            size = len(message["token_ids"])
            if message["role"] == "assistant" and "generation_logprobs" in message:
                mask[r, at : at + size] = batch["loss_multiplier"][r]
            at += size
    advantages = estimator.compute_advantage(
        prompt_ids=None,
        rewards=batch["total_reward"],
        mask=mask,
        repeated_batch=batch,
        logprobs_policy=None,
        logprobs_reference=None,
    )
    return mask, advantages
