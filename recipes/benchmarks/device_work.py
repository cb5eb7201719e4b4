"""What the device does while an engine decodes: the share of time that it is busy, and its kernels by time.

torch's profiler runs inside vLLM's worker, for some steps in which all responses decode. vLLM has a switch for it, too,
but under other names in each version, so a worker's extension does it here (`worker_extension_cls`, which NeMo-RL uses
as well). The trace stays on the disk, and every number is read from it. The profiler makes a step longer. So the
device's busy time belongs beside the length of a step without it, and NVML is asked in the other rounds: how much of
the last moments a kernel ran.

Where there is no GPU, the trace has the CPU's operations, and no share exists.
"""

from __future__ import annotations

import gzip
import importlib
import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = 20
"""Steps of a profile."""
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Kinds of torch's events that keep a GPU busy. Its annotations are spans, too, but nothing runs for them."""
ON_CPU = {"cpu_op"}
NVML_SECONDS = 0.1  # between two questions
SHOWN = 8  # kernels of a table, by time
NO_VALUE = "no value"


class Profiled:
    """Methods of vLLM's worker: `worker_extension_cls="device_work.Profiled"`. vLLM calls them by name."""

    execute_model: Any

    def profile_steps(self, responses: int, steps: int, trace: str) -> None:
        """Profile the next steps in which exactly `responses` responses decode, `steps` at most.

        Args:
            responses: Responses at once.
            steps: Steps.
            trace: File for the trace, `.json.gz`.
        """
        compute, profile = self.execute_model, _Profile(responses, steps, trace)

        def profiled(plan: Any, *args: Any, **kwargs: Any) -> Any:
            profile.begin_step(plan)
            return compute(plan, *args, **kwargs)

        self.execute_model, self._profile = profiled, profile

    def profiled_steps(self) -> list[float]:
        """End the profile. Returns its steps and its seconds, both 0 where no step was as wanted."""
        del self.execute_model  # the class has the worker's own
        return self._profile.end()


class _Profile:
    """Starts and stops torch's profiler between steps."""

    def __init__(self, responses: int, steps: int, trace: str) -> None:
        self._responses, self._wanted, self._trace = responses, steps, trace
        self._steps, self._began, self._seconds = 0, 0.0, 0.0
        self._profiler: Any = None
        self._ended = False

    def begin_step(self, plan: Any) -> None:
        """Count a step that begins, by vLLM's plan of it: a token for each response is decoding."""
        decodes = plan.total_num_scheduled_tokens == len(plan.num_scheduled_tokens) == self._responses
        if self._ended:
            return
        if self._profiler is not None and (self._steps == self._wanted or not decodes):
            self.end()
        elif decodes:
            if self._profiler is None:
                self._begin()
            self._steps += 1

    def _begin(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kind = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
        self._profiler = profile(activities=[kind])
        _wait_for_device()  # what ran before is no part of it
        self._profiler.start()
        self._began = time.perf_counter()

    def end(self) -> list[float]:
        """Stop, and write the trace. Returns steps and seconds."""
        if self._profiler is not None and not self._ended:
            _wait_for_device()
            self._seconds = time.perf_counter() - self._began
            self._profiler.stop()
            self._profiler.export_chrome_trace(self._trace)
        self._ended = True
        return [float(self._steps), self._seconds]


def _wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class NvmlShare:
    """Asks NVML how much of the last moments a kernel ran on the first card, while a block runs.

    Attributes:
        share: Mean of the answers, 0 to 1. None where there is no card, or no answer.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._answers: list[float] = []
        self._over = threading.Event()
        self._asking: threading.Thread | None = None
        self._nvml: Any = None
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._card, self._nvml = nvml.nvmlDeviceGetHandleByIndex(0), nvml
        except Exception:  # noqa: BLE001 - no package, no library, no driver, no card: there is nothing to ask
            self._card = None

    def __enter__(self) -> NvmlShare:
        if self._nvml is not None:
            self._asking = threading.Thread(target=self._ask, name="nvml", daemon=True)
            self._asking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._asking is not None:
            self._asking.join()
        self.share = round(statistics.mean(self._answers), 3) if self._answers else None

    def _ask(self) -> None:
        while not self._over.wait(NVML_SECONDS):
            try:
                self._answers.append(self._nvml.nvmlDeviceGetUtilizationRates(self._card).gpu / 100)
            except self._nvml.NVMLError:
                return


def read_trace(path: Path) -> dict[str, Any]:
    """Return what a trace of torch's profiler says.

    Returns:
        `busy`: seconds in which the GPU had work, where several streams overlap counted once; None without a GPU.
        `on`: "device" or "cpu". `kernels`: name, calls and seconds of each, the longest first. An operation of the CPU
        has its own seconds, without those that it calls.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    device = [event for event in events if event.get("cat") in ON_DEVICE]
    found = device or [event for event in events if event.get("cat") in ON_CPU]
    each: dict[str, list[float]] = defaultdict(list)
    for name, seconds in _own_seconds(found) if not device else ((one["name"], one["dur"] / 1e6) for one in device):
        each[name].append(seconds)
    kernels = sorted(((name, len(times), sum(times)) for name, times in each.items()), key=lambda one: -one[2])
    return {"on": "device" if device else "cpu", "busy": _united_seconds(device) if device else None,
            "kernels": kernels}  # fmt: skip


def _united_seconds(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds that at least one of the events covers."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted((one["ts"], one["ts"] + one["dur"]) for one in events):
        covered += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return covered / 1e6


def _own_seconds(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return each event's name and its seconds without those of the events inside it, in the same thread."""
    own: list[tuple[str, float]] = []
    open_ones: dict[Any, list[tuple[int, float]]] = defaultdict(list)  # thread -> index and end of what is not over
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        stack = open_ones[event["pid"], event["tid"]]
        while stack and stack[-1][1] <= event["ts"]:
            stack.pop()
        if stack:
            name, seconds = own[stack[-1][0]]
            own[stack[-1][0]] = (name, seconds - event["dur"] / 1e6)
        stack.append((len(own), event["ts"] + event["dur"]))
        own.append((event["name"], event["dur"] / 1e6))
    return own


def tables(events: Sequence[Mapping[str, Any]], folder: Path, names: Mapping[str, str]) -> str:
    """Return the share of time that the device is busy, and its kernels, by engine and responses at once.

    Args:
        events: What the engines noted: `pace` and `device`.
        folder: Where the traces are.
        names: Engine -> how a table calls it.
    """
    steps: dict[Any, list[float]] = defaultdict(list)  # without the profiler
    shares: dict[Any, list[float]] = defaultdict(list)
    for event in events:
        if event["event"] == "pace":
            key = event["engine"], event["responses"]
            steps[key].append(1e3 * event["seconds"] * event["responses"] / event["tokens"])
            shares[key] += [event["nvml"]] if event.get("nvml") is not None else []
    busy = ["| engine | responses | step, ms | step with the profiler, ms | of it device busy, ms | share | "
            "busy / step without it | NVML's share |", f"|{'---|' * 8}"]  # fmt: skip
    kernels = [f"| engine | responses | on | kernel | calls per step | ms per step | share |\n|{'---|' * 7}"]
    for event in (event for event in events if event["event"] == "device"):
        key, count = (event["engine"], event["responses"]), event["steps"]
        step = statistics.median(steps[key])
        nvml = f"{statistics.mean(shares[key]):.2f}" if shares[key] else NO_VALUE
        cells = [names[key[0]], str(key[1]), f"{step:.2f}"]
        if not count:
            busy.append(f"| {' | '.join([*cells, *[NO_VALUE] * 4, nvml])} |")
            continue
        found, whole = read_trace(folder / event["trace"]), event["seconds"] / count * 1e3
        cells.append(f"{whole:.2f}")
        if found["busy"] is None:
            cells += [NO_VALUE] * 3
        else:
            each = found["busy"] / count * 1e3
            cells += [f"{each:.2f}", f"{each / whole:.2f}", f"{each / step:.2f}"]
        busy.append(f"| {' | '.join([*cells, nvml])} |")
        total = sum(seconds for _, _, seconds in found["kernels"])
        for name, calls, seconds in found["kernels"][:SHOWN]:
            short = name.replace("|", "/")[:80]
            kernels.append(f"| {names[key[0]]} | {key[1]} | {found['on']} | `{short}` | {calls / count:.1f} | "
                           f"{seconds / count * 1e3:.3f} | {seconds / total:.2f} |")  # fmt: skip
    return "\n".join([*busy, "", *kernels])
