"""CPU of the driver per response on NeMo-RL's asynchronous engine: our part, or the whole with NeMo-RL's own rollout.

    python recipes/benchmarks/bench_driver.py [--prompts 512] [--steps 3]
    python recipes/benchmarks/bench_driver.py --nemo-rl TOKENIZER --prompts 64

Without `--nemo-rl` a rollout answers at once, and this is our part alone. With it responses go through NeMo-RL's own
rollout, its `VllmGeneration.generate_async`, a tokenizer (a folder or a hub id) and Ray. Two engines and an environment
are Ray actors that answer at once, and their CPU does not count. NeMo-RL must be importable (`make rehearsal-env`).
Three ways take turns in each step, on the same prompts: as NeMo-RL does it, with a call for the verdict of each
response; with calls for the verdicts of a moment (nemo/rollouts/verdicts.py); and with tensors that travel as arrays,
too (nemo/rollouts/wire.py). The table has the medians of the steps after the first.

Python's threads and Ray's are counted together. "Loop" is the thread of the rollouts, which is the busiest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import measure

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.errors import InvariantError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.requests import AsyncSource
from nemo_ada.nemo.rollouts.wire import make_registration, send_arrays
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
    grpo = {"num_prompts_per_step": prompts, "num_generations_per_prompt": GROUP, "max_rollout_turns": 1, "seed": 1}
    return {
        "grpo": grpo,
        "policy": {"train_global_batch_size": rows, "max_total_sequence_length": 3072, "generation": vllm},
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "token_level_loss": True},
        "reinforce_ada": {"preset": "ada_seq_balance"},
    }


def one_step(
    sampler: Any, settings: nemo_settings.NemoSettings, rows: Any, step: int, drawing: Drawing, way: Way
) -> Cost:
    """Draw, select and weigh; what it took."""
    drawing.write_arrays(way.arrays)
    before, started = drawing.calls(), time.process_time()
    call = RolloutCall(_whole_batch, drawing.engine, drawing.tokenizer, drawing.environments, 3072, 1)
    prompts = Prompts(rows, GROUP)
    source = AsyncSource(call, prompts, drawing.rollout, MAX_TOKENS)
    if not way.joined:
        source._loop.set_default_executor(ThreadPoolExecutor())
    try:
        sampled = sampler.run_step(step, prompts.ids, source, features_PF=None, stop_check=None,
                                   final_rewards=lambda result: result.reward_N)  # fmt: skip
        loop = asyncio.run_coroutine_threadsafe(_thread_seconds(), source._loop).result()
    finally:
        source.close()
    result: SamplingResult = sampled.result
    rewards = pool_rewards(result, sampled.raw_reward_N)
    build_batch(prompts, source, sampled.rows, rewards, settings, step)
    seconds = time.process_time() - started
    return Cost(len(result.response_id_N), seconds, loop, drawing.calls() - before)


async def _thread_seconds() -> float:
    return time.thread_time()


class Way(NamedTuple):
    """A way of drawing.

    Attributes:
        title: its name in the table.
        joined: whether the verdicts of a moment are one call.
        arrays: whether tensors travel as arrays.
    """

    title: str
    joined: bool
    arrays: bool


WAYS = (
    Way("as NeMo-RL does it", joined=False, arrays=False),
    Way("verdicts joined", joined=True, arrays=False),
    Way("and tensors as arrays", joined=True, arrays=True),
)


class Cost(NamedTuple):
    """What a step took.

    Attributes:
        responses: responses that were drawn.
        seconds: CPU seconds of this process.
        loop: CPU seconds of the rollouts' thread.
        calls: calls for verdicts.
    """

    responses: int
    seconds: float
    loop: float
    calls: int

    @property
    def each(self) -> tuple[float, float, float]:
        """Milliseconds of CPU per response, those of the loop, and calls per response."""
        return 1e3 * self.seconds / self.responses, 1e3 * self.loop / self.responses, self.calls / self.responses


class Drawing(NamedTuple):
    """What answers. The defaults answer without NeMo-RL.

    Attributes:
        rollout: the rollout of a response.
        engine: NeMo-RL's generation.
        tokenizer: its tokenizer.
        environments: its environments.
        calls: returns the calls of the environment so far.
        write_arrays: lets this process and the engines write tensors as arrays, or as pickle does.
    """

    rollout: Any = answer
    engine: Any = None
    tokenizer: Any = None
    environments: dict[str, Any] = {}  # noqa: RUF012 - never written
    calls: Callable[[], int] = lambda: 0
    write_arrays: Callable[[bool], None] = lambda wanted: None


def through_nemo_rl(tokenizer: str) -> Drawing:
    """NeMo-RL's own rollout and generation, with engines and an environment that answer at once."""
    import ray
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.environments.interfaces import EnvironmentReturn
    from nemo_rl.experience.rollouts import run_sample_multi_turn_rollout
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration
    from transformers import AutoTokenizer

    longest = MAX_TOKENS

    class Engine:
        async def generate_async(self, data: Any, greedy: bool) -> Any:
            length, ids = int(data["input_lengths"][0]), data["input_ids"][0]
            random = np.random.default_rng([int(ids[1]), time.monotonic_ns()])
            tokens = torch.from_numpy(random.integers(100, 1000, int(random.integers(300, longest))))
            whole = torch.cat([ids[:length], tokens])
            yield 0, BatchedDataDict({
                "output_ids": whole[None], "logprobs": torch.zeros(1, len(whole)), "truncated": torch.tensor([False]),
                "generation_lengths": torch.tensor([len(tokens)]),
                "unpadded_sequence_lengths": torch.tensor([len(whole)]),
            })  # fmt: skip

    class Environment:
        def __init__(self) -> None:
            self.count = 0

        def calls(self) -> int:
            return self.count

        def step(self, logs: list[Any], metadata: list[Any]) -> Any:
            self.count += 1
            pairs = zip(logs, metadata, strict=True)
            rewards = [float(len(log[-1]["content"]) % 10 < info["right"]) for log, info in pairs]
            said = [{"role": "environment", "content": "correct"} for _ in logs]
            ends = torch.ones(len(logs))
            return EnvironmentReturn(said, metadata, [None] * len(logs), torch.tensor(rewards), ends, None)

    engine_actor: Any = ray.remote(Engine)
    environment_actor: Any = ray.remote(max_concurrency=256)(Environment)

    class Workers:
        dp_size = 2
        workers = [engine_actor.remote() for _ in range(dp_size)]  # noqa: RUF012

        def get_dp_leader_worker_idx(self, shard: int) -> int:
            return shard

        def run_single_worker_single_data(self, method_name: str, worker_idx: int, **given: Any) -> Any:
            return getattr(self.workers[worker_idx], method_name).remote(**given)

    class Generation(VllmGeneration):
        def __init__(self) -> None:
            self.cfg = {"backend": "vllm", "vllm_cfg": {"async_engine": True}}
            self.worker_group, self.current_generate_dp_shard_idx = Workers(), 0

        def __del__(self) -> None:
            """The actors end with Ray."""

    made = AutoTokenizer.from_pretrained(tokenizer)
    made.pad_token = made.pad_token or made.eos_token
    environment, generation = environment_actor.remote(), Generation()

    def write_arrays(wanted: bool) -> None:
        def as_pickle_does(_worker: Any) -> None:
            from ray.cloudpickle import CloudPickler

            CloudPickler.dispatch.pop(torch.Tensor, None)

        change = make_registration() if wanted else as_pickle_does
        change(None)
        ray.get([worker.__ray_call__.remote(change) for worker in generation.worker_group.workers])

    send_arrays(generation.worker_group.workers)  # which a source does once for each worker
    return Drawing(run_sample_multi_turn_rollout, generation, made, {"math": environment},
                   lambda: ray.get(environment.calls.remote()), write_arrays)  # fmt: skip


def with_metadata(rows: Rows) -> Any:
    """The rows as NeMo-RL's own BatchedDataDict, with what its rollout and the environment read."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    infos = [{"right": row // GROUP % 10} for row in range(rows.size)]
    return BatchedDataDict({**rows.data, "extra_env_info": infos, "stop_strings": [None] * rows.size})


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--nemo-rl", metavar="TOKENIZER")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings = nemo_settings.read(config(asked.prompts))
    drawing = Drawing()
    ways: Sequence[Way] = WAYS[-1:]
    if asked.nemo_rl:
        import ray

        os.environ["RAY_ADDRESS"] = "local"
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
        drawing, ways = through_nemo_rl(asked.nemo_rl), WAYS
    samplers = {way: settings.sampler() for way in ways}
    costs: dict[Way, list[Cost]] = {way: [] for way in ways}
    for step in range(1, asked.steps + 1):
        for way in ways:
            rows = batch(step, asked.prompts)
            given = with_metadata(rows) if asked.nemo_rl else rows
            costs[way].append(one_step(samplers[way], settings, given, step, drawing, way))
    print(table(costs))


def table(costs: Mapping[Way, Sequence[Cost]]) -> str:
    """Return the medians of each way, without the first step where there are more."""
    lines = [
        "| way | responses | ms of CPU per response | of it the loop | calls for verdicts per response |",
        "|---|---|---|---|---|",
    ]
    for way, every in costs.items():
        steps = every[1:] or every
        cpu, loop, calls = (statistics.median(column) for column in zip(*(cost.each for cost in steps), strict=True))
        responses = sum(cost.responses for cost in steps)
        lines.append(f"| {way.title} | {responses} | {cpu:.2f} | {loop:.2f} | {calls:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measure(main)
