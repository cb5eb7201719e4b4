"""torch.cuda on a CPU that stands for the GPUs of the layout: devices, streams, memory figures and random state.

`torch.cuda.is_available()` stays False, so code that asks first takes its CPU path. This file answers what NeMo-RL and
Megatron call without asking. device="cuda" means the CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("torch.cuda", "the CPU; one process per pretended GPU")

GIB = 2**30
DEVICES = 16
FACTORIES = (
    "tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint", "linspace", "eye", "zeros_like",
    "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "as_tensor", "empty_strided", "scalar_tensor",
    "randperm", "logspace", "tril_indices", "triu_indices",
)  # fmt: skip
TENSOR_FACTORIES = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
NOTHING_TO_DO = (
    "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats",
    "reset_max_memory_allocated", "ipc_collect", "init", "set_stream",
)  # fmt: skip
NO_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
TENSOR_TYPES = (
    "FloatTensor", "HalfTensor", "BFloat16Tensor", "DoubleTensor", "LongTensor", "IntTensor", "ByteTensor", "BoolTensor"
)  # fmt: skip


def _name_in_cuda(*names: str) -> tuple[str, ...]:
    return tuple(f"cuda.{name}" for name in names)


def to_cpu(device: Any) -> Any:
    """Return the CPU for a CUDA device or an index. Anything else comes back as it is."""
    import torch

    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    kind = device.type if isinstance(device, torch.device) else device
    return torch.device("cpu") if isinstance(kind, str) and kind.startswith("cuda") else device


def _move_keyword_to_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its keyword `device` moved to the CPU, and without pinned memory."""

    @functools.wraps(function)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = to_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return on_cpu


@REPLACEMENTS.after(
    "torch",
    *FACTORIES,
    *(f"Tensor.{name}" for name in (*TENSOR_FACTORIES, "to", "type", "cuda", "pin_memory", "record_stream")),
    "nn.Module.to",
    "nn.Module.cuda",
    "load",
    "autocast.__init__",
    why="device='cuda' in NeMo-RL and Megatron means the CPU here.",
)
def _replace_devices(names: Names) -> None:
    import torch

    for name in (*FACTORIES, *(f"Tensor.{name}" for name in TENSOR_FACTORIES)):
        names.put(name, _move_keyword_to_cpu(names.get(name)))
    for owner in ("Tensor", "nn.Module"):
        names.put(f"{owner}.to", _move_to_cpu(names.get(f"{owner}.to")))
        names.put(f"{owner}.cuda", lambda self, *args, **kwargs: self)
    # On a GPU the pinned tensor is a copy, and Megatron frees the original once it has one.
    names.put("Tensor.pin_memory", lambda self, *args, **kwargs: self.clone())
    names.put("Tensor.record_stream", lambda self, *args, **kwargs: None)
    names.put("Tensor.type", _answer_types_of_cuda(names.get("Tensor.type")))
    read = names.get("load")

    def load(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return read(file, map_location=map_location if callable(map_location) else to_cpu(map_location), **kwargs)

    names.put("load", load)
    begin = names.get("autocast.__init__")

    def autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    names.put("autocast.__init__", autocast)
    torch.set_num_threads(max(1, torch.get_num_threads()))


def _move_to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method `to` that moves to the CPU instead of a CUDA device."""

    @functools.wraps(move)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if args and not torch.is_tensor(args[0]):
            args = (to_cpu(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = to_cpu(kwargs["device"])
        return move(self, *args, **kwargs)

    return to


def _answer_types_of_cuda(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.type() with CUDA's names. Megatron's buffers compare them with torch.cuda.FloatTensor and others."""

    @functools.wraps(convert)
    def type_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            args = (args[0].replace("torch.cuda.", "torch."), *args[1:])
        answer = convert(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return type_of


@REPLACEMENTS.after(
    "torch",
    *_name_in_cuda(*NOTHING_TO_DO, *NO_MEMORY, *TENSOR_TYPES),
    *_name_in_cuda("memory_stats", "mem_get_info", "get_device_properties", "get_device_name", "get_device_capability"),
    *_name_in_cuda("set_device", "current_device", "device_count", "is_bf16_supported", "device", "nvtx", "profiler"),
    "cuda.is_available",
    why="A CPU has no CUDA device; the answers are those of a Hopper GPU with nothing on it.",
)
def _replace_device_questions(names: Names) -> None:
    chosen = {"device": 0}
    names.answer(_name_in_cuda(*NOTHING_TO_DO), None)
    names.answer(_name_in_cuda(*NO_MEMORY), 0)
    names.put("cuda.memory_stats", lambda *args, **kwargs: {})
    names.put("cuda.mem_get_info", lambda *args, **kwargs: (8 * GIB, 16 * GIB))
    properties = SimpleNamespace(name="CPU", major=9, minor=0, total_memory=16 * GIB, multi_processor_count=132)
    names.put("cuda.get_device_properties", lambda *args: properties)
    names.put("cuda.get_device_name", lambda *args: "CPU")
    names.put("cuda.get_device_capability", lambda *args: (9, 0))
    names.put("cuda.is_bf16_supported", lambda *args, **kwargs: True)
    names.put("cuda.device_count", lambda: DEVICES)
    names.put("cuda.is_available", lambda: False)  # a build for CUDA would count the devices

    def set_device(device: Any) -> None:
        import torch

        chosen["device"] = device if isinstance(device, int) else (torch.device(device).index or 0)

    names.put("cuda.set_device", set_device)
    names.put("cuda.current_device", lambda: chosen["device"])
    names.put("cuda.device", lambda *args: contextlib.nullcontext())

    def mark(*args: Any, **kwargs: Any) -> None:
        return None

    ranges = SimpleNamespace(
        range_push=mark, range_pop=mark, mark=mark, range=lambda *args, **kwargs: contextlib.nullcontext()
    )
    names.put("cuda.nvtx", ranges)
    names.put("cuda.profiler", SimpleNamespace(start=mark, stop=mark, cudart=mark))
    for name in TENSOR_TYPES:
        import torch

        names.put(f"cuda.{name}", getattr(torch, name))


class Idle:
    """A queue that is always empty, or a mark in one. A CPU finishes each operation before the next begins."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take any arguments of torch.cuda.Stream and torch.cuda.Event."""

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because no work is outstanding."""

    synchronize = wait_stream = wait_event = record = wait = do_nothing

    def record_event(self, event: Idle | None = None) -> Idle:
        """A mark at the end of the queue."""
        return Idle() if event is None else event

    def query(self) -> bool:
        """Return whether all work is done, which it always is."""
        return True

    def elapsed_time(self, other: Idle) -> float:
        """Milliseconds to another mark, always 0."""
        return 0.0


@REPLACEMENTS.after(
    "torch",
    *_name_in_cuda("Stream", "Event", "current_stream", "default_stream", "stream"),
    why="A CPU runs one operation after the other, so nothing is ever outstanding in a stream.",
)
def _replace_streams(names: Names) -> None:
    only = Idle()
    names.put("cuda.Stream", Idle)
    names.put("cuda.Event", Idle)
    names.put("cuda.current_stream", lambda *args, **kwargs: only)
    names.put("cuda.default_stream", lambda *args, **kwargs: only)
    names.put("cuda.stream", lambda stream: only)


@REPLACEMENTS.after(
    "torch",
    *_name_in_cuda("get_rng_state", "set_rng_state", "initial_seed", "_lazy_call", "default_generators"),
    why="The random state of the device is the CPU generator's, so that checkpoints save and restore it.",
)
def _replace_random_state(names: Names) -> None:
    import torch

    names.put("cuda.get_rng_state", lambda *args, **kwargs: torch.get_rng_state())
    names.put("cuda.set_rng_state", lambda state, *args, **kwargs: torch.set_rng_state(state))
    names.put("cuda.initial_seed", torch.initial_seed)
    names.put("cuda._lazy_call", lambda call, **kwargs: None)
    names.put("cuda.default_generators", [torch.default_generator] * DEVICES)
