"""Progress of a command: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nemo_ada.run.observer import Observer

if TYPE_CHECKING:
    from nemo_ada.cpu.settings import RunConfig


def _signal(record: Mapping[str, Any], *, beside_grpo: bool = True) -> str:
    """Return the share of groups without signal; n/a where such a group has a gradient (`baseline: shrunk`)."""
    share = record.get("ada/zero_signal_groups")
    if share is None:
        return "zero-signal n/a"
    return f"zero-signal {share:.2f}" + (
        f" (GRPO {record['ada/zero_signal_groups_if_grpo']:.2f})" if beside_grpo else ""
    )


def step_line(record: Mapping[str, Any]) -> str:
    """One line for a step."""
    return (
        f"step {record['step']:>4}  pass rate {record['ada/pass_rate']:.3f}  "
        f"{_signal(record)}  "
        f"responses {record['ada/samples_drawn']:.0f}  live rows {record['ada/live_rows']:.0f}  "
        f"grad {record['train/grad_norm']:.3f}  {record['time/step']:.2f} s "
        f"(sampling {record['time/sampling']:.2f})"
    )


def evaluation_line(record: Mapping[str, Any]) -> str:
    """One line for an evaluation."""
    scores = "  ".join(f"{name[4:]} {value:.3f}" for name, value in record.items() if name.startswith("val/"))
    return f"eval after step {record['step']}: {scores}"


def _bars(console: Console, *more: TextColumn) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), *more, console=console)


@contextmanager
def observer(config: RunConfig, console: Console | None = None) -> Iterator[Observer]:
    """An Observer that prints to `console` (standard output)."""
    out = console or Console(highlight=False, soft_wrap=True)
    if not out.is_terminal:
        yield Observer(
            on_base=lambda step, steps, loss: (
                out.print(f"base {step}/{steps}  loss {loss:.3f}") if step % 100 == 0 else None
            ),
            on_message=out.print,
            on_step=lambda record: out.print(step_line(record)),
            on_evaluation=lambda record: out.print(evaluation_line(record)),
        )
        return
    with _bars(out, TextColumn("{task.fields[note]}")) as bars:
        base = bars.add_task("base model", total=config.base.steps, visible=False, note="")
        steps = bars.add_task("training", total=config.grpo.max_num_steps, note="starting")

        def on_base(step: int, total: int, loss: float) -> None:
            bars.update(base, completed=step, visible=step < total, note=f"loss {loss:.3f}")

        def on_step(record: Mapping[str, Any]) -> None:
            note = f"pass rate {record['ada/pass_rate']:.3f}, {_signal(record, beside_grpo=False)}"
            bars.update(steps, completed=record["step"], note=note)

        yield Observer(
            on_base=on_base,
            on_message=bars.console.print,
            on_step=on_step,
            on_evaluation=lambda record: bars.console.print(evaluation_line(record)),
        )


GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # a reader or a terminal that does not come back


class _Unfailing:
    """A text stream on which writing never fails. What cannot be written is lost."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text if that is possible."""
        try:
            self._stream.write(text)
        except OSError as error:
            self.give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        try:
            self._stream.flush()
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Write to /dev/null from now on if nobody reads any more. On a full disk later texts may be written."""
        if error.errno in GONE:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def unfailing_output() -> Iterator[None]:
    """Within the block a closed terminal, a broken pipe or a full disk under the log is no error of the command."""
    before = sys.stdout, sys.stderr
    streams = tuple(map(_Unfailing, before))
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            try:
                stream._stream.flush()
            except OSError:  # Python would end with exit code 120
                stream.give_up(OSError(errno.EPIPE, ""))


LINE_SECONDS = 60.0
"""A log gets a line when something new starts, when it ends, and at most once in so many seconds between."""


class LineProgress:
    """Progress as plain lines, for logs.

    Args:
        unit: what is counted, such as `prompt`.
        say: prints one line.
        now: a clock in seconds.
    """

    def __init__(self, unit: str, say: Callable[[str], object], now: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._say, self._now = unit, say, now
        self._first: dict[str, tuple[int, float]] = {}
        self._last = -math.inf

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Print a line if `done` of `total` is news. `total` is None where nobody knows it."""
        now, shown = self._now(), "the source" if total is None else str(total)
        if name not in self._first:
            self._first[name], self._last = (done, now), now
            self._say(f"{name}: {self._unit} {done + 1} of {shown}")
        elif done == total or now - self._last >= LINE_SECONDS:
            self._last = now
            began, then = self._first[name]
            speed = (done - began) / max(now - then, 1e-9)
            left = f", about {_duration((total - done) / speed)} left" if total and speed > 0 and done < total else ""
            self._say(f"{name}: {done} of {shown} done in {_duration(now - then)}{left}")


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"


@contextmanager
def counted(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields watch(name, done, total): a bar per name on a terminal, elsewhere lines (LineProgress)."""
    console = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield LineProgress(unit, lambda text: console.print(text, markup=False, soft_wrap=True))
        return
    known: dict[str, Any] = {}
    with _bars(console) as bars:

        def update(name: str, done: int, total: int | None) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done, total=total)

        yield update
