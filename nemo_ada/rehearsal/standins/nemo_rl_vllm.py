"""NeMo-RL's vLLM worker: its questions to a GPU, the version of transformers, and a seed for each response."""

from __future__ import annotations

import contextvars
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("vLLM's random state", "a seed per response, so that a resumed run can be compared")

SEEDS = "rehearsal_seed"
LAST_ALLOWED = "5.11.0"
REQUESTS: Counter[bytes] = Counter()
"""Requests per prompt so far in this generation phase, on the driver."""
_SEEDS: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("seeds", default=None)
_MANY: contextvars.ContextVar[bool] = contextvars.ContextVar("many", default=False)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_backend",
    "VllmInternalWorkerExtension.report_device_id",
    why="The worker names its GPU by the id that the policy worker of the same bundle names.",
)
def _device_id(names: Names) -> None:
    def report_device_id(self: Any) -> str:
        from nemo_rl.utils.nvml import get_device_uuid

        return str(get_device_uuid(0))  # the only GPU of this worker: Ray names one in CUDA_VISIBLE_DEVICES

    names.put("VllmInternalWorkerExtension.report_device_id", report_device_id)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_backend",
    "VllmInternalWorkerExtension",
    why="vLLM refuses an extension that names a method of its worker; NeMo-RL main does, for its sparse refit.",
)
def _one_synchronize_device(names: Names) -> None:
    extension = names.get("VllmInternalWorkerExtension")
    if "synchronize_device" in vars(extension):
        del extension.synchronize_device


@REPLACEMENTS.during(
    "nemo_rl.models.policy",
    why="It refuses the newer transformers that vLLM's CPU build needs; the code that it guards is for other models.",
)
@contextmanager
def _version_of_transformers() -> Iterator[None]:
    import transformers

    actual = transformers.__version__
    if tuple(int(part) for part in actual.split(".")[:2]) >= (5, 12):
        transformers.__version__ = LAST_ALLOWED
    try:
        yield
    finally:
        transformers.__version__ = actual


def next_seed(requests: Counter[bytes], prompt: bytes) -> int:
    """Count a request for a prompt and return its seed in [0, 2**31).

    Args:
        requests: Requests per prompt so far in this generation phase.
        prompt: The prompt's tokens as bytes.
    """
    digest = hashlib.blake2b(prompt + b"/%d" % requests[prompt], digest_size=4).digest()
    requests[prompt] += 1
    return int.from_bytes(digest, "big") >> 1


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_generation",
    *(f"VllmGeneration.{name}" for name in ("generate", "generate_async", "prepare_for_generation")),
    why="NeMo-RL gives an engine one seed at its start, so a resumed engine draws other responses.",
)
def _seed_on_the_driver(names: Names) -> None:
    generate, generate_async = names.get("VllmGeneration.generate"), names.get("VllmGeneration.generate_async")
    prepare = names.get("VllmGeneration.prepare_for_generation")

    def seeded(data: Any) -> Any:
        import torch

        rows = zip(data["input_ids"], data["input_lengths"], strict=True)
        seeds = [next_seed(REQUESTS, row[:length].numpy().tobytes()) for row, length in rows]
        return type(data)({**data, SEEDS: torch.tensor(seeds, dtype=torch.long)})

    @functools.wraps(generate)
    def generate_rows(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        return generate(self, seeded(data), *args, **kwargs)

    @functools.wraps(generate_async)
    async def generate_row(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        async for result in generate_async(self, seeded(data), *args, **kwargs):
            yield result

    @functools.wraps(prepare)
    def prepare_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        REQUESTS.clear()
        return prepare(self, *args, **kwargs)

    names.put("VllmGeneration.generate", generate_rows)
    names.put("VllmGeneration.generate_async", generate_row)
    names.put("VllmGeneration.prepare_for_generation", prepare_for_generation)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_worker",
    "BaseVllmGenerationWorker._build_sampling_params",
    "VllmGenerationWorkerImpl.generate",
    why="The worker gives each request the seed that came with its row.",
)
def _seed_in_the_worker(names: Names) -> None:
    build, generate = (
        names.get("BaseVllmGenerationWorker._build_sampling_params"),
        names.get("VllmGenerationWorkerImpl.generate"),
    )

    @functools.wraps(build)
    def _build_sampling_params(self: Any, **kwargs: Any) -> Any:
        parameters, seeds = build(self, **kwargs), _SEEDS.get()
        if seeds is None:
            return parameters
        each = []
        for seed in seeds:
            seeded = parameters.clone()
            seeded.seed = seed
            each.append(seeded)
        return each if _MANY.get() else each[0]

    @functools.wraps(generate)
    def generate_rows(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        _take_seeds(data, many=True)
        return generate(self, data, *args, **kwargs)

    names.put("BaseVllmGenerationWorker._build_sampling_params", _build_sampling_params)
    names.put("VllmGenerationWorkerImpl.generate", generate_rows)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_worker_async",
    "VllmAsyncGenerationWorkerImpl.generate_async",
    why="The asynchronous worker does the same for its single rows.",
)
def _seed_in_the_async_worker(names: Names) -> None:
    generate = names.get("VllmAsyncGenerationWorkerImpl.generate_async")

    @functools.wraps(generate)
    async def generate_row(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        _take_seeds(data, many=False)
        async for result in generate(self, data, *args, **kwargs):
            yield result

    names.put("VllmAsyncGenerationWorkerImpl.generate_async", generate_row)


def _take_seeds(data: Any, *, many: bool) -> None:
    """Remember the seeds of these rows for `_build_sampling_params`, which gives a list of parameters with `many`."""
    _SEEDS.set(data[SEEDS].tolist() if SEEDS in data else None)
    _MANY.set(many)
