"""What a run shows while it runs: a progress display on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=out) as display:
        base = display.add_task("base model", total=config.base.steps, visible=False, note="")
        steps = display.add_task("training", total=config.grpo.max_num_steps, note="starting")

        def on_base(step: int, total: int, loss: float) -> None:
            display.update(base, completed=step, visible=step < total, note=f"loss {loss:.3f}")

        def on_step(record: Mapping[str, Any]) -> None:
            note = f"pass rate {record['ada/pass_rate']:.3f}, zero-signal {record['ada/zero_signal_groups']:.2f}"
            display.update(steps, completed=record["step"], note=note)

        yield Observer(
            on_base=on_base,
            on_message=display.console.print,
            on_step=on_step,
            on_evaluation=lambda record: display.console.print(evaluation_line(record)),
        )
