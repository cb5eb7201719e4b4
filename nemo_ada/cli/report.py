"""The command `nemo-ada report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of nemo-ada train (run_dir) and of nemo-ada eval")],
    out: Annotated[Path, typer.Option(help="the page; figures go beside it")] = Path("report.html"),
    figures: Annotated[bool, typer.Option(help="also write each figure as PNG")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="rewrite the page while a run goes on")] = False,
    every: Annotated[int, typer.Option(min=1, help="seconds between two updates with --watch")] = 30,
) -> None:
    """Write a page with figures and tables of one or more runs, and print a summary."""
    from nemo_ada.lab.report import command  # imported here, because matplotlib takes a while to load

    if watch:
        command.watch(runs, out, every)
    command.make_report(runs, out, figures=figures)
