"""What vLLM's scheduler plans before any token of a step is back, without our scheduler and with it.

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


def plans(model: str, stages: int, *, ahead: bool, scheduler_cls: str | None) -> dict[str, Any]:
    """Return the plans of some steps, and of those after the first step's token is back.

    Args:
        model: folder of a model.
        stages: pipeline stages of the engine.
        ahead: whether vLLM has decided to plan a step before the tokens of the last one are there.
        scheduler_cls: the scheduler that is named. None leaves the choice to vLLM.
    """
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.structured_output import StructuredOutputManager

    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=256),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=256, max_model_len=256, is_encoder_decoder=False
        ),
        cache_config=CacheConfig(block_size=16),
        device_config=DeviceConfig("cpu"),
    )
    # vLLM's platform of a CPU decides for itself. What is compared here is what follows from a decision.
    config.parallel_config = ParallelConfig()
    config.parallel_config.pipeline_parallel_size = stages
    config.scheduler_config.async_scheduling = ahead
    config.scheduler_config.scheduler_cls = scheduler_cls
    config.cache_config.num_gpu_blocks = 64
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype=torch.float32)
    scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        include_finished_set=False,
        log_stats=False,
        block_size=16,
        hash_block_size=16,
    )
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


def request(name: str) -> Any:
    """A request of some tokens."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=20, logprobs=0, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=[5, 6, 7, 8], sampling_params=params, pooling_params=None)


def main(model: str, out: Path) -> None:
    """Write the plans of every case."""
    import vllm

    found = [
        {
            "stages": stages,
            "decided": ahead,
            "theirs": plans(model, stages, ahead=ahead, scheduler_cls=None),
            "few": plans(model, stages, ahead=ahead, scheduler_cls=OURS),
        }
        for stages, ahead in CASES
    ]
    out.write_text(json.dumps({"version": vllm.__version__, "cases": found}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
