"""CPU of the driver per response on NeMo-RL's asynchronous engine: our part, with a rollout that answers at once.

    python recipes/benchmarks/bench_driver.py [--prompts 512] [--steps 3]

NeMo-RL's own part (its rollout, Ray, scoring) comes on top: `bench_rehearsal.py learning` measures both together.
"""

from __future__ import annotations

import argparse
import time
from collections import UserDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from measure import measure

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.errors import InvariantError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.requests import AsyncSource
from nemo_ada.nemo.training_batch import build_batch, pool_rewards

GROUP, PROMPT_TOKENS, MAX_TOKENS = 4, 150, 1500


class Rows(UserDict):
    """The part of NeMo-RL's BatchedDataDict that a step uses."""

    @property
    def size(self) -> int:
        """Rows."""
        return len(self["length"])

    def select_indices(self, chosen: Sequence[int]) -> Rows:
        """These rows."""
        return Rows({k: v[chosen] if torch.is_tensor(v) else [v[i] for i in chosen] for k, v in self.items()})

    def repeat_interleave(self, times: int) -> Rows:
        """Each row so many times; message logs are copied."""
        rows = self.select_indices([row for row in range(self.size) for _ in range(times)])
        rows["message_log"] = [[dict(message) for message in log] for log in rows["message_log"]]
        return rows


def batch(step: int, prompts: int) -> Rows:
    """n rows per prompt, as NeMo-RL's loop gives them."""
    logs = [
        [
            {
                "role": "user",
                "content": "p",
                "token_ids": torch.cat([torch.tensor([step, p]), torch.arange(PROMPT_TOKENS)]),
            }
        ]
        for p in range(prompts)
    ]
    columns = {"message_log": logs, "length": torch.full((prompts,), PROMPT_TOKENS + 2),
               "loss_multiplier": torch.ones(prompts), "task_name": ["math"] * prompts}  # fmt: skip
    return Rows(columns).repeat_interleave(GROUP)


async def answer(sample_idx: int, initial_sample_state: dict[str, Any], **rest: Any) -> tuple[dict[str, Any], Any]:
    """A response at once; a prompt's place decides how often it is right."""
    log = list(initial_sample_state["message_log"])
    random = np.random.default_rng([sample_idx, int(log[0]["token_ids"][1])])
    tokens = torch.full((int(random.integers(300, MAX_TOKENS)),), 7)
    log.append(
        {"role": "assistant", "content": "", "token_ids": tokens, "generation_logprobs": torch.zeros(len(tokens))}
    )
    reward = float(random.random() < int(log[0]["token_ids"][1]) % 10 / 10)
    return {"message_log": log, "total_reward": torch.tensor(reward)}, {"turn_count": 1, "truncated": False}


def _whole_batch(**_arguments: Any) -> tuple[Any, dict[str, Any]]:
    raise InvariantError("the benchmark draws responses one by one")


def config(prompts: int) -> dict[str, Any]:
    """What the settings read of a NeMo-RL config."""
    rows = GROUP * prompts
    vllm = {"backend": "vllm", "max_new_tokens": MAX_TOKENS, "vllm_cfg": {"async_engine": True}}
    grpo = {"num_prompts_per_step": prompts, "num_generations_per_prompt": GROUP, "max_rollout_turns": 1, "seed": 1,
            "adv_estimator": {"name": nemo_settings.NAME}}  # fmt: skip
    return {
        "grpo": grpo,
        "policy": {"train_global_batch_size": rows, "max_total_sequence_length": 3072, "generation": vllm},
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "token_level_loss": True},
        "reinforce_ada": {"preset": "ada_seq_balance"},
    }


def one_step(sampler: Any, settings: nemo_settings.NemoSettings, rows: Rows, step: int) -> int:
    """Draw, select and weigh; the number of responses."""
    call = RolloutCall(_whole_batch, None, None, {}, 3072)
    prompts = Prompts(rows, GROUP)
    source = AsyncSource(call, prompts, answer, MAX_TOKENS)
    try:
        sampled = sampler.run_step(step, prompts.ids, source, features_PF=None, stop_check=None,
                                   final_rewards=lambda result: result.reward_N)  # fmt: skip
    finally:
        source.close()
    result: SamplingResult = sampled.result
    rewards = pool_rewards(result, sampled.raw_reward_N)
    build_batch(prompts, source, sampled.rows, rewards, settings, step)
    return len(result.response_id_N)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings = nemo_settings.read(config(asked.prompts))
    sampler = settings.sampler()
    for step in range(1, asked.steps + 1):
        rows = batch(step, asked.prompts)
        started = time.process_time()
        responses = one_step(sampler, settings, rows, step)
        milliseconds = 1000 * (time.process_time() - started) / responses
        print(f"step {step}: {responses} responses, {milliseconds:.2f} ms of CPU each")


if __name__ == "__main__":
    measure(main)
