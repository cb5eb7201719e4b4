"""The command `nemo-ada export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    step: Annotated[int | None, typer.Option(help="step of the checkpoint (default: the newest)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder to write (default: RUN/hf/step_N)")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="of a LoRA run: only the adapters, in PEFT's format (RUN/adapter/step_N)")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="the model that the run started from, where it has code of its own")
    ] = None,
) -> None:
    """Write a run's newest complete checkpoint as a Hugging Face folder. Adapters of LoRA are merged into the model."""
    from nemo_ada.nemo.launch import export as parts

    parts.export_checkpoint(run, step=step, out=out, say=typer.echo, adapter=adapter, model=model)
