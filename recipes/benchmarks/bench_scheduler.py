"""Python's work per token in vLLM's engine core: its scheduler alone, with tokens that nobody computes.

    python recipes/benchmarks/bench_scheduler.py [--responses 64 256 1024] [--tokens 96] [--blocks 16 128]

A scheduler is pure Python. So vLLM's own plans steps for real requests here and takes drawn tokens with their
log-probabilities, in one thread, without an engine, a model or a GPU: what it takes is its work, and no wait is in it.
The vLLM that is imported is measured, also one that was built for GPUs (its unpacked wheel on PYTHONPATH). Each way
takes turns with the others in every round, and the table has the smallest CPU microseconds per token of the rounds,
because everything else on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_host_cost import SMALL
from measure import measure

PROMPT_TOKENS = 150
OURS = "nemo_ada.vllm.FewMessages"
PARTS = ("schedule", "update_from_output", "messages")


class Way(NamedTuple):
    """What differs between the schedulers.

    Attributes:
        ours: whether it is the one with few messages.
        ahead: whether steps are planned before the tokens of the last one are there.
        block: tokens of a block of the cache.
    """

    ours: bool
    ahead: bool
    block: int


def scheduler_of(model: Path, way: Way, responses: int, tokens: int) -> Any:
    """Return vLLM's scheduler as an engine core would make it."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    longest = PROMPT_TOKENS + tokens
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="float32", max_model_len=longest, skip_tokenizer_init=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=responses, max_num_batched_tokens=responses * PROMPT_TOKENS, max_model_len=longest,
            is_encoder_decoder=False,
        ),
        cache_config=CacheConfig(block_size=way.block, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    config.parallel_config = ParallelConfig()  # vLLM's platform of a CPU decides for itself
    config.scheduler_config.async_scheduling = way.ahead
    config.scheduler_config.scheduler_cls = OURS if way.ours else None
    blocks = config.cache_config.num_gpu_blocks = responses * (-(-longest // way.block) + 1) + 1
    attention = FullAttentionSpec(block_size=way.block, num_kv_heads=1, head_size=16, dtype=torch.float32)
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        include_finished_set=False,
        log_stats=True,
        block_size=way.block,
        hash_block_size=way.block,
    )


def one_run(model: Path, way: Way, responses: int, tokens: int) -> dict[str, float]:
    """Decode all responses to their end. Returns CPU microseconds per token by part, without the steps of prompts."""
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.serial_utils import MsgpackEncoder

    scheduler, encoder = scheduler_of(model, way, responses, tokens), MsgpackEncoder()
    hashing = get_hash_fn_by_name(scheduler.vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hashing)
    hasher, rng = get_request_block_hasher(way.block, hashing), np.random.default_rng(0)
    for number in range(responses):
        params = SamplingParams(max_tokens=tokens, logprobs=0, ignore_eos=True, temperature=1.0, detokenize=False)
        prompt = rng.integers(10, 200, PROMPT_TOKENS).tolist()
        scheduler.add_request(
            Request(request_id=f"{number}-request", prompt_token_ids=prompt, sampling_params=params,
                    pooling_params=None, block_hasher=hasher)
        )  # fmt: skip
    spent, counted, step = dict.fromkeys(PARTS, 0.0), 0, 0
    planned: list[Any] = []
    gc.collect()
    while scheduler.requests:
        begun = time.thread_time()
        while len(planned) < (2 if way.ahead else 1):
            planned.append(scheduler.schedule())
            if not planned[-1].total_num_scheduled_tokens:
                break
        plan = planned.pop(0)
        done = time.thread_time()
        names = list(plan.num_scheduled_tokens)
        drawn = rng.integers(10, 200, len(names))
        answer = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[[token] for token in drawn.tolist()],
            logprobs=LogprobsLists(
                drawn.astype(np.int32)[:, None], rng.standard_normal((len(names), 1), np.float32),
                np.ones(len(names), np.int32),
            ),
        )  # fmt: skip
        updating = time.thread_time()
        messages = scheduler.update_from_output(plan, answer)
        updated = time.thread_time()
        for message in messages.values():
            encoder.encode(message)
        if step >= 2:  # the prompts' steps are over
            counted += len(names)
            times = (done - begun, updated - updating, time.thread_time() - updated)
            for part, seconds in zip(PARTS, times, strict=True):
                spent[part] += seconds
        step += 1
    return {part: 1e6 * seconds / counted for part, seconds in spent.items()}


def table(found: dict[tuple[int, Way], list[dict[str, float]]], version: str) -> str:
    """Return the smallest cost of each part over the rounds, and the sum over that of vLLM's own scheduler."""
    lines = [
        f"| vLLM {version}, at once | planned ahead | block | scheduler | {' | '.join(PARTS)} | all | / vLLM's |",
        f"|{'---|' * 9}",
    ]
    least = {key: {part: min(one[part] for one in rounds) for part in PARTS} for key, rounds in found.items()}
    for (count, way), parts in least.items():
        whole = sum(parts.values())
        theirs = sum(least[count, way._replace(ours=False)].values())
        cells = " | ".join(f"{parts[part]:.1f}" for part in PARTS)
        name = "few messages" if way.ours else "vLLM's"
        ahead = "yes" if way.ahead else "no"
        lines.append(f"| {count} | {ahead} | {way.block} | {name} | {cells} | {whole:.1f} | {whole / theirs:.2f} |")
    return "\n".join(lines)


def measured(
    responses: Sequence[int], tokens: int, blocks: Sequence[int], rounds: int
) -> dict[tuple[int, Way], list[dict[str, float]]]:
    """Return the costs of each round, by number of responses and way."""
    ways = [Way(ours, ahead, block) for block in blocks for ahead in (False, True) for ours in (False, True)]
    found: dict[tuple[int, Way], list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        model = Path(name)
        (model / "config.json").write_text(json.dumps(SMALL))
        for _ in range(rounds):
            for count in responses:
                for way in ways:
                    found[count, way].append(one_run(model, way, count, tokens))
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    import vllm

    print(table(measured(asked.responses, asked.tokens, asked.blocks, asked.rounds), vllm.__version__))


if __name__ == "__main__":
    measure(main)
