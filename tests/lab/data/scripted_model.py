"""A model and a tokenizer for the tests of data preparation and evaluation, and a process that kills itself."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

from nemo_ada.lab.data.journal import Journal
from nemo_ada.lab.data.prepare import Preparation, prepare
from nemo_ada.lab.data.providers import MeasuredResponse, Request
from nemo_ada.lab.data.source import open_source
from nemo_ada.lab.data.stages import parse_band
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.evaluate import SamplingSpec, evaluate
from nemo_ada.verify.judge import Judge


class Characters:
    """One token per character; a text with a NUL is refused."""

    name = "characters"

    def encode(self, text: str) -> list[int]:
        if "\0" in text:
            raise ValueError("a NUL character")
        return [ord(char) for char in text]


class Adder:
    """Answers sums "a+b=" rightly with a chance that falls with the sum; the seed decides."""

    name = "adder"
    fingerprint = "0" * 16

    def __init__(self, capacity: int = 24) -> None:
        self.asked: list[int] = []
        self.capacity, self._open = capacity, {}

    def submit(self, number: int, request: Request) -> None:
        self.asked.append(request.seed)
        self._open[number] = request

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """A third of the open requests, in an order that has nothing to do with theirs."""
        ended = sorted(self._open, key=lambda number: self._open[number].seed)[: 1 + len(self._open) // 3]
        return [(number, self._response(self._open.pop(number))) for number in ended]

    def _response(self, request: Request) -> MeasuredResponse:
        draw = random.Random(request.seed)
        total = sum(int(part) for part in "".join(map(chr, request.prompt)).rstrip("=").split("+"))
        right = draw.random() < max(0.0, 1.0 - total / 60.0)
        text = str(total if right else total + 1)
        return MeasuredResponse(text, len(text) + 1, draw.random() < 0.95)

    def close(self) -> None:
        pass


def preparation(source: Path, **changes) -> Preparation:
    """The tests' usual preparation."""
    settings = {
        "judge": Judge("exact"),
        "encoder": Characters(),
        "max_prompt_tokens": 12,
        "provider": Adder(),
        "k": 8,
        "chunk": 4,
        "band": parse_band("0.1,0.9"),
    }
    return Preparation(source=open_source(str(source)), **(settings | changes))


def run_evaluation(source: Path, out: Path) -> dict:
    """The tests' usual evaluation."""
    benchmark = Benchmark(name="sums", source=str(source), verifier="exact", max_prompt_tokens=12)
    return evaluate(
        [benchmark], lambda _: Characters(), Adder(), SamplingSpec(8, 0, {"temperature": 1.0}, chunk=4), out
    )


def kill_at(number: int) -> None:
    """Kill this process before its `number`-th call that changes a file; of a commit half of the bytes are written."""
    calls = 0

    def counted(real):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    os.fsync, os.truncate = counted(os.fsync), counted(os.truncate)
    Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
    commit = Journal.commit

    def torn_commit(self, records, *arguments):
        nonlocal calls
        if calls + 1 == number:
            data = "".join(json.dumps(record) + "\n" for record in records).encode()
            with self.path.open("ab") as file:
                file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        commit(self, records, *arguments)

    Journal.commit = torn_commit


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
