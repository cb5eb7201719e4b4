"""One worker process: its limits, and the judgement of one answer."""

from __future__ import annotations

import importlib
import math
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from multiprocessing import resource_tracker
from typing import cast

from nemo_ada.verify.confine import confine
from nemo_ada.verify.messages import Layers
from nemo_ada.verify.verdict import INVALID, MEMORY

Scorer = Callable[[str, str], float]  # (answer, reference) -> score in [0, 1]
Judgement = tuple[float | None, str | None, str]  # label, cause, detail for the log
DEFAULT_SCORER = "nemo_ada.verify.scoring:score_math"


@lru_cache(maxsize=1)
def load_scorer(name: str) -> Scorer:
    """The function `package.module:function`."""
    module, _, function = name.partition(":")
    return cast(Scorer, getattr(importlib.import_module(module), function))


_layers = Layers((), {})


def start(scorer: str, memory_bytes: int) -> None:
    """Confine a new worker (`confine`). It imports the scorer first; later it can read fewer files.

    SIGTERM gets its default action back. Pebble's handler is Python code, which cannot run inside a long C function.
    Pebble would then wait 3 s with the pool's lock held, and no other worker would get an answer.
    """
    global _layers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(Exception):  # `judge` imports it again, and reports the error with the answer
        load_scorer(scorer)
    _let_go()
    _layers = confine(memory_bytes)


def _let_go() -> None:
    """Point what an answer has no use for to /dev/null.

    That is the trainer's output, and the pipe of multiprocessing's resource tracker, which deletes what it is told.
    """
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        for descriptor in (1, 2, resource_tracker._resource_tracker._fd):  # type: ignore[attr-defined]
            if descriptor is not None:
                os.dup2(nowhere.fileno(), descriptor)


def layers() -> Layers:
    """How this worker is confined."""
    return _layers


def judge(scorer: str, answer: str, reference: str, cpu_s: float) -> Judgement:
    """Judge one answer. An error of the scorer becomes a cause, not a label.

    cpu_s: CPU seconds after which the kernel ends this process. The pool keeps the wall-clock deadline; this limit
    remains when the pool is gone.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(usage.ru_utime + usage.ru_stime + cpu_s) + 1, hard))
    try:
        score = load_scorer(scorer)(answer, reference)
        return _checked(score)
    except MemoryError as error:
        return None, MEMORY, repr(error)
    except BaseException as error:  # noqa: BLE001 - a boundary: an error of the scorer concerns one answer
        return None, INVALID, f"{type(error).__name__}: {error}"[:500]
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _checked(score: object) -> Judgement:
    if not isinstance(score, int | float) or not 0.0 <= score <= 1.0:  # NaN fails the comparison too
        return None, INVALID, f"the scorer returned {score!r}, not a number in [0, 1]"
    return float(score), None, ""
