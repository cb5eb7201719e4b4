"""A reward as an environment of NeMo-RL: a Ray actor that a YAML names as `env.NAME.class: my_reward.ShortAnswer`."""

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn


@ray.remote
class ShortAnswer(EnvironmentInterface):
    """1 where the last line is the reference and the response is short, else 0."""

    def __init__(self, section):  # env.short_answer of the config
        self.max_characters = section["max_characters"]

    def step(self, message_log_batch, metadata):
        rewards = []
        for turns, info in zip(message_log_batch, metadata, strict=True):
            text = "".join(turn["content"] for turn in turns if turn["role"] == "assistant")
            last_line = text.strip().rpartition("\n")[2]
            rewards.append(float(last_line == info["ground_truth"] and len(text) <= self.max_characters))
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in rewards],
            metadata=metadata,
            next_stop_strings=[None] * len(rewards),
            rewards=torch.tensor(rewards),
            terminateds=torch.ones(len(rewards)),
            answers=None,
        )

    def global_post_process_and_metrics(self, batch):
        return batch, {}
