"""A NeMo-RL environment that looks at the first character of a response, and counts what it was asked.

A response that starts with HANGING gets no verdict, as one whose verification timed out. Three kinds:

plain: one turn, and the reward is 0 or 1.
scores: one turn, and the reward is a score of -2.5 or 1.5, as a reward model gives it. The metadata is gone afterwards.
turns: two turns. The first one has a reward of 0 whatever it says, and the second one counts.
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
    """Reward 1 for a response that starts with RIGHT, NaN with HANGING, 0 otherwise; see the module for the kinds."""

    def __init__(self, kind: str = "plain") -> None:
        self._kind = kind
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
        ends = [True] * len(rewards)
        if self._kind == "scores":
            rewards, metadata = [4.0 * reward - 2.5 for reward in rewards], [None] * len(rewards)
        if self._kind == "turns":
            ends = [sum(message["role"] == "assistant" for message in log) == 2 for log in message_log_batch]
            rewards = [reward if end else 0.0 for reward, end in zip(rewards, ends, strict=True)]
        said = {HANGING: "no verdict: verifier_timeout", RIGHT: "=1"}
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": said.get(first, "=0")} for first in firsts],
            metadata=metadata,
            next_stop_strings=[None] * len(rewards),
            rewards=torch.tensor(rewards),
            terminateds=torch.tensor(ends),
            answers=None,
        )

    def global_post_process_and_metrics(self, batch: BatchedDataDict) -> tuple[BatchedDataDict, dict[str, Any]]:
        return batch, {}


@functools.cache  # an actor dies with its last reference
def _actor(name: str, kind: str) -> ray.actor.ActorHandle:
    return CountingEnvironment.options(name=f"{name}-{kind}").remote(kind)


def environment(name: str, kind: str = "plain") -> ray.actor.ActorHandle:
    """The session's actor of that name and kind, started at the first call and reset at every call."""
    ray.get(_actor(name, kind).reset.remote())
    return _actor(name, kind)
