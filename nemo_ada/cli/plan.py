"""The command `nemo-ada plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.cli.options import Fields, with_options
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.lab.plan.job_slots import format_time
from nemo_ada.lab.plan.render import render
from nemo_ada.lab.plan.sbatch import TIMES, choose_sbatch_options
from nemo_ada.rules.facts.cards import KEY as CARD

SLOT = TIMES[0]
MOST_PRICE = 1e9  # of a GPU hour


@with_options
def plan(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    time: Annotated[str | None, typer.Option(help=f"length of a job slot, as SLURM writes it (default {SLOT})")] = None,
    options: Annotated[
        PlanOptions, Fields("run", "run_steps", "pass_rates", "median_tokens", "cold_start", "step_seconds")
    ] = PlanOptions(SLOT),
    card: Annotated[str | None, typer.Option(help="GPUs to plan for, such as H200 (default: the config's)")] = None,
    price: Annotated[
        float | None, typer.Option(min=0, max=MOST_PRICE, help="price of a GPU hour: print what all slots cost")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="print only sbatch's options: nodes, GPUs, name, time and signal")
    ] = False,
) -> None:
    """Predict step time, job slots, caps and the preset that pays, each figure with its source.

    Without --run the figures are published step times, carried to the configuration by simulation. GPUs are those of
    --card, else of the config's key `card`, else H100-80GB. With --sbatch and without --time, the time is the
    shortest that spends most of itself on steps.
    """
    words = [*(overrides or []), *([] if card is None else [f"{CARD}={card}"])]
    options = replace(options, time=time or SLOT)
    if sbatch:
        others = {
            "--step-seconds": options.step_seconds,
            "--price": price,
            "--json": as_json or None,
        }
        unused = [option for option, value in others.items() if value is not None]
        if unused:
            raise UserError(f"{unused[0]} has no effect on sbatch's options: leave it or --sbatch out")
        typer.echo("\n".join(choose_sbatch_options(config, words, TIMES if time is None else (time,), options)))
        return
    result = make_plan(config, words, options)
    typer.echo(render(result, as_json=as_json, price=price))
    if not result.slots.steps:
        slots = result.slots
        least = format_time(slots.cold_start + slots.lead + result.forecast.step.p50)
        raise UserError(
            f"--time={options.time}: no step fits into a slot of {format_time(slots.seconds)} (SLURM reads 04:00 as "
            f"four minutes); ask for {least} or more, written hours:minutes:seconds"
        )
