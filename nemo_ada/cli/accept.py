"""The command `nemo-ada accept`. Exit codes: 0 passed, 1 failed, 2 user error, 75 stopped by the batch script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def accept(
    config: Annotated[Path, typer.Argument(help="a cluster YAML with Reinforce-Ada")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 3,
    fp8: Annotated[
        bool, typer.Option("--fp8", help="one more run with FP8; with BF16 where the config has FP8")
    ] = False,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="run it on this machine's CPU, at a small size")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for logs, checkpoints and the report (run_dir)")] = None,
) -> None:
    """Spend the first GPU hour: three steps of NeMo-RL's loop, three of ours, a resume, and a report for an issue.

    Runs in NeMo-RL's environment, at the config's full size. Nobody has run it on a GPU yet. On a cluster:
    LAUNCH="nemo-ada accept" REQUEUE=none slurm/train.sh CONFIG.
    """
    from nemo_ada.rehearsal.accept import accept as run

    code = run(config, overrides or [], steps=steps, fp8=fp8, rehearse=rehearse, out=out, say=typer.echo)
    raise typer.Exit(code)
