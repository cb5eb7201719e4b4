"""What vLLM's scheduler plans and what it sends, without our scheduler and with it.

    python -m tests.vllm_plans MODEL OUT.json

No engine runs and no model is loaded. A scheduler is pure Python, so a vLLM that was built for GPUs makes its plans
here, too, from nothing but its source.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS = "nemo_ada.vllm.FewMessages"
STEPS = 3
CASES = [(stages, ahead) for stages in (1, 2) for ahead in (False, True)]


def scheduler_of(model: str, stages: int, *, ahead: bool, scheduler_cls: str | None) -> Any:
    """Return a scheduler.

    Args:
        model: folder of a model.
        stages: pipeline stages of the engine.
        ahead: whether vLLM has decided to plan a step before the tokens of the last one are there.
        scheduler_cls: the scheduler that is named. None leaves the choice to vLLM.
    """
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=256),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=256, max_model_len=256, is_encoder_decoder=False
        ),
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=False),
        device_config=DeviceConfig("cpu"),
    )
    # vLLM's platform of a CPU decides for itself. What is compared here is what follows from a decision.
    config.parallel_config = ParallelConfig()
    config.parallel_config.pipeline_parallel_size = stages
    config.scheduler_config.async_scheduling = ahead
    config.scheduler_config.scheduler_cls = scheduler_cls
    config.cache_config.num_gpu_blocks = 64
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype=torch.float32)
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        include_finished_set=False,
        log_stats=False,
        block_size=16,
        hash_block_size=16,
    )


def plans(scheduler: Any) -> dict[str, Any]:
    """Return the plans of some steps, and of those after the first step's token is back."""
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler.add_request(request("a"))

    def plan() -> tuple[Any, SchedulerOutput]:
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        return [output.num_scheduled_tokens, cached.req_ids, cached.new_token_ids, cached.num_output_tokens], output

    first, output = plan()
    before = [plan()[0] for _ in range(STEPS)]
    answer = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[[5]])
    scheduler.update_from_output(output, answer)
    kinds = [kind.__name__ for kind in type(scheduler).__mro__]
    return {
        "plans": [first, *before, *(plan()[0] for _ in range(STEPS))],
        "ahead": "AsyncScheduler" in kinds,
        "ours": "Collecting" in kinds,
    }


def answers(scheduler: Any) -> dict[str, Any]:
    """Return what the front end gets of some responses: all that a response has, and in how many messages.

    Nine requests share four places. They differ in length and in the log-probabilities that they want, one ends by a
    stop token, one has a stop string, one is a stream, and one is stopped from outside and asked again by its name.
    While one wants the whole vocabulary, all lists are as vLLM's sampler makes them then: without ids and ranks.
    """
    import numpy as np
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    wanted: dict[str, dict[str, Any]] = {
        "long": {"max_tokens": 100}, "short": {"max_tokens": 1}, "two more": {"max_tokens": 70, "logprobs": 2},
        "none": {"max_tokens": 40, "logprobs": None}, "stops": {"max_tokens": 100, "stop_token_ids": [199]},
        "string": {"max_tokens": 9, "stop": ["x"]}, "stream": {"max_tokens": 9, "output_kind": RequestOutputKind.DELTA},
        "again": {"max_tokens": 50}, "vocabulary": {"max_tokens": 7, "logprobs": -1},
    }  # fmt: skip
    for name, params in wanted.items():
        scheduler.add_request(request(name, **params))
    got: dict[str, Any] = {name: {"tokens": [], "logprobs": [], "end": None, "messages": 0} for name in wanted}
    given: dict[str, int] = dict.fromkeys(wanted, 0)  # tokens so far, which decide what is drawn
    planned: list[Any] = []
    asked_again = False
    for _ in range(400):
        planned.append(scheduler.schedule())
        plan = planned.pop(0)
        names = list(plan.num_scheduled_tokens)
        seeds = [[list(wanted).index(name), given[name]] for name in names]
        rngs = [np.random.default_rng(seed) for seed in seeds]
        drawn = [199 if name == "stops" and given[name] == 45 else int(rng.integers(9, 190))
                 for name, rng in zip(names, rngs, strict=True)]  # fmt: skip
        for name in names:
            given[name] += 1
        lists = None if not names else LogprobsLists(
            np.array([[token, 1, 2] for token in drawn], np.int32),
            np.array([rng.standard_normal(3) for rng in rngs], np.float32), np.arange(len(names), dtype=np.int32),
        )  # fmt: skip
        if "vocabulary" in names:
            every = np.array([rng.standard_normal(200) for rng in rngs], np.float32)
            lists = LogprobsLists(np.empty(0, np.float32), every, np.empty(0, np.float32))
        answer = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[[token] for token in drawn], logprobs=lists,
        )  # fmt: skip
        messages = scheduler.update_from_output(plan, answer)
        assert answer.logprobs is lists, "what the worker has sent is as it was"
        for message in messages.values():
            for output in message.outputs:
                one = got[output.request_id]
                one["messages"] += 1
                one["tokens"] += output.new_token_ids
                one["end"] = None if output.finish_reason is None else str(output.finish_reason)
                if output.new_logprobs is not None:
                    parts = output.new_logprobs[:3]
                    assert len(parts[0]) == len(parts[2]) <= len(output.new_token_ids)
                    width = 1 + (wanted[output.request_id].get("logprobs", 0) or 0)
                    kinds = [str(part.dtype) for part in parts]
                    rows = zip(*(part.tolist() for part in parts), strict=False)  # as vLLM's front end reads them
                    one["logprobs"] += [[kinds, ids[:width], values[:width]] for ids, values, _ in rows]
        if given["again"] == 10 and not asked_again:
            asked_again = True
            scheduler.finish_requests("again", RequestStatus.FINISHED_ABORTED)
            got["again"] = {"tokens": [], "logprobs": [], "end": None, "messages": 0}
            scheduler.add_request(request("again", **wanted["again"]))
        if not scheduler.requests:
            break
    return {"answers": got, "left": len(getattr(scheduler, "_collected", ()))}


def request(name: str, **wanted: Any) -> Any:
    """A request of some tokens."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(**{"max_tokens": 20, "logprobs": 0, "ignore_eos": True, "detokenize": True, **wanted})
    return Request(request_id=name, prompt_token_ids=[5, 6, 7, 8], sampling_params=params, pooling_params=None)


def main(model: str, out: Path) -> None:
    """Write the plans of every case."""
    import vllm

    found = []
    for stages, ahead in CASES:
        each = {}
        for name, scheduler_cls in (("theirs", None), ("few", OURS)):
            each[name] = plans(scheduler_of(model, stages, ahead=ahead, scheduler_cls=scheduler_cls))
            each[name] |= answers(scheduler_of(model, stages, ahead=ahead, scheduler_cls=scheduler_cls))
        found.append({"stages": stages, "decided": ahead, **each})
    out.write_text(json.dumps({"version": vllm.__version__, "cases": found}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
