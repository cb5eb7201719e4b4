"""The command `nemo-ada model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def model(
    name: Annotated[Literal["smollm2"], typer.Argument(help="SmolLM2-135M-Instruct, rounded to 4 bits by its package")],
    out: Annotated[Path, typer.Option(help="folder to write")],
) -> None:
    """Write a small published language model as a folder for `policy.model_name`."""
    from nemo_ada.cpu.smollm2 import write_smollm2

    write_smollm2(out, typer.echo)
