"""Work on foreign text in a process whose time and memory the kernel bounds.

A chat template is a program of whoever made the model, and the header of a file of weights is JSON of any size. Ten
characters of a template can keep a core busy for years, within one operation that no signal and no timer of Python
ends: `{{ 9**(9**9) }}`. So such text is worked on in a child. The kernel ends it after its CPU seconds (RLIMIT_CPU),
and refuses it more memory than it may have (RLIMIT_AS). Time on the wall does not count: a busy machine is no attack.
"""

from __future__ import annotations

import importlib
import json
import math
import resource
import sys
import threading
from contextlib import suppress
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.start import DEVNULL, PIPE, Popen, begin, make_python_command

SECONDS = 20.0  # of a core, for one piece of work
MEMORY = 1 << 30  # bytes beyond what the process has after its imports
LONGEST = 64 << 20  # characters of a text that it returns


class Limited:
    """A child that calls one function of this package, as often as it is asked. It starts with the first question.

    Args:
        function: `package.module:name`. Its arguments and its result are JSON.
        seconds: CPU seconds of one call.
    """

    def __init__(self, function: str, seconds: float = SECONDS) -> None:
        self._function, self._seconds = function, seconds
        self._lock = threading.Lock()
        self._child: Popen[str] | None = None

    def ask(self, *arguments: Any) -> Any:
        """Return the result of the function.

        Raises:
            UserError: it raised an error, or needs more time or memory than it may have.
        """
        with self._lock:
            child = self._child or self._start()
            try:
                child.stdin.write(json.dumps(arguments) + "\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
                answer = child.stdout.readline()  # type: ignore[union-attr]
            except OSError:  # it has ended
                answer = ""
            if not answer.endswith("\n"):
                self._end()
                raise UserError(f"it takes more than {self._seconds:g} s of a core, or {MEMORY >> 20} MiB of memory")
        worked, result = json.loads(answer)
        if not worked:
            raise UserError(str(result))
        return result

    def _start(self) -> Popen[str]:
        words = make_python_command(sys.executable, "-m", __name__, self._function, self._seconds)
        self._child = begin(words, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)
        return self._child

    def _end(self) -> None:
        """End the child. Another one starts with the next question."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with suppress(OSError):
                child.communicate()

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def call_limited(function: str, *arguments: Any) -> Any:
    """Call a function of this package in a child of its own. Raises UserError as `Limited.ask` does."""
    with Limited(function) as child:
        return child.ask(*arguments)


def main(function: str, seconds: str) -> None:
    """Run as the child: answer each line of the input until it ends."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    pages = int(text_of_kernel("/proc/self/statm").split()[0])
    _lower_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + float(seconds)))
        try:
            result = call(*json.loads(line))
            if isinstance(result, str) and len(result) > LONGEST:
                raise ValueError(f"it makes a text of more than {LONGEST:,} characters")
            answer = json.dumps([True, result])
        except MemoryError:
            answer = json.dumps([False, f"it takes more than {MEMORY >> 20} MiB of memory"])
        except Exception as problem:  # noqa: BLE001 - foreign text may make it raise anything
            answer = json.dumps([False, " ".join(str(problem).split())[:200] or type(problem).__name__])
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def text_of_kernel(path: str) -> str:
    """Read a file of /proc, which has no size."""
    with open(path, encoding="ascii") as file:
        return file.read()


def _lower_limit(kind: int, value: int) -> None:
    """Set a soft limit, which the kernel's hard one may bound."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(*sys.argv[1:])
