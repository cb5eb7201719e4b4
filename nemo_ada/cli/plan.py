"""The command `nemo-ada plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.lab.plan.job_slots import clock
from nemo_ada.lab.plan.render import render, write
from nemo_ada.lab.plan.sbatch import TIMES, sbatch_options
from nemo_ada.rules.facts.cards import KEY as CARD

SLOT = TIMES[0]
MOST_PRICE = 1e9  # of a GPU hour


def plan(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    time: Annotated[str | None, typer.Option(help=f"length of a job slot, as SLURM writes it (default {SLOT})")] = None,
    run: Annotated[Path | None, typer.Option(help="folder of an earlier run to measure from")] = None,
    run_steps: Annotated[int | None, typer.Option(help="use only the first steps of that run")] = None,
    pass_rates: Annotated[Path | None, typer.Option(help="file with one measured pass rate per line")] = None,
    median_tokens: Annotated[
        float | None, typer.Option(help="median length of a response (default: 0.3 x max_new_tokens)")
    ] = None,
    cold_start: Annotated[float | None, typer.Option(help="seconds from the job's start to its first step")] = None,
    step_seconds: Annotated[
        float | None, typer.Option(help="print the cap under which no step takes longer than this")
    ] = None,
    card: Annotated[str | None, typer.Option(help="GPUs to plan for, such as H200 (default: the config's)")] = None,
    price: Annotated[
        float | None, typer.Option(min=0, max=MOST_PRICE, help="price of a GPU hour: print what all slots cost")
    ] = None,
    write_to: Annotated[
        Path | None, typer.Option("--write", help="run folder that gets plan.json, for its report")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="print only sbatch's options: nodes, GPUs, name, time and signal")
    ] = False,
) -> None:
    """Predict step time, job slots, caps and the preset that pays, each figure with its source.

    Without --run the figures are published step times, carried to the configuration by simulation. GPUs are those of
    --card, else of the config's key `card`, else H100-80GB. The prediction is kept as plan.json in the folder of
    --write, or in that of --run where the plan is for that run. With --sbatch and without --time, the time is the
    shortest that spends most of itself on steps.
    """
    words = [*(overrides or []), *([] if card is None else [f"{CARD}={card}"])]
    options = PlanOptions(
        time=time or SLOT, run=run, run_steps=run_steps, pass_rates=pass_rates, cold_start=cold_start,
        median_tokens=median_tokens, step_seconds=step_seconds,
    )  # fmt: skip
    if sbatch:
        others = {"--step-seconds": step_seconds, "--price": price, "--write": write_to, "--json": as_json or None}
        unused = [option for option, value in others.items() if value is not None]
        if unused:
            raise UserError(f"{unused[0]} has no effect on sbatch's options: leave it or --sbatch out")
        typer.echo("\n".join(sbatch_options(config, words, TIMES if time is None else (time,), options)))
        return
    result = make_plan(config, words, options)
    typer.echo(render(result, as_json=as_json, price=price))
    if not result.slots.steps:
        slots = result.slots
        least = clock(slots.cold_start + slots.lead + result.forecast.step.p50)
        raise UserError(
            f"--time={options.time}: no step fits into a slot of {clock(slots.seconds)} (SLURM reads 04:00 as four "
            f"minutes); ask for {least} or more, written hours:minutes:seconds"
        )
    folder = write_to or (run if result.own_run else None)
    if folder is not None:
        typer.echo(f"kept as {write(result, folder)}", err=True)
