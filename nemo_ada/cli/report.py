"""The command `nemo-ada report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of nemo-ada train (run_dir)")],
    out: Annotated[Path, typer.Option(help="the page; figures go beside it")] = Path("report.html"),
    figures: Annotated[bool, typer.Option(help="also write each figure as PNG")] = True,
) -> None:
    """Write a page with figures and tables of one or more runs, and print a summary."""
    from nemo_ada.lab.report import command  # imported here, because matplotlib takes a while to load

    command.make_report(runs, out, figures=figures)
