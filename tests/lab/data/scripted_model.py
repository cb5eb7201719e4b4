"""A model and a tokenizer for the tests of data preparation and evaluation, and a process that kills itself."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada.lab.data import kept
from nemo_ada.lab.data.measure import SamplingSpec
from nemo_ada.lab.data.prepare import Preparation, prepare
from nemo_ada.lab.data.providers import Limits, MeasuredResponse, Request
from nemo_ada.lab.data.stages import parse_band
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.evaluate import evaluate


class Characters:
    """One token per character; a text with a NUL is refused."""

    name = "characters"

    def encode(self, text: str) -> list[int]:
        if "\0" in text:
            raise ValueError("a NUL character")
        return [ord(char) for char in text]


class Adder:
    """Answers sums "a+b=" rightly with a chance that falls with the sum; the seed decides.

    asked: seeds of all requests. full: whether it was full, each time that it went on.
    """

    name = "adder"
    fingerprint = "0" * 16

    def __init__(self, capacity: int = 24) -> None:
        self.limits = Limits(12, 9, max_num_seqs=capacity)
        self.asked: list[int] = []
        self.full: list[bool] = []

    def respond(self, requests) -> Iterator[list[tuple[Any, MeasuredResponse]]]:
        """A third of the open requests at a time, in an order that has nothing to do with theirs."""
        requests, waiting = iter(requests), []
        while True:
            new = list(islice(requests, self.limits.max_num_seqs - len(waiting)))
            self.asked += [request.seed for _, request in new]
            waiting = sorted([*waiting, *new], key=lambda pair: pair[1].seed)
            if not waiting:
                return
            self.full.append(len(waiting) == self.limits.max_num_seqs)
            ended, waiting = waiting[: 1 + len(waiting) // 3], waiting[1 + len(waiting) // 3 :]
            yield [(key, self.response(request)) for key, request in ended]

    def response(self, request: Request) -> MeasuredResponse:
        draw = random.Random(request.seed)
        total = sum(int(part) for part in self.read(request.prompt).rstrip("=").split("+"))
        right = draw.random() < max(0.0, 1.0 - total / 60.0)
        text = str(total if right else total + 1)
        return MeasuredResponse(text, len(text) + 1, draw.random() < 0.95)

    def read(self, prompt) -> str:
        return "".join(map(chr, prompt))


def preparation(source: Path, **changes) -> Preparation:
    """The tests' usual preparation."""
    asked = changes.pop("problems", {})
    problems = Benchmark(
        **({"name": "source", "source": str(source), "verifier": "exact", "max_prompt_tokens": 12} | asked)
    )
    settings = {
        "encoder": Characters(), "provider": Adder(), "drawing": SamplingSpec(8), "band": parse_band("0.1,0.9"),
    }  # fmt: skip
    return Preparation(problems, **(settings | changes))


def run_evaluation(source: Path, out: Path, model: Adder | None = None) -> dict:
    """The tests' usual evaluation."""
    benchmark = Benchmark(name="sums", source=str(source), verifier="exact", max_prompt_tokens=12)
    return evaluate([benchmark], lambda _: Characters(), model or Adder(), SamplingSpec(8), out)


def kill_at(number: int) -> None:
    """Kill this process before its `number`-th call that changes a file; of appended lines half are written."""
    calls = 0

    def counted(real, before=lambda *_arguments: None):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                before(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    os.truncate, Path.replace = counted(os.truncate), counted(Path.replace)
    append = kept.append
    kept.append = counted(append, lambda path, data: append(path, data[: len(data) // 2]))


def in_a_process(what: str, source: Path, out: Path, killed_at: int = 0) -> int:
    """Prepare or evaluate in a forked process; its exit code.

    killed_at: the process sends itself SIGKILL before its N-th call that changes a file (0: never).
    """

    def work() -> None:
        if killed_at:
            kill_at(killed_at)
        if what == "prepare":
            prepare(preparation(source), out)
        else:
            run_evaluation(source, out)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return int(process.exitcode or 0)
