"""Progress of a command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nemo_ada.run.observer import Observer

LINE_SECONDS = 60.0
"""A log gets a line when something begins, when it ends, and at most once in so many seconds between."""


def format_step(record: Mapping[str, Any]) -> str:
    """One line for a step. The share of groups without signal is n/a where such a group has a gradient."""
    share, grpo = record.get("ada/zero_signal_groups"), record.get("ada/zero_signal_groups_if_grpo")
    return (
        f"step {record['step']:>4}  pass rate {record['ada/pass_rate']:.3f}  "
        f"zero-signal {'n/a' if share is None else f'{share:.2f} (GRPO {grpo:.2f})'}  "
        f"responses {record['ada/samples_drawn']:.0f}  live rows {record['ada/live_rows']:.0f}  "
        f"grad {record['train/grad_norm']:.3f}  {record['time/step']:.2f} s "
        f"(sampling {record['time/sampling']:.2f})"
    )


def format_evaluation(record: Mapping[str, Any]) -> str:
    """One line for an evaluation."""
    scores = "  ".join(f"{name[4:]} {value:.3f}" for name, value in record.items() if name.startswith("val/"))
    return f"eval after step {record['step']}: {scores}"


def make_observer() -> Observer:
    """Return an Observer that prints a line for each step and evaluation."""
    say = Console(highlight=False, soft_wrap=True, markup=False).print
    return Observer(
        on_base=lambda step, steps, loss: say(f"base {step}/{steps}  loss {loss:.3f}") if step % 100 == 0 else None,
        on_message=say,
        on_step=lambda record: say(format_step(record)),
        on_evaluation=lambda record: say(format_evaluation(record)),
    )


class _IgnoringStream:
    """A text stream on which writing never fails. After the first failure the rest is lost."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        return partial(self._try, found) if name in ("write", "flush") else found

    def _try(self, call: Callable[..., Any], *given: str) -> Any:
        try:
            return call(*given)
        except OSError:  # from now on the stream itself leads nowhere, so that no later write of anybody fails
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Within the block a closed terminal, a broken pipe or a full disk under the log is no error of the command."""
    out, err = _IgnoringStream(sys.stdout), _IgnoringStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()  # what is left would fail when Python ends, and Python would end with exit code 120
            err.flush()


@contextmanager
def count_on_terminal() -> Iterator[Callable[[str, int, int], None]]:
    """Yields watch(name, done, total): a bar per name on a terminal, elsewhere lines."""
    console, known, said = Console(stderr=True, highlight=False, markup=False), dict[str, Any](), dict[str, float]()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=3600) as bars:

        def watch(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done)
            now, left = time.monotonic(), bars.tasks[known[name]].time_remaining
            if not console.is_terminal and (done == total or now - said.get(name, -LINE_SECONDS) >= LINE_SECONDS):
                said[name] = now
                console.print(f"{name}: {done} of {total}" + (f", about {left / 60:.0f} min left" if left else ""))

        yield watch
