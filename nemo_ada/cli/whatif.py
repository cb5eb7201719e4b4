"""The command `nemo-ada whatif`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_ada.cli.limits import check_limits
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.errors import UserError

PACE = 2.0  # seconds between two lines about the progress
WIDTH = 180  # columns of the table when the output is not a terminal
LIMITS: dict[str, tuple[float, float]] = {
    "group": (2, 64),
    "max-responses": (2, 1024),
    "threshold": (-1e12, 1e12),
    "prompts": (1, 100_000),
    "slots": (1, 10_000_000),
    "max-samples": (1, 2**53),
    "max-tokens": (1, 2**53),
    "max-seconds": (1e-3, 1e9),
    "sampling-seconds": (1e-6, 1e9),
    "other-seconds": (0, 1e9),
    "gpus": (1, 1_000_000),
    "price": (0, 1e9),
    "steps": (1, 1_000_000_000),
    "seeds": (2, 1000),
}
"""Bounds of options. Outside them there is no answer, or it takes hours."""


def whatif(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="files or folders with rollouts, or with the curves of a run")],
    group: Annotated[
        int | None, typer.Option(help="n, rows per prompt (default: responses per prompt of the log)")
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="presets to compare, or dapo (default: all that fit)")
    ] = None,
    max_responses: Annotated[
        list[int] | None, typer.Option(help="another largest number of responses per prompt; may be repeated")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="name of your own field or metric, as reward=NAME; also prompt, tokens, step, group"),
    ] = None,
    threshold: Annotated[float, typer.Option(help="a response is correct when its reward is above this")] = 0.7,
    values: Annotated[
        tuple[float, float] | None,
        typer.Option(help="rewards of a wrong and of a right response, for logs of averages (default: 0 1)"),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="simulate times, and the presets that need a whole step: a minute")
    ] = False,
    prompts: Annotated[int | None, typer.Option(help="prompts per step (default: those of the log)")] = None,
    slots: Annotated[int | None, typer.Option(help="responses that decode at once (engine's max_num_seqs)")] = None,
    max_samples: Annotated[int | None, typer.Option(help="cap: responses per step")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="cap: tokens per step")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="cap: seconds of a step's sampling phase")] = None,
    sampling_seconds: Annotated[
        float | None, typer.Option(help="mean seconds of the sampling phase of the logged run, with n responses")
    ] = None,
    other_seconds: Annotated[float, typer.Option(help="seconds of the rest of a step")] = 0.0,
    gpus: Annotated[int | None, typer.Option(help="number of GPUs, for GPU hours")] = None,
    price: Annotated[float | None, typer.Option(help="price of a GPU hour")] = None,
    steps: Annotated[int | None, typer.Option(help="training steps of GPU hours (default: those of the log)")] = None,
    seeds: Annotated[int, typer.Option(help="repetitions of the simulation behind the times")] = 3,
    check: Annotated[
        bool, typer.Option("--backtest", help="predict whole groups from half of each, and compare")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what adaptive sampling would have changed, from a log that you already have. It needs no GPU.

    Rollouts say most: NeMo-RL's train_data_step*.jsonl, NeMo-Gym's rollouts, dumps of verl, TRL, prime-rl and
    open-instruct, tables of Weights & Biases (JSON), and any JSONL with prompt, reward and tokens.

    Curves are enough: TRL's trainer_state.json, what TRL or verl printed, CSV files of Weights & Biases, event files of
    TensorBoard. Say with --group how many responses a prompt got.
    """
    from nemo_ada.lab.whatif.answer import Options, answer, backtest
    from nemo_ada.lab.whatif.averages import Averages, read_averages
    from nemo_ada.lab.whatif.logs import read_logs
    from nemo_ada.lab.whatif.render import as_json, checks_table, introduction, sentences, tables

    check_limits(context, LIMITS)
    if price is not None and gpus is None:
        raise UserError(f"--price={price:g} is for a GPU hour; say with --gpus how many GPUs there are")
    caps = Budget(max_samples, max_tokens, max_seconds)
    needs_times = (slots, *caps.caps().values(), sampling_seconds, gpus)  # they need the simulation
    options = Options(
        group, tuple(preset or ()), tuple(max_responses or ()), threshold, prompts, slots, caps, sampling_seconds,
         other_seconds, gpus, price, steps, seeds,
        times or any(value is not None for value in needs_times),
    )  # fmt: skip
    for path in logs:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; `nemo-ada whatif --help` lists the logs that it reads")
    names, say = _columns(column or []), _sayer()
    log = read_averages(logs, names, values) or read_logs(logs, names, say)
    if check:
        checks = backtest(log, options)
        if json:
            typer.echo(as_json(checks))
        else:
            halves = "first half of each group -> whole groups"
            what = "some averages -> another" if isinstance(log, Averages) else halves
            _wide().print(checks_table(checks, what))
        return
    found = answer(log, options, say)
    if gpus is not None and found.costs is None:
        raise UserError(f"--gpus={gpus}: the log has no seconds; give --sampling-seconds, too")
    if json:
        typer.echo(as_json(found))
        return
    typer.echo(f"{sentences(found)}\n\n{introduction(found)}")
    for table in tables(found):
        _wide().print(table)


def _sayer() -> Callable[[str], None]:
    """Return what prints how far a long answer is, at most every PACE seconds."""
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > PACE:
            last = time.monotonic()
            sys.stderr.write(f"{text} ...\n")

    return say


def _wide() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _columns(pairs: list[str]) -> dict[str, str]:
    """Parse the values of --column."""
    from nemo_ada.lab.whatif.averages import METRICS
    from nemo_ada.lab.whatif.formats import NAMES

    known = tuple(dict.fromkeys((*NAMES, *METRICS)))
    found: dict[str, str] = {}
    for pair in pairs:
        what, _, name = pair.partition("=")
        if what not in known or not name:
            raise UserError(
                f"--column={pair[:80]}: write what it is and your name for it, such as reward=my_score; known are "
                f"{', '.join(known)}"
            )
        found[what] = name
    return found
