"""The command `nemo-ada plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.planning.command import PlanOptions, make_plan
from nemo_ada.planning.render import render, write


def plan(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, in hydra's grammar")] = None,
    time: Annotated[str, typer.Option(help="length of a job slot, as SLURM writes it")] = "04:00:00",
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
    write_to: Annotated[
        Path | None, typer.Option("--write", help="run folder that gets plan.json, for its report")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Step time, job slots, caps and the preset that pays, each figure with its source.

    Without --run the figures are published step times, carried to the configuration by simulation; GPUs are assumed to
    be H100-80GB. The prediction is kept as plan.json in the folder of --write, or in that of --run where the plan is
    for that run.
    """
    options = PlanOptions(
        time=time, run=run, run_steps=run_steps, pass_rates=pass_rates, cold_start=cold_start,
        median_tokens=median_tokens, step_seconds=step_seconds,
    )  # fmt: skip
    made = make_plan(config, overrides or [], options)
    typer.echo(render(made, as_json=as_json))
    folder = write_to or (run if made.own_run else None)
    if folder is not None:
        typer.echo(f"kept as {write(made, folder)}", err=True)
