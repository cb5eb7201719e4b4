"""The command `nemo-ada prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    convert: Annotated[bool, typer.Option(help="convert to Megatron's format, where a GPU is here")] = True,
) -> None:
    """Fetch model, tokenizer and data sets into HF_HOME, and prove that they load without a network.

    HF_HOME is taken from the environment, else from slurm/site.env.
    """
    from nemo_ada.nemo.launch.prepare import prepare as run

    run(config, overrides or [], convert=convert, say=typer.echo)
