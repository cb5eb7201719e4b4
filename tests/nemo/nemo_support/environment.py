"""A NeMo-RL environment that looks at the first character of a response, and counts what it was asked.

A response that starts with HANGING gets no verdict, as one whose verification timed out.
"""

from __future__ import annotations

import functools
from typing import Any

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from nemo_support.tiny_model import HANGING, RIGHT


@ray.remote(num_cpus=0)
class CountingEnvironment(EnvironmentInterface):
    """One turn per episode: reward 1 for a response that starts with RIGHT, NaN with HANGING, 0 otherwise."""

    def __init__(self) -> None:
        self._rows: list[int] = []

    def reset(self) -> None:
        """Forget the counts; actors are kept for the whole test session."""
        self._rows = []

    def rows(self) -> list[int]:
        """Number of rows of each call so far."""
        return self._rows

    def step(
        self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn[dict[str, Any]]:
        self._rows.append(len(message_log_batch))
        firsts = [log[-1]["content"][:1] for log in message_log_batch]
        rewards = [float("nan") if first == HANGING else float(first == RIGHT) for first in firsts]
        said = {HANGING: "no verdict: verifier_timeout", RIGHT: "=1"}
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": said.get(first, "=0")} for first in firsts],
            metadata=metadata,
            next_stop_strings=[None] * len(rewards),
            rewards=torch.tensor(rewards),
            terminateds=torch.ones(len(rewards), dtype=torch.bool),
            answers=None,
        )

    def global_post_process_and_metrics(self, batch: BatchedDataDict) -> tuple[BatchedDataDict, dict[str, Any]]:
        return batch, {}


@functools.cache  # an actor dies with its last reference
def _actor(name: str) -> ray.actor.ActorHandle:
    return CountingEnvironment.options(name=name).remote()


def environment(name: str) -> ray.actor.ActorHandle:
    """The session's actor of that name, started at the first call and reset at every call."""
    ray.get(_actor(name).reset.remote())
    return _actor(name)
