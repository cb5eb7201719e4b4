"""One worker process: its limits, and the judgement of one answer."""

from __future__ import annotations

import inspect
import io
import json
import math
import os
import resource
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from typing import Any, cast

from nemo_ada.by_name import load, locate_error
from nemo_ada.verify import kernel, outside
from nemo_ada.verify.confine import confine
from nemo_ada.verify.verdict import INVALID, MEMORY, describe_bad_score, locate_function

Scorer = Callable[..., float]  # (answer, reference) -> score in [0, 1]
Judgement = tuple[float | None, str | None, str]  # label, cause, detail for the log
PRINTED = 300  # characters of what a scorer prints that go into the log
DEFAULT_SCORER = "nemo_ada.verify.scoring:score_math"


def encode_line(message: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message, default=str).encode() + b"\n"  # a date or a decimal of the data becomes text


@lru_cache(maxsize=1)
def load_scorer(name: str) -> Scorer:
    """Return the function that `by_name.find` has named."""
    return cast(Scorer, load("the scorer", name))


@lru_cache(maxsize=1)
def takes_prompt(function: Scorer) -> bool:
    """Return whether a scorer has a parameter `prompt`."""
    with suppress(TypeError, ValueError):  # one of C may have no signature
        return "prompt" in inspect.signature(function).parameters
    return False


def serve_answers(connection: int, scorer: str, memory_bytes: int, server: int) -> None:
    """The life of a worker: say how it is confined, then answer each line until the connection or the server ends.

    connection: descriptor of a stream socket. No other one stays open.
    server: process id of the server, this process's parent.
    """
    needs = outside.Needs()
    with suppress(kernel.Missing):
        kernel.end_with(server)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _close_all_but(connection)
    with suppress(Exception):  # `judge_answer` reports it with the answer
        needs = outside.read_needs(load_scorer(scorer))
        if needs.processes:
            os.setpgid(0, 0)  # so that its own processes end with it
    with open(0, "rb", closefd=False) as answers:
        os.write(0, encode_line(confine(memory_bytes, needs=needs)))
        if scorer != DEFAULT_SCORER:
            outside.watch_calls()
        for answer in answers:
            *asked, trial = json.loads(answer)
            os.write(0, encode_line(judge_answer(scorer, *asked, trial=trial)))


def _close_all_but(connection: int) -> None:
    """Make the connection the input, lead the output to nowhere, and close everything else that the server has open."""
    os.dup2(connection, 0)
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        for output in (1, 2):
            os.dup2(nowhere.fileno(), output)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with suppress(OSError):  # the one that lists them
                os.close(descriptor)


def judge_answer(
    scorer: str, answer: str, reference: Any, cpu_s: float, prompt: str = "", *, trial: bool = False
) -> Judgement:
    """Judge one answer. An error of the scorer becomes a cause, not a label.

    trial: whether the detail of a label is what the scorer asked for in vain, in place of what it printed.
    cpu_s: CPU seconds after which the kernel ends this process. The trainer keeps the wall-clock deadline; this limit
    remains when the trainer is gone. What the scorer prints is the detail of its label.
    """
    printed = _Beginning()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(usage.ru_utime + usage.ru_stime + cpu_s) + 1, hard))
    outside.forget_calls()
    needs = outside.Needs()
    try:
        function = load_scorer(scorer)
        needs = outside.read_needs(function)
        with redirect_stdout(printed), redirect_stderr(printed):
            more = {"prompt": prompt} if takes_prompt(function) else {}
            score = outside.read_score(function(answer, reference, **more), function, needs)
        return _check_score(score, function, outside.describe_refusals(needs) if trial else printed.getvalue().strip())
    except MemoryError as error:
        return None, MEMORY, repr(error)
    except BaseException as error:  # noqa: BLE001 - a boundary: an error of the scorer concerns one answer
        said = outside.describe_refusals(needs, error) if scorer != DEFAULT_SCORER else ""
        text = f"{locate_error(error, __file__)} {type(error).__name__}: {error}"
        return None, INVALID, f"{text[: 490 - len(said)]}{f'; {said}' * bool(said)}"[:500]
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


class _Beginning(io.StringIO):
    """Keeps the first PRINTED characters."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, PRINTED - self.tell())])
        return len(text)


def _check_score(score: object, function: Scorer, printed: str) -> Judgement:
    if (why := describe_bad_score(score)) is not None:
        return None, INVALID, f"{locate_function(function)} returned {why}"[:500]
    return float(cast(float, score)), None, printed
