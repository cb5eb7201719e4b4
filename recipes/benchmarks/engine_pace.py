"""The pace of vLLM alone: tokens per second, and CPU time of each process, at several numbers of responses at once.

The engines of the specification start side by side, each in processes of its own, and take turns with what they
measure. Each notes an event per number and round. They run in the engine's interpreter without stand-ins.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from device_work import STEPS, NvmlShare
from python_work import Recording

from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal.observe import note
from nemo_ada.run import start
from nemo_ada.run.files import json_of, open_to_read

PROMPT_TOKENS = 150
"""Tokens of a prompt, as in `plan`'s roofline."""
SYNC, ASYNC, FEW, GRAPHS = "sync", "async", "few", "graphs"
_FEW = {"scheduler_cls": "nemo_ada.vllm.FewMessages"}
ENGINES: Mapping[str, dict[str, Any]] = {
    SYNC: {},
    ASYNC: {},
    FEW: _FEW,
    GRAPHS: {**_FEW, "compilation_config": {"max_cudagraph_capture_size": 1024}},
}
"""Engine -> its arguments: NeMo-RL's default, its asynchronous one as it is, with few messages (nemo_ada/vllm.py), and
with CUDA graphs for more responses, too."""
ONE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from engine_pace import PaceSpec, measure
measure(PaceSpec.read(Path(sys.argv[2])), sys.argv[3], Path(sys.argv[2]))
"""  # the process of one engine
WARM_UP = 8  # tokens of the responses before the first round


@dataclass(frozen=True, slots=True)
class PaceSpec:
    """What is measured.

    Attributes:
        model: Folder of the model.
        counts: Numbers of responses at once.
        length: Longest prompt plus response, tokens.
        lengths: Lengths of the responses.
        engine: More arguments of vLLM.
        engines: Those of ENGINES that are measured. Another name is a scheduler that vLLM is given, as `few` is.
        rounds: How often each number is measured.
        logprobs: Whether each token's log-probability is asked for, as NeMo-RL does.
        work: Whether each number is measured twice more after the rounds: what the device does (device_work.py), and
            what Python does (python_work.py).
    """

    model: str
    counts: tuple[int, ...]
    length: int
    lengths: LengthModel
    engine: dict[str, Any]
    engines: tuple[str, ...] = (SYNC, ASYNC, FEW)
    rounds: int = 1
    logprobs: bool = True
    work: bool = False

    def as_json(self) -> str:
        """Return the content of SPEC.json."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> PaceSpec:
        """Read SPEC.json."""
        content = json_of(path)
        numbers = {name: tuple(content[name]) for name in ("counts", "engines")}
        return cls(**{**content, **numbers, "lengths": LengthModel(**content["lengths"])})

    def drawn(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The lengths of `count` responses, tokens. They are the same in every run."""
        rng = np.random.default_rng(count)
        return self.lengths.tokens(np.ones(count, np.bool_), rng.standard_normal(count))


def measure(spec: PaceSpec, engine: str, turn: Path) -> None:
    """Start vLLM, generate, and note what each number of responses took.

    Args:
        spec: What is measured.
        engine: One of ENGINES, or a scheduler.
        turn: A file that one process at a time locks. Traces and samples go beside it.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if engine == SYNC else "1"  # as NeMo-RL's workers do
    started = time.monotonic()
    arguments = {"model": spec.model, "load_format": "dummy", "max_model_len": spec.length, "disable_log_stats": False,
                 "logprobs_mode": "processed_logprobs", **spec.engine,
                 **ENGINES.get(engine, {"scheduler_cls": engine})}  # fmt: skip
    if spec.work:
        arguments["worker_extension_cls"] = "device_work.Profiled"
    make = _Synchronous if engine == SYNC else _Asynchronous
    vllm = make(arguments)
    note(event="engine ready", engine=engine, seconds=round(time.monotonic() - started, 2), version=vllm.version)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, 200, PROMPT_TOKENS).tolist() for _ in range(max(spec.counts))]
    vllm.generate(prompts, [WARM_UP] * len(prompts), spec.logprobs)
    lasted: dict[int, float] = {}
    for number in range(spec.rounds):
        for count in spec.counts:
            lengths = spec.drawn(count).tolist()
            with _alone(turn), NvmlShare() as nvml:
                before, began = _cpu_seconds(), time.monotonic()
                tokens = vllm.generate(prompts[:count], lengths, spec.logprobs)
                seconds, after = time.monotonic() - began, _cpu_seconds()
            cpu = {name: round(after[name] - before.get(name, 0.0), 3) for name in after}
            note(event="pace", engine=engine, round=number, responses=count, tokens=tokens, longest=max(lengths),
                 seconds=round(seconds, 3), cpu=cpu, nvml=nvml.share)  # fmt: skip
            lasted[count] = seconds
    for count in spec.counts if spec.work else ():
        lengths = spec.drawn(count).tolist()
        trace = f"{engine}-{count}.trace.json.gz"
        with _alone(turn):
            vllm.call("profile_steps", count, STEPS, str(turn.parent / trace))
            vllm.generate(prompts[:count], lengths, spec.logprobs)
            steps, seconds = vllm.call("profiled_steps")
            note(event="device", engine=engine, responses=count, steps=int(steps), seconds=seconds, trace=trace)
            recording = Recording(turn.parent, f"{engine}-{count}", _processes(), lasted[count])
            began = time.monotonic()
            tokens = vllm.generate(prompts[:count], lengths, spec.logprobs)
            seconds = time.monotonic() - began
            shares = recording.shares()
        note(event="work", engine=engine, responses=count, tokens=tokens, seconds=round(seconds, 3),
             sampled=recording.seconds, shares=shares)  # fmt: skip
    vllm.close()


class _Synchronous:
    """NeMo-RL's default: `vllm.LLM` inside its worker's process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM, __version__

        self.version = __version__
        self._llm = LLM(**arguments)

    def generate(self, prompts: list[list[int]], lengths: list[int], logprobs: bool) -> int:
        """Generate responses of these lengths. Returns the number of tokens."""
        given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        parameters = [_parameters(length, logprobs) for length in lengths]
        outputs = self._llm.generate(given, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the worker."""
        return self._llm.collective_rpc(method, args=args)[0]

    def close(self) -> None:
        """End the engine."""
        self._llm.llm_engine.engine_core.shutdown()


class _Asynchronous:
    """The asynchronous engine, whose core is a process of its own. A task per response reads all its outputs."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import __version__
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.version = __version__
        self._loop = asyncio.new_event_loop()
        self._calls = 0

        async def start() -> Any:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

        self._llm = self._loop.run_until_complete(start())

    def generate(self, prompts: list[list[int]], lengths: list[int], logprobs: bool) -> int:
        """Generate responses of these lengths. Returns the number of tokens."""
        self._calls += 1

        async def one(number: int) -> int:
            last: Any = None
            given: Any = {"prompt_token_ids": prompts[number]}
            name = f"{self._calls}-{number}"
            async for output in self._llm.generate(given, _parameters(lengths[number], logprobs), request_id=name):
                last = output
            return len(last.outputs[0].token_ids)

        async def everything() -> int:
            return sum(await asyncio.gather(*(one(number) for number in range(len(prompts)))))

        return self._loop.run_until_complete(everything())

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the worker."""
        return self._loop.run_until_complete(self._llm.collective_rpc(method, args=args))[0]

    def close(self) -> None:
        """End the engine."""
        self._llm.shutdown()


def _parameters(length: int, logprobs: bool) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False,
                          logprobs=0 if logprobs else None)  # fmt: skip


def _processes() -> dict[str, int]:
    """Ids of this process (`front`) and of the engine's other processes of Python, by what vLLM calls them."""
    import psutil

    found, here = {"front": os.getpid()}, psutil.Process()
    for child in here.children(recursive=True):
        title = " ".join(child.cmdline())
        if "EngineCore" in title or "Worker" in title:
            found["core" if "EngineCore" in title else f"worker {len(found) - 1}"] = child.pid
    return found


def _cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of this process (`front`) and of its busiest child, the engine's core (`core`)."""
    import psutil

    def of(process: Any) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    here = psutil.Process()
    children = [of(child) for child in here.children(recursive=True)]
    return {"front": of(here), **({"core": max(children)} if children else {})}


@contextmanager
def _alone(turn: Path) -> Iterator[None]:
    """Wait until no other engine measures."""
    with open_to_read(turn) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(spec: Path) -> int:
    """Measure all engines. Returns 0, or the exit code of one that failed."""
    command = start.make_python_command(sys.executable, "-W", "ignore", "-c", ONE, Path(__file__).parent, spec)
    running = [start.begin([*command, engine]) for engine in PaceSpec.read(spec).engines]
    code = max(abs(process.wait()) for process in running)
    if not code:
        note(event="done", code=0)
    return code
