"""The command `nemo-ada status`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_ada.lab.status import ask_slurm, can_change, find_runs, read_statuses, render_status
from nemo_ada.rules.facts.site import read_site_setting
from nemo_ada.run.redaction import hide_in
from nemo_ada.standing import get_whole_path

MOST_SECONDS = 86_400.0  # between two looks of --watch


def status(
    run: Annotated[str, typer.Argument(help="the folder of a run, or all: those in RUN_ROOT, else in runs/")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="print what is known as JSON")] = False,
    watch: Annotated[
        float | None,
        typer.Option(min=1, max=MOST_SECONDS, help="print again every so many seconds, until no job is left"),
    ] = None,
) -> None:
    """Say how runs and their slots stand: step, last save, SLURM's own words, reasons, next start, what is left.

    Works on a login node: it reads files of the run's folder, and asks squeue and sacct by the array's id.
    """
    while True:
        root = Path(read_site_setting("RUN_ROOT") or "runs")
        folders = find_runs(get_whole_path(root)) if run == "all" else [get_whole_path(Path(run))]
        found = read_statuses(folders, ask_slurm(folders))
        shown = (
            json.dumps(hide_in(found), indent=None if watch else 1) if as_json else "\n".join(map(render_status, found))
        )
        if watch and not as_json:
            Console().clear()
        typer.echo(shown)
        if not watch or not any(map(can_change, found)):
            return
        time.sleep(watch)
