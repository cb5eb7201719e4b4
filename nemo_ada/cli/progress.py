"""Progress of a command: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nemo_ada.config.run import RunConfig
from nemo_ada.run.observer import Observer


def step_line(record: Mapping[str, Any]) -> str:
    """One line for a step."""
    return (
        f"step {record['step']:>4}  pass rate {record['ada/pass_rate']:.3f}  "
        f"zero-signal {record['ada/zero_signal_groups']:.2f} (GRPO {record['ada/zero_signal_groups_if_grpo']:.2f})  "
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
            note = f"pass rate {record['ada/pass_rate']:.3f}, zero-signal {record['ada/zero_signal_groups']:.2f}"
            bars.update(steps, completed=record["step"], note=note)

        yield Observer(
            on_base=on_base,
            on_message=bars.console.print,
            on_step=on_step,
            on_evaluation=lambda record: bars.console.print(evaluation_line(record)),
        )


@contextmanager
def counted(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields watch(name, done, total): a bar per name on a terminal, elsewhere a line when a name appears."""
    console = Console(stderr=True, highlight=False)
    known: dict[str, Any] = {}
    if not sys.stderr.isatty():

        def line(name: str, done: int, total: int | None) -> None:
            if name not in known:
                known[name] = done
                shown = "the source" if total is None else total
                console.print(f"{name}: {unit} {done + 1} of {shown}", markup=False)

        yield line
        return
    with _bars(console) as bars:

        def update(name: str, done: int, total: int | None) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done, total=total)

        yield update
