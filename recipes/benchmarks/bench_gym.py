"""What a wave of responses costs through NeMo-Gym beside NeMo-RL's own rollout. The seconds are without any model.

    PYTHONPATH=.:$NEMO_RL_HOME .cache/rehearsal/gym/bin/python recipes/benchmarks/bench_gym.py

It needs the interpreter of `make rehearsal-env GYM=1` and the variables of `make test-nemo`. Gym's own servers run. A
script answers at once and stands for the engine, so all seconds are those of the way to it and back. Each way draws as
many responses of four tokens, and every fourth of them is right:

    own        NeMo-RL's own rollout with its math environment, without NeMo-Gym
    one call   NeMo-RL's rollout over NeMo-Gym, one call of its actor with all responses
    ours       Reinforce-Ada's: one call of that actor per response

Printed: the seconds until the servers are up, and the median seconds of a wave.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measure import measure

from nemo_ada.errors import UserError

TESTS = Path(__file__).resolve().parents[2] / "tests" / "nemo"
GROUP = 4  # responses per prompt
LENGTH = 96


def seconds_of(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])


def own_rollout(folder: Path, prompts: int) -> Callable[[], Any]:
    """NeMo-RL's own rollout of a wave, with its math environment."""
    import nemo_rl.algorithms.grpo as grpo
    import torch
    from nemo_rl.data.collate_fn import rl_collate_fn
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.environments.math_environment import MathEnvironment
    from nemo_support.harness import make_config
    from nemo_support.tiny_model import tiny_tokenizer

    tokenizer, config = tiny_tokenizer(), make_config(folder, 1, {}, async_engine=True)
    environment = MathEnvironment.options(num_cpus=0).remote({"num_workers": 2})
    ids, draws = tokenizer("p11=", return_tensors="pt")["input_ids"][0], itertools.count()

    class FixedGeneration:
        """An engine that answers at once: two tokens of padding, 7 or 8, and the end."""

        cfg = config["policy"]["generation"]

        async def generate_async(self, data: Any, greedy: bool = False) -> AsyncIterator[tuple[int, Any]]:
            answer = tokenizer.convert_tokens_to_ids("7" if next(draws) % 4 == 1 else "8")
            tokens = [*ids.tolist(), *[tokenizer.pad_token_id] * 2, answer, tokenizer.eos_token_id]
            columns = {
                "output_ids": torch.tensor([tokens]),
                "generation_lengths": torch.tensor([4]),
                "unpadded_sequence_lengths": torch.tensor([len(tokens)]),
                "logprobs": torch.tensor([[0.0] * len(ids) + [-1.0] * 4]),
                "truncated": torch.tensor([False]),
                "gen_leader_worker_idx": [0],
            }
            yield 0, BatchedDataDict(columns)

    def wave() -> Any:
        data = [
            {
                "message_log": [{"role": "user", "content": "p11=", "token_ids": ids}],
                "length": len(ids),
                "extra_env_info": {"ground_truth": "7"},
                "loss_multiplier": 1.0,
                "idx": index,
                "task_name": "math",
            }
            for index in range(prompts)
        ]
        return grpo.run_async_multi_turn_rollout(
            policy_generation=FixedGeneration(), input_batch=rl_collate_fn(data).repeat_interleave(GROUP),
            tokenizer=tokenizer, task_to_env={"math": environment}, max_seq_len=LENGTH, max_rollout_turns=1,
            greedy=False,
        )  # fmt: skip

    return wave


def main() -> None:
    """A table in Markdown."""
    parser = argparse.ArgumentParser(description="seconds of a wave through NeMo-Gym and without it")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[8, 32, 128], help="prompts of a wave, 4 responses each"
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    os.environ.setdefault("WANDB_MODE", "offline")
    from nemo_support.compat import why_not_importable
    from nemo_support.private_ray import private_ray

    missing = why_not_importable()
    if missing:
        raise UserError(f"{missing}; take the interpreter that `make rehearsal-env GYM=1` makes")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(private_ray())
        from nemo_support import gym, gym_servers

        from nemo_ada.nemo import reinforce_ada

        began = time.monotonic()
        actor = gym_servers.start(gym_servers.Policy(), folder / "servers")
        stack.callback(lambda: gym.ray.get(actor.shutdown.remote()))
        print(f"servers up in {time.monotonic() - began:.1f} s\n")
        print("| responses | own | one call | ours |\n|---|---|---|---|")
        for prompts in options.prompts:
            rows = [gym_servers.math_row(number // 12, number % 12) for number in range(prompts)]
            size = {"policy.max_total_sequence_length": LENGTH, "grpo.num_prompts_per_step": prompts}
            own = seconds_of(own_rollout(folder / f"own{prompts}", prompts), options.repeats)
            parts = gym.parts_of(folder / f"gym{prompts}", 8, size | {"reinforce_ada": {"preset": "grpo"}})
            wave = functools.partial(gym.draw, parts, rows, actor)
            whole = seconds_of(wave, options.repeats)
            with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer):
                gym.grpo._create_advantage_estimator(parts.master_config)
                single = seconds_of(wave, options.repeats)
            print(f"| {prompts * GROUP} | {own:.2f} s | {whole:.2f} s | {single:.2f} s |", flush=True)


if __name__ == "__main__":
    measure(main)
